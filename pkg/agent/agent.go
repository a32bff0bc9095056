// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/rand"
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
	"github.com/nodecache/node-cache/pkg/server"
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
}

// An Agent is one node's DNS cache, or a cluster's central resolver.
type Agent struct {
	options  Options
	sink     *switchable
	log      *slog.Logger
	started  time.Time
	resolver *resolve.Resolver
	udp      []*server.UDP
	tcp      []*server.TCP
	admin    *admin.Server // nil: none is configured
	ready    chan struct{}
	watcher  *config.Watcher // nil: no file
	running  atomic.Pointer[running]
	requests chan request // reloads, taken by Run one at a time
	stopped  chan struct{}
	reloads  reloadState
}

// New reads the configuration and builds the agent. It opens no socket and
// starts no goroutine.
func New(o Options) (*Agent, error) {
	a := &Agent{
		options: o, started: time.Now(),
		ready: make(chan struct{}), requests: make(chan request), stopped: make(chan struct{}),
	}
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	r, err := a.build(cfg, nil)
	if err != nil {
		return nil, err
	}
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

// NewLane implements [server.Handler].
func (a *Agent) NewLane() server.Lane { return a.resolver.NewLane() }

func (a *Agent) makeServers(cfg config.Config) error {
	for _, ip := range cfg.Listen.Addresses {
		addr := netip.AddrPortFrom(ip, cfg.Listen.Port)
		udp, err := server.NewUDP(server.UDPConfig{Addr: addr, Handler: a, Drain: cfg.Limits.Deadline + time.Second, Log: a.log})
		if err != nil {
			return err
		}
		tcp, err := server.NewTCP(server.TCPConfig{
			Addr: addr, Handler: a, Log: a.log,
			MaxSessions: cfg.Limits.TCPSessions, MaxPerClient: cfg.Limits.TCPPerClient,
			Idle: cfg.Limits.TCPIdle, DrainTimeout: cfg.Limits.Deadline + time.Second,
		})
		if err != nil {
			return err
		}
		a.udp, a.tcp = append(a.udp, udp), append(a.tcp, tcp)
	}
	if !cfg.Admin.Address.IsValid() {
		return nil
	}
	series, err := a.metricsHandler()
	if err != nil {
		return err
	}
	a.admin, err = admin.New(admin.Config{
		Addr:    cfg.Admin.Address,
		Metrics: series,
		Ready:   a.notReady,
		Status:  func() any { return a.Status() },
		Log:     a.log,
	})
	return err
}

// Listen opens every socket. After an error none stays open.
func (a *Agent) Listen(ctx context.Context) (err error) {
	port := a.Config().Listen.Port
	defer func() {
		if err != nil {
			a.close()
		}
	}()
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
		return listenProblem(fmt.Errorf("admin server: %w", err), a.Config().Admin.Address.Port())
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
		return fmt.Errorf("the cluster zone is not in sync: %s", c.why())
	}
	return nil
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

// Run serves until ctx ends, then stops in order: readers take no more, what was
// accepted is answered, and the upstream pools and the admin server go last.
// Listen must have been called.
func (a *Agent) Run(ctx context.Context) error {
	// What the servers still need while they drain outlives ctx.
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	var under errgroup.Group
	parts := newKeeper(below, under.Go)
	first := a.running.Load()
	parts.start(first) //nolint:contextcheck // the keeper has the context of its tasks
	under.Go(func() error { return a.resolver.Run(below) })
	if a.admin != nil {
		under.Go(func() error { return a.admin.Run(below) })
	}

	// Queries wait in the sockets' buffers for so long: better than to be told that
	// the zone is not ready by one that will be in a moment.
	_ = first.cluster.synced(ctx, headStart)

	serving, ctx := errgroup.WithContext(ctx)
	for i := range a.udp {
		serving.Go(func() error { return a.udp[i].Run(ctx) })
		serving.Go(func() error { return a.tcp[i].Run(ctx) })
	}
	serving.Go(func() error {
		a.takeReloads(ctx, parts)
		return nil
	})
	serving.Go(func() error {
		a.learnNodeZone(ctx)
		return nil
	})
	if a.watcher != nil {
		serving.Go(func() error { return a.watcher.Run(ctx) })
	}
	a.log.InfoContext(ctx, "serving", "addresses", a.Addrs(), "version", a.options.Version)
	close(a.ready)
	err := serving.Wait()
	a.log.InfoContext(ctx, "stopped serving")
	stopBelow()
	return errors.Join(err, under.Wait())
}
