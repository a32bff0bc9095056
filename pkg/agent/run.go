// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run serves until ctx ends. Listen must have been called.
//
// Run reads as the life of the process: its parts start from top to bottom, and the deferred calls stop them
// from bottom to top. So queries first go to the fallback, then the servers answer what they have accepted,
// and then the configuration's watch, the upstream pools, the rules, the link, and the admin server end. An
// agent that has handed over leaves rules and link, and waits for the end of ctx before the admin server ends.
func (a *Agent) Run(ctx context.Context) (err error) {
	group, ctx := errgroup.WithContext(ctx) // from here on, ctx also ends when a task fails
	defer func() { err = errors.Join(err, group.Wait()) }()
	defer a.close() // parts that never ran
	stopAdmin := a.runAdmin(ctx)
	defer func() { err = errors.Join(err, a.handover.idle(ctx), stopAdmin()) }()
	defer a.node.End(ctx)
	defer a.saveLast(ctx)

	parts := newPartSet(group)
	defer parts.stopAll()
	parts.start(ctx, a.running.Load())
	defer startStage(ctx, group, a.resolver.Run, noError(a.keepSnapshots), noError(a.watchSuspends)).stop()
	reloads := startStage(ctx, group, noError(func(ctx context.Context) { a.applyReloads(ctx, parts) }), a.runSource)
	defer reloads.stop()

	defer a.handover.close() // drops a takeover that did not complete
	a.awaitCluster(ctx)
	if ctx.Err() != nil { // a predecessor continues
		return nil
	}
	if err := a.node.Setup(ctx, a.handover.takesOver()); err != nil || ctx.Err() != nil {
		return err
	}
	a.dropCapabilities(ctx)
	keeper := startStage(ctx, group, a.runNode)
	defer keeper.stop()
	a.handover.stopNode = keeper.cancel

	defer a.log.InfoContext(ctx, "stopped serving")
	servers := startStage(ctx, group, a.serverTasks()...)
	defer servers.stop()
	a.handover.takeOver(ctx)
	if a.admin != nil {
		a.admin.Open()
	}
	defer startStage(ctx, group, a.handover.run, noError(a.runForeignSockets), noError(a.watchNodeZone),
		noError(a.takeLease), noError(a.watchMemoryLimit)).stop()
	defer a.leave(ctx)
	a.log.InfoContext(ctx, "serving", "addresses", a.Addrs(), "version", a.options.Version)
	close(a.ready)
	a.serveUntilEnd(ctx, servers, reloads)
	return nil
}

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

// A partSet runs parts, each in a stage of its own, and stops those that no configuration uses.
type partSet struct {
	group   *errgroup.Group
	running map[part]*stage
}

func newPartSet(group *errgroup.Group) *partSet {
	return &partSet{group: group, running: make(map[part]*stage)}
}

// start runs the parts of r that do not run yet.
func (s *partSet) start(ctx context.Context, r *generation) {
	for _, p := range r.parts() {
		if s.running[p] == nil {
			s.running[p] = startStage(ctx, s.group, p.Run)
		}
	}
}

// stopUnused ends every part that r does not use. Queries in flight on an ended pool are still answered.
func (s *partSet) stopUnused(r *generation) {
	used := r.parts()
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

// runAdmin runs the admin server, if there is one, until stop is called. Its error does not end the agent.
func (a *Agent) runAdmin(ctx context.Context) (stop func() error) {
	if a.admin == nil {
		return func() error { return nil }
	}
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- a.admin.Run(ctx) }() // joined by stop
	return func() error {
		end()
		return <-ended
	}
}

// runSource watches the configuration's source, if there is one.
func (a *Agent) runSource(ctx context.Context) error {
	if a.source == nil {
		return nil
	}
	return a.source.Run(ctx)
}

// firstSyncWait bounds the wait for the first cluster sync before the agent serves. It is long enough for a
// folder or a small cluster, and shorter than a client's retry.
const firstSyncWait = 200 * time.Millisecond

// awaitCluster waits for the first cluster sync: as long as a predecessor answers, else for a moment. Queries
// wait in the socket buffers meanwhile. The delay is better than a SERVFAIL for a cluster name that is known
// shortly after.
func (a *Agent) awaitCluster(ctx context.Context) {
	if a.handover.takesOver() {
		a.handover.awaitSync(ctx)
		return
	}
	_ = a.running.Load().cluster.awaitSync(ctx, firstSyncWait)
}

// dropCapabilities drops the capabilities that the agent no longer needs.
func (a *Agent) dropCapabilities(ctx context.Context) {
	if a.options.DropCapabilities == nil {
		return
	}
	keep := append(a.node.RequiredCapabilities(), a.handover.requiredCapabilities()...)
	if err := a.options.DropCapabilities(keep); err != nil {
		a.log.WarnContext(ctx, "capabilities not dropped", "err", err)
		return
	}
	a.log.DebugContext(ctx, "capabilities dropped", "kept", keep)
}

// runNode maintains link and rules, once no other agent does.
func (a *Agent) runNode(ctx context.Context) error {
	if !a.handover.awaitClear(ctx) {
		return nil
	}
	return a.node.Run(ctx)
}

// serverTasks returns the tasks that read queries.
func (a *Agent) serverTasks() []func(context.Context) error {
	list := make([]func(context.Context) error, 0, 2*len(a.udp))
	for i := range a.udp {
		list = append(list, a.udp[i].Run, a.tcp[i].Run)
	}
	return list
}

func (a *Agent) runForeignSockets(ctx context.Context) {
	a.foreignSockets.Run(ctx, a.handover.handedOver())
}

// zoneWait bounds the lease's wait for the first cluster sync while a fallback answers. After it the agent
// takes the queries and forwards the names that it does not know: other names must not wait for an API
// server.
const zoneWait = 10 * time.Second

// takeLease takes the lease once the zone is known, if only from a snapshot, or after zoneWait without it.
// Until then the fallback answers the node's queries. Without a fallback they arrive here, lease or not.
func (a *Agent) takeLease(ctx context.Context) {
	if c := a.running.Load().cluster; a.node.Managed() && !c.restored() {
		_ = c.awaitSync(ctx, zoneWait)
	}
	if ctx.Err() == nil {
		a.node.Serve()
	}
}

// serveUntilEnd waits until ctx ends, or until another agent has taken over and the TCP sessions have ended.
// That agent watches the configuration.
func (a *Agent) serveUntilEnd(ctx context.Context, servers, reloads *stage) {
	select {
	case <-ctx.Done():
		return
	case <-a.handover.handedOver():
	}
	reloads.cancel()
	select {
	case <-ctx.Done():
	case <-servers.ended:
	}
}

// leave makes queries go to the fallback, or to a successor that has the sockets. The servers continue until
// that is done.
func (a *Agent) leave(ctx context.Context) {
	a.handover.announceExit(ctx)
	a.node.Leave(ctx, a.Config().Limits.Deadline+time.Second)
}
