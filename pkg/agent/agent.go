// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/rights"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// Options is what an agent is made from.
type Options struct {
	File    string         // configuration file, followed while the agent runs; empty: none
	Role    config.Role    // whose defaults hold: an agent's or a central resolver's
	Config  *config.Config // the configuration when there is no file; nil: the defaults
	Version string
	Log     io.Writer // takes the log
	// Dial opens the sockets to upstreams; nil: as the net package does.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Settled, if not nil, is called once sockets and link are there, with the rights
	// that the agent goes on to need: the others can be given up. Its error is logged.
	Settled func(keep []rights.Right) error
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
	loops     *upstream.Loops // of all pools
	node      *node           // nil: the node is left as it is
	snapshots *snapshots
	resolver  *resolve.Resolver
	udp       []*server.UDP
	tcp       []*server.TCP
	admin     *admin.Server // nil: none is configured
	ready     chan struct{}
	watcher   *config.Watcher // nil: no file
	running   atomic.Pointer[running]
	requests  chan request // reloads, taken by Run one at a time
	stopped   chan struct{}
	reloads   reloadState
}

// New reads the configuration and builds the agent. It opens no socket and
// starts no goroutine.
func New(o Options) (*Agent, error) { return newOn(thisMachine{}, o) }

func newOn(m machine, o Options) (*Agent, error) {
	a := &Agent{
		options: o, started: time.Now(), token: newToken(), machine: m,
		loops: upstream.NewLoops(nil, time.Now),
		ready: make(chan struct{}), requests: make(chan request), stopped: make(chan struct{}),
	}
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	a.memory = newMemory(a.log)
	a.memory.use(context.Background(), &cfg)
	if a.node, err = a.newNode(cfg); err != nil {
		return nil, err
	}
	r, err := a.build(cfg, nil)
	if err != nil {
		return nil, err
	}
	a.snapshots = newSnapshots(a.token, a.log)
	a.snapshots.load(r)
	plan, err := a.plan(r)
	if err != nil {
		return nil, err
	}
	a.resolver, err = resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader, Log: a.log})
	if err != nil {
		return nil, err
	}
	a.running.Store(r)
	a.reloads.succeeded(a.started)
	if err := a.makeServers(cfg); err != nil {
		return nil, err
	}
	return a, nil
}

// load reads the configuration, makes the log that it asks for, and begins to
// watch the file before it is read, so that no change falls between the two.
func (a *Agent) load() (config.Config, error) {
	cfg := config.Default(a.options.Role)
	if a.options.Config != nil {
		cfg = *a.options.Config
	}
	var err, watchErr error
	if a.options.File != "" {
		a.watcher, watchErr = config.NewWatcher(config.WatcherConfig{
			Path:    a.options.File,
			Role:    a.options.Role,
			Changed: a.Reload,
			Log:     slog.New(slog.DiscardHandler),
		})
		cfg, err = config.Load(a.options.File, a.options.Role)
	}
	if err = cmp.Or(err, watchErr); err != nil {
		return cfg, err
	}
	a.sink = newSwitchable(a.options.Log, cfg.Log)
	a.log = slog.New(a.sink)
	return cfg, nil
}

// newToken is 32 random bits in hexadecimal.
func newToken() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// NewLane implements [server.Handler].
func (a *Agent) NewLane() server.Lane { return a.resolver.NewLane() }

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
			Addr: addr, FreeBind: ahead, Handler: handler, Drain: cfg.Limits.Deadline + time.Second, Log: a.log,
			Readers: share.readers, ReceiveBuffer: share.buffer(),
		})
		if err != nil {
			return err
		}
		tcp, err := server.NewTCP(server.TCPConfig{
			Addr: addr, FreeBind: ahead, Handler: handler, Log: a.log,
			MaxSessions: sessions, MaxPerClient: perClient,
			Idle: cfg.Limits.TCPIdle, DrainTimeout: cfg.Limits.Deadline + time.Second,
		})
		if err != nil {
			return err
		}
		a.udp, a.tcp = append(a.udp, udp), append(a.tcp, tcp)
	}
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
		Metrics:  series,
		Ready:    a.notReady,
		Status:   func() any { return a.Status() },
		Cache:    a.cachePages(),
		Log:      a.log,
	})
	return err
}

// Listen opens every socket. After an error none stays open.
func (a *Agent) Listen(ctx context.Context) (err error) {
	port := a.Config().Listen.Port
	defer func() {
		if err != nil {
			a.close()
			a.node.close()
		}
	}()
	if err := a.node.open(ctx); err != nil {
		return err
	}
	for i := range a.udp {
		if err := a.udp[i].Listen(ctx); err != nil {
			return listenProblem(err, port)
		}
		if err := a.tcp[i].Listen(ctx); err != nil {
			return listenProblem(err, port)
		}
	}
	if a.admin == nil {
		return nil
	}
	if err := a.admin.Listen(ctx); err != nil {
		return adminProblem(fmt.Errorf("admin server: %w", err), a.Config().Admin)
	}
	return nil
}

// close gives up the sockets of an agent that does not run.
func (a *Agent) close() {
	for i := range a.udp {
		a.udp[i].Close()
		a.tcp[i].Close()
	}
	if a.admin != nil {
		a.admin.Close()
	}
}

// Ready is closed once the agent serves.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

func (a *Agent) notReady() error {
	select {
	case <-a.ready:
	default:
		return errors.New("starting")
	}
	if c := a.running.Load().cluster; !c.inSync() {
		return fmt.Errorf("the cluster zone is not in sync: %s%s", c.why(), c.meanwhile(time.Now()))
	}
	return a.node.notReady()
}

// busy is the longest time that a reader has been at one batch of queries.
func (a *Agent) busy() time.Duration {
	now, longest := time.Now(), time.Duration(0)
	for _, u := range a.udp {
		longest = max(longest, u.Busy(now))
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
// pools, the admin server, and what is to go of link and rules go last. Listen must
// have been called.
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
	if a.admin != nil {
		under.Go(func() error { return a.admin.Run(below) })
	}

	// Queries wait in the sockets' buffers for so long: better than to be told that
	// the zone is not ready by one that will be in a moment.
	_ = first.cluster.synced(ctx, headStart)
	err := a.node.setup(ctx)
	if err == nil {
		a.settled(ctx)
		under.Go(func() error {
			err := a.node.run(below)
			if err != nil {
				fail() // in order: what keeps link and rules is gone
			}
			return err
		})
		err = a.serve(ctx, parts)
	}
	stopBelow()
	err = errors.Join(err, under.Wait())
	a.saveLast(ctx)
	a.node.end(ctx)
	a.close() // what has not run
	return err
}

// serve answers queries until ctx ends or a part fails, and then what was accepted.
func (a *Agent) serve(ctx context.Context, parts *taskSet) error {
	// The servers stop once the queries go elsewhere.
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	drain := a.Config().Limits.Deadline + time.Second
	defer context.AfterFunc(ctx, func() {
		a.node.leave(ctx, drain)
		stop()
	})()
	serving, running := errgroup.WithContext(answering)
	for i := range a.udp {
		serving.Go(func() error { return a.udp[i].Run(running) })
		serving.Go(func() error { return a.tcp[i].Run(running) })
	}
	serving.Go(func() error {
		a.takeReloads(running, parts)
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
	if a.watcher != nil {
		serving.Go(func() error { return a.watcher.Run(running) })
	}
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
	keep := a.node.needs()
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
