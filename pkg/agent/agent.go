// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	origin "github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// Options is what an agent is made from.
type Options struct {
	File    string         // configuration file, followed while the agent runs; empty: none
	Source  Source         // other places that the configuration comes from
	Role    config.Role    // whose defaults hold: an agent's or a central resolver's
	Config  *config.Config // the configuration when there is no source; nil: the defaults
	Version string
	Log     io.Writer // takes the log
	// Dial opens the sockets to upstreams; nil: as the net package does.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Settled, if not nil, is called once sockets and link are there, with the rights
	// that the agent goes on to need: the others can be given up. Its error is logged.
	Settled func(keep []capabilities.Capability) error
	// Wrap, if not nil, gives what the servers hand queries to in place of the agent,
	// which it is given: a test makes an agent stall with it.
	Wrap func(server.Handler) server.Handler
}

// An Agent is one node's DNS cache, or a cluster's central resolver.
type Agent struct {
	options   Options
	sink      *switchable
	log       *slog.Logger
	started   time.Time
	token     string // names this agent to itself, and what it puts into the kernel
	machine   machine
	memory    *memory
	loops     *upstream.LoopDetector // of all pools
	node      *node                  // nil: the node is left as it is
	snapshots *snapshots
	hand      *hand // nil: sockets are neither taken over nor handed over
	resolver  *resolve.Resolver
	udp       []*server.UDP
	tcp       []*server.TCP
	foreign   *foreign
	admin     *admin.Server // nil: none is configured
	ready     chan struct{}
	source    *origin.Source // of the configuration; nil: it is built in
	badStart  error          // why the source's configuration is not in use at the start; nil: it is
	running   atomic.Pointer[running]
	requests  chan request // reloads, taken by Run one at a time
	stopped   chan struct{}
	reloads   reloadState
	panics    atomic.Uint64 // in building what a configuration asks for

	serves  bool           // the source may be told what is in use; of the goroutine that takes reloads
	applied *config.Config // what is in use, nil if that is not what the source has; likewise
}

// New reads the configuration and builds the agent. It opens no socket but one to an agent
// that it is to take over from, and starts no goroutine.
func New(o Options) (*Agent, error) { return NewContext(context.Background(), o) }

// NewContext is New for a configuration in the API, which may take half a minute to read, or until ctx ends.
func NewContext(ctx context.Context, o Options) (*Agent, error) {
	return newWithin(ctx, thisMachine{}, o)
}

func newOn(m machine, o Options) (*Agent, error) { return newWithin(context.Background(), m, o) }

func newWithin(ctx context.Context, m machine, o Options) (*Agent, error) {
	a := &Agent{
		options: o, started: time.Now(), token: newToken(), machine: m,
		loops: upstream.NewLoopDetector(nil, time.Now),
		ready: make(chan struct{}), requests: make(chan request), stopped: make(chan struct{}),
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	r, plan, err := a.first(ctx, cfg)
	if err != nil && a.source != nil && a.badStart == nil {
		if cfg, err = a.fallBack(ctx, err); err == nil {
			r, plan, err = a.first(ctx, cfg)
		}
	}
	if err != nil {
		return nil, err
	}
	a.resolver, err = resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader, Log: a.log})
	if err != nil {
		a.hand.close()
		return nil, err
	}
	a.running.Store(r)
	a.reloads.succeeded(a.started)
	if a.badStart != nil {
		a.refuse(ctx, a.badStart)
	}
	if err := a.makeServers(cfg); err != nil {
		a.hand.close()
		return nil, err
	}
	return a, nil
}

// first builds what the first configuration asks for, and what is known from before.
func (a *Agent) first(ctx context.Context, cfg config.Config) (r *running, plan *resolve.Plan, err error) {
	a.memory = newMemory(a.log)
	a.memory.use(ctx, &cfg)
	if a.node, err = a.newNode(cfg); err != nil {
		return nil, nil, err
	}
	if r, err = a.build(cfg, nil); err != nil { //nolint:contextcheck // it only reads files, and nothing in it waits
		return nil, nil, err
	}
	a.hand.close() // of another configuration
	if a.hand, err = a.newHand(&cfg); err != nil {
		return nil, nil, err
	}
	a.hand.meet(ctx)
	a.hand.askSnapshot(ctx, cfg.Snapshot.Folder)
	a.snapshots = newSnapshots(a.token, a.log)
	a.snapshots.load(r)
	if plan, err = a.plan(r); err != nil {
		a.hand.close()
	}
	return r, plan, err
}

// newToken is 32 random bits in hexadecimal.
func newToken() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// NewWorker implements [server.Handler].
func (a *Agent) NewWorker() server.Worker { return a.resolver.NewWorker() }

