// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// A stage is a set of tasks that stop together.
type stage struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed once all tasks have ended
}

// startStage starts the tasks of a stage. They outlive ctx, until the stage is stopped. If a task fails, the
// group's context ends.
func startStage(ctx context.Context, group *errgroup.Group, tasks ...func(context.Context) error) *stage {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	st := &stage{cancel: cancel, ended: make(chan struct{})}
	var running sync.WaitGroup
	for _, run := range tasks {
		running.Add(1)
		group.Go(func() error {
			defer running.Done()
			return run(ctx)
		})
	}
	group.Go(func() error {
		running.Wait()
		close(st.ended)
		return nil
	})
	return st
}

// stop stops the tasks and waits for their end. It may be called again.
func (s *stage) stop() {
	s.cancel()
	<-s.ended
}

// noError makes a task of a function that cannot fail.
func noError(run func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// A part runs in the background while a configuration uses it.
type part interface {
	// Run runs until ctx ends, and then returns nil. Only the agent ends a part: once no configuration uses it, or when the agent
	// stops. A part copes with failures of others, such as upstreams, by itself. An error that Run returns ends the agent.
	Run(ctx context.Context) error
}

// A partSet runs parts, each in a stage of its own, and stops those that no configuration uses.
type partSet struct {
	group   *errgroup.Group
	running map[part]*stage
}

// start runs the parts that do not run yet.
func (s *partSet) start(ctx context.Context, parts []part) {
	for _, p := range parts {
		if s.running[p] == nil {
			s.running[p] = startStage(ctx, s.group, p.Run)
		}
	}
}

// stopUnused ends every part but the used ones. Queries in flight on an ended pool are still answered.
func (s *partSet) stopUnused(used []part) {
	for p, st := range s.running {
		if !slices.Contains(used, p) {
			st.cancel()
			delete(s.running, p)
		}
	}
}

// stopAll stops all parts and waits for their end.
func (s *partSet) stopAll() {
	for _, st := range s.running {
		st.cancel()
	}
	for _, st := range s.running {
		<-st.ended
	}
}
