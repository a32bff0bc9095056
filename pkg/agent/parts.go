// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
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
	// stops. A part copes with failures of others, such as servers, by itself. Any other error ends the agent.
	Run(ctx context.Context) error
}

// A partSet runs parts, each in a stage of its own, and stops those that no configuration uses.
type partSet struct {
	group   *errgroup.Group
	running map[part]*stage
}

func newPartSet(group *errgroup.Group) *partSet {
	return &partSet{group: group, running: make(map[part]*stage)}
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

// A builder makes the parts of a configuration.
type builder struct {
	log      *slog.Logger
	token    string // identifies this agent
	dial     func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	loops    *upstream.LoopDetector // shared by all pools
	memory   *memory.Keeper
	clusters *cluster.Maker
	tap      *dnstap.Tap
	tapOn    atomic.Pointer[dnstap.Tap] // nil while log.dnstap is empty
	watchers *resolve.Watchers
	panics   atomic.Uint64 // while building a configuration

	ready, stopped <-chan struct{} // closed once the agent serves, and once it applies no configuration any more

	kernelHas func(name []byte, rrtype uint16) bool // see kernelHits.has
}

// useTap sends messages to another dnstap collector, or to none.
func (b *builder) useTap(to string) {
	if b.tap.Send(to); to == "" {
		b.tapOn.Store(nil)
	} else {
		b.tapOn.Store(b.tap)
	}
}

// poolConfig returns what the pools of a configuration have in common.
func (b *builder) poolConfig(cfg *config.Config, zone []byte, label string) upstream.Config {
	own := cfg.Listen
	return upstream.Config{
		LoopDetector: b.loops, Zone: zone, Dial: b.dial, Mark: mark(cfg), Log: b.log.With("zone", label), Tap: &b.tapOn,
		Self: func(addr netip.AddrPort) bool {
			return addr.Port() == own.Port && listen.Receives(own.Addresses, addr.Addr())
		},
	}
}

// mark returns the mark of upstream sockets: the agent's own rules leave marked packets alone.
func mark(cfg *config.Config) uint32 {
	if cfg.Intercept.Manage {
		return rules.Mark
	}
	return 0
}