func (a *Agent) makeServers(cfg config.Config) error {
	var handler server.Handler = a
	if a.options.Wrap != nil {
		handler = a.options.Wrap(a)
	}
	ahead := cfg.Interface.Manage // the address comes once somebody listens on it
	share := a.memory.known.Load()
	sessions, perClient := share.sessions(&cfg.Limits)
	for _, ip := range cfg.Listen.Addresses {
		addr := netip.AddrPortFrom(ip, cfg.Listen.Port)
		udp, err := server.NewUDP(server.UDPConfig{
			Addr: addr, FreeBind: ahead, Handler: handler, DrainTimeout: cfg.Limits.Deadline + time.Second, Log: a.log,
			Readers: share.readers, ReceiveBuffer: share.buffer(),
		})
		if err != nil {
			return err
		}
		tcp, err := server.NewTCP(server.TCPConfig{
			Addr: addr, FreeBind: ahead, Handler: handler, Log: a.log,
			MaxSessions: sessions, MaxPerClient: perClient, MaxMemory: share.held(),
			IdleTimeout: cfg.Limits.TCPIdle, DrainTimeout: cfg.Limits.Deadline + time.Second,
		})
		if err != nil {
			return err
		}
		a.udp, a.tcp = append(a.udp, udp), append(a.tcp, tcp)
	}
	a.foreign = &foreign{udp: a.udp, tcp: a.tcp, log: a.log}
	if !cfg.Admin.Address.IsValid() && cfg.Admin.Socket == "" {
		return nil
	}
	series, err := a.metricsHandler()
	if err != nil {
		return err
	}
	a.admin, err = admin.New(admin.Config{
		Addr:     cfg.Admin.Address,
		FreeBind: ahead,
		Socket:   cfg.Admin.Socket,
		Hosts:    cfg.Admin.Hosts,
		Metrics:  series,
		Ready:    a.notReady,
		Live:     a.notAlive,
		Status:   func() any { return a.Status() },
		Cache:    a.cachePages(),
		Checks:   a.checks,
		Log:      a.log,
	})
	return err
}

// Listen opens every socket, or takes those of an agent that hands them over; where one
// does not, it waits for them. After an error none stays open. If ctx ends meanwhile the
// error is the context's, whatever the wait was for.
func (a *Agent) Listen(ctx context.Context) (err error) {
	cfg := a.Config()
	defer func() {
		if err == nil {
			return
		}
		a.hand.close()
		a.close()
		a.node.close()
		if ctx.Err() != nil {
			err = fmt.Errorf("told to end before it served: %w", ctx.Err())
		}
	}()
	if err := a.node.open(ctx); err != nil {
		return err
	}
	err = a.listen(ctx, &cfg)
	for err != nil && a.hand.retries(ctx, err) {
		err = a.listen(ctx, &cfg)
	}
	if err != nil {
		return listenProblem(err, cfg.Listen.Port)
	}
	if a.admin != nil {
		if err := a.openAdmin(ctx, cfg.Admin.Address); err != nil {
			return adminProblem(fmt.Errorf("admin server: %w", err), cfg.Admin)
		}
	}
	a.hand.dismiss() // nobody reads them here, and what comes would wait for ever
	return nil
}

// close gives up the sockets of an agent that does not run.
func (a *Agent) close() {
	a.closeDNS()
	if a.admin != nil {
		a.admin.Close()
	}
}

// Ready is closed once the agent serves.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// busy is the longest time that a reader has been at one batch of queries.
func (a *Agent) busy() time.Duration {
	now, longest := time.Now(), time.Duration(0)
	for _, u := range a.udp {
		longest = max(longest, u.BusyFor(now))
	}
	return longest
}

// Config is the configuration in use.
func (a *Agent) Config() config.Config { return a.running.Load().config }

// Addrs are the addresses that are served, after Listen.
func (a *Agent) Addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, 0, len(a.udp))
	for _, u := range a.udp {
		addrs = append(addrs, u.Addr())
	}
	return addrs
}

// AdminAddr is the admin server's address, invalid if there is none.
func (a *Agent) AdminAddr() netip.AddrPort {
	if a.admin == nil {
		return netip.AddrPort{}
	}
	return a.admin.Addr()
}

// headStart is how long serving waits for the first view of the cluster: enough for
// a folder or a small cluster, and not so long that a client would ask again.
const headStart = 200 * time.Millisecond

// Run serves until ctx ends, then stops in order: the node's queries are led
// elsewhere, readers take no more, what was accepted is answered, and the upstream
// pools, the admin server, and what is to go of link and rules go last. An agent that has
// handed over leaves link and rules, ends all but the admin server, and waits for the end
// of ctx. Listen must have been called.
func (a *Agent) Run(ctx context.Context) error {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	// What the servers still need while they drain outlives ctx.
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	var under errgroup.Group
	parts := newTaskSet(below, under.Go)
	first := a.running.Load()
	parts.start(first) //nolint:contextcheck // the set has the context of its tasks
	under.Go(func() error { return a.resolver.Run(below) })
	under.Go(func() error {
		a.keepSnapshots(below)
		return nil
	})
	under.Go(func() error {
		watchSuspends(below, asleep, a.slept)
		return nil
	})
	pages := a.servePages(ctx)
	unfollow, followed := a.followConfig(below, parts)
	defer unfollow()

	if a.hand.takes() {
		a.hand.await(ctx)
	} else {
		// Queries wait in the sockets' buffers for so long: better than to be told that
		// the zone is not ready by one that will be in a moment.
		_ = first.cluster.synced(ctx, headStart)
	}
	var err error
	begins := func() bool { return !a.hand.takes() || ctx.Err() == nil } // else another agent goes on
	if begins() {
		err = a.node.setup(ctx, a.hand.takes())
	}
	if err == nil && begins() {
		a.settled(ctx)
		keeping, stopKeeping := context.WithCancel(below)
		defer stopKeeping()
		a.hand.keeps(stopKeeping)
		under.Go(func() error {
			if !a.hand.clear(keeping) {
				return nil
			}
			err := a.node.run(keeping)
			if err != nil {
				fail() // in order: what keeps link and rules is gone
			}
			return err
		})
		err = a.serve(ctx, unfollow, followed)
	}
	a.hand.close() // what was not taken
	unfollow()
	_ = followed() // serve has the error; who does not come to serve needs no configuration
	stopBelow()
	idle := err == nil && a.hand.gave()
	if !idle {
		err = errors.Join(err, pages())
	}
	err = errors.Join(err, under.Wait())
	a.saveLast(ctx)
	a.node.end(ctx)
	if idle {
		err = errors.Join(err, a.idle(ctx), pages())
	}
	a.close() // what has not run
	return err
}

// serve answers queries until ctx ends or a part fails, and then what was accepted. The configuration is followed until
// unfollow is called, which followed waits for.
func (a *Agent) serve(ctx context.Context, unfollow func(), followed func() error) error {
	// The servers stop once the queries go elsewhere.
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	drain := a.Config().Limits.Deadline + time.Second
	defer context.AfterFunc(ctx, func() {
		a.hand.leave(ctx)
		a.node.leave(ctx, drain)
		stop()
	})()
	serving, running := errgroup.WithContext(answering)
	defer context.AfterFunc(running, unfollow)()
	serving.Go(followed)
	var servers sync.WaitGroup
	for i := range a.udp {
		servers.Add(2)
		serving.Go(func() error {
			defer servers.Done()
			return a.udp[i].Run(running)
		})
		serving.Go(func() error {
			defer servers.Done()
			return a.tcp[i].Run(running)
		})
	}
	a.hand.take(ctx)
	if a.admin != nil {
		a.admin.Open()
	}
	serving.Go(func() error { return a.hand.run(running) })
	serving.Go(func() error {
		select {
		case <-a.hand.given():
			unfollow()
			servers.Wait() // sessions go on for a while
			stop()
		case <-running.Done():
		}
		return nil
	})
	serving.Go(func() error {
		a.foreign.run(running, a.hand.given())
		return nil
	})
	serving.Go(func() error {
		a.learnNodeZone(running)
		return nil
	})
	serving.Go(func() error {
		a.takeLease(running)
		return nil
	})
	serving.Go(func() error {
		a.followMemory(running)
		return nil
	})
	serving.Go(func() error {
		a.request(request{serving: true})
		return nil
	})
	a.log.InfoContext(running, "serving", "addresses", a.Addrs(), "version", a.options.Version)
	close(a.ready)
	err := serving.Wait()
	a.node.leave(running, 0) // for when a part has failed
	a.log.InfoContext(running, "stopped serving")
	return err
}

// settled has the rights given up that are not needed any more.
func (a *Agent) settled(ctx context.Context) {
	if a.options.Settled == nil {
		return
	}
	keep := append(a.node.needs(), a.hand.needs()...)
	if err := a.options.Settled(keep); err != nil {
		a.log.WarnContext(ctx, "rights that are not needed are kept", "err", err)
		return
	}
	a.log.DebugContext(ctx, "rights given up", "kept", keep)
}

// takeLease lets the node's queries come when the zone is known, if only from a
// snapshot, or after a while on purpose without it. Until then whoever else is there
// answers them; where nobody is, they come here, lease or not.
func (a *Agent) takeLease(ctx context.Context) {
	if c := a.running.Load().cluster; a.node != nil && !c.restored() {
		_ = c.synced(ctx, zonePatience)
	}
	if ctx.Err() == nil {
		a.node.serve()
	}
}
