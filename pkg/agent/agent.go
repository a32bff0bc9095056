// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	origin "github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// Options configures an [Agent].
type Options struct {
	File    string         // configuration file, watched while the agent runs; empty: none
	Source  Source         // other places of the configuration
	Role    config.Role    // selects the defaults: an agent's or a central resolver's
	Config  *config.Config // used when there is no source; nil: the defaults
	Version string
	Log     io.Writer // receives the log
	// Dial opens the sockets to upstreams; nil: the net package's dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// DropCapabilities, if not nil, is called once sockets and link are set up. It may drop all capabilities
	// but keep, which the agent still needs. Its error is logged.
	DropCapabilities func(keep []capabilities.Capability) error
	// WrapHandler, if not nil, returns the handler that the servers use in place of the agent's own. Tests
	// use it to stall the agent.
	WrapHandler func(server.Handler) server.Handler
}

// An Agent is one node's DNS cache, or a cluster's central resolver.
type Agent struct {
	options        Options
	logHandler     *reloadableHandler
	log            *slog.Logger
	started        time.Time
	token          string // identifies this agent, also in the kernel objects that it creates
	host           node.Host
	memory         *memory
	loops          *upstream.LoopDetector // shared by all pools
	node           *node.Node
	snapshots      *snapshots
	handover       *socketHandover
	resolver       *resolve.Resolver
	udp            []*server.UDP
	tcp            []*server.TCP
	foreignSockets *node.ForeignSockets
	admin          *admin.Server // nil: not configured
	ready          chan struct{}
	source         *origin.Source // of the configuration; nil: built in
	startError     error          // why the source's configuration was refused at the start; nil: it is in use
	running        atomic.Pointer[generation]
	requests       chan *request // reloads; applyReloads handles one at a time
	stopped        chan struct{}
	reloads        reloadState
	panics         atomic.Uint64 // while building a configuration
}

// New reads the configuration and builds the agent. It starts no goroutine, and opens no socket except the
// one to a predecessor.
func New(o Options) (*Agent, error) { return NewContext(context.Background(), o) }

// NewContext is New with a context. Reading a configuration from the API may take 30 s.
func NewContext(ctx context.Context, o Options) (*Agent, error) {
	return newAgent(ctx, node.LocalHost{}, o)
}

func newOnHost(m node.Host, o Options) (*Agent, error) { return newAgent(context.Background(), m, o) }

func newAgent(ctx context.Context, m node.Host, o Options) (*Agent, error) {
	a := &Agent{
		options: o, started: time.Now(), token: newToken(), host: m,
		loops: upstream.NewLoopDetector(nil),
		ready: make(chan struct{}), requests: make(chan *request), stopped: make(chan struct{}),
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	r, plan, err := a.buildFirst(ctx, cfg)
	if err != nil && a.source != nil && a.startError == nil {
		if cfg, err = a.useLastGood(ctx, err); err == nil {
			r, plan, err = a.buildFirst(ctx, cfg)
		}
	}
	if err != nil {
		return nil, err
	}
	a.resolver, err = resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader, Log: a.log})
	if err != nil {
		a.handover.close()
		return nil, err
	}
	a.running.Store(r)
	a.reloads.succeeded(a.started)
	if a.startError != nil {
		a.refuse(ctx, a.startError)
	}
	if err := a.makeServers(cfg); err != nil {
		a.handover.close()
		return nil, err
	}
	return a, nil
}

// buildFirst builds the first configuration, and loads the snapshot.
func (a *Agent) buildFirst(ctx context.Context, cfg config.Config) (r *generation, plan *resolve.Plan, err error) {
	a.memory = newMemory(a.log)
	a.memory.update(ctx, &cfg)
	a.node, err = node.New(node.Config{
		Config: cfg, Token: a.token, Host: a.host, LongestBatch: a.longestBatch, Target: a.interceptTarget, Log: a.log,
	})
	if err != nil {
		return nil, nil, err
	}
	if r, err = a.build(cfg, noGeneration()); err != nil { //nolint:contextcheck // it reads files and never blocks
		return nil, nil, err
	}
	if a.handover, err = newHandover(a, cfg.Handover.Socket); err != nil {
		return nil, nil, err
	}
	a.handover.findPredecessor(ctx)
	a.handover.requestSnapshot(ctx, cfg.Snapshot.Folder)
	a.snapshots = newSnapshots(a.token, a.log)
	a.snapshots.load(ctx, r)
	if plan, err = a.plan(r); err != nil {
		a.handover.close()
	}
	return r, plan, err
}

// newToken returns 32 random bits in hexadecimal.
func newToken() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// NewWorker implements [server.Handler].
func (a *Agent) NewWorker() server.Worker { return a.resolver.NewWorker() }

func (a *Agent) makeServers(cfg config.Config) error {
	var handler server.Handler = a
	if a.options.WrapHandler != nil {
		handler = a.options.WrapHandler(a)
	}
	freeBind := cfg.Interface.Manage // the address is added to the link after the sockets listen
	share := a.memory.share.Load()
	sessions, perClient := share.sessions(&cfg.Limits)
	for _, ip := range cfg.Listen.Addresses {
		addr := netip.AddrPortFrom(ip, cfg.Listen.Port)
		udp, err := server.NewUDP(server.UDPConfig{
			Addr: addr, FreeBind: freeBind, Handler: handler, DrainTimeout: cfg.Limits.Deadline + time.Second, Log: a.log,
			Readers: share.readers, ReceiveBuffer: share.buffer(),
		})
		if err != nil {
			return err
		}
		tcp, err := server.NewTCP(server.TCPConfig{
			Addr: addr, FreeBind: freeBind, Handler: handler, Log: a.log,
			MaxSessions: sessions, MaxPerClient: perClient, MaxMemory: share.held(),
			IdleTimeout: cfg.Limits.TCPIdle, DrainTimeout: cfg.Limits.Deadline + time.Second,
		})
		if err != nil {
			return err
		}
		a.udp, a.tcp = append(a.udp, udp), append(a.tcp, tcp)
	}
	a.foreignSockets = &node.ForeignSockets{UDP: a.udp, TCP: a.tcp, Log: a.log}
	if !cfg.Admin.Address.IsValid() && cfg.Admin.Socket == "" {
		return nil
	}
	series, err := metrics.Handler(metrics.New(a.sample), a.log)
	if err != nil {
		return err
	}
	a.admin, err = admin.New(admin.Config{
		Addr:     cfg.Admin.Address,
		FreeBind: freeBind,
		Socket:   cfg.Admin.Socket,
		Hosts:    cfg.Admin.Hosts,
		Metrics:  series,
		Ready:    a.notReady,
		Live:     a.notAlive,
		Status:   func() any { return a.Status() },
		Cache:    status.CachePages(func() *cache.Cache { return a.running.Load().cache }, a.log),
		Checks:   a.checks,
		Log:      a.log,
	})
	return err
}

// Listen opens all sockets or takes over those of a predecessor. If a predecessor does not hand over its
// sockets, Listen waits until they are free. After an error no socket stays open. If ctx ends, the error
// wraps the context's.
func (a *Agent) Listen(ctx context.Context) (err error) {
	cfg := a.Config()
	defer func() {
		if err == nil {
			return
		}
		a.handover.close()
		a.close()
		a.node.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("stopped before serving: %w", ctx.Err())
		}
	}()
	if err := a.node.Open(ctx); err != nil {
		return err
	}
	err = a.listen(ctx, &cfg)
	for err != nil && a.handover.retryListen(ctx, err) {
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
	a.handover.discardSockets() // nothing here reads them: their queries would time out
	return nil
}

// listen opens the DNS sockets or adopts those of a predecessor. After an error none stays open.
func (a *Agent) listen(ctx context.Context, cfg *config.Config) (err error) {
	defer func() {
		if err != nil {
			a.closeDNS()
		}
	}()
	addrs := make([]netip.AddrPort, len(a.udp))
	for i, ip := range cfg.Listen.Addresses {
		addrs[i] = netip.AddrPortFrom(ip, cfg.Listen.Port)
	}
	a.handover.receiveSockets(ctx, addrs)
	for i, addr := range addrs {
		if err := a.openUDP(ctx, a.udp[i], addr); err != nil {
			return err
		}
		if err := a.openTCP(ctx, a.tcp[i], addr); err != nil {
			return err
		}
	}
	return nil
}

// openUDP makes u read adopted sockets or its own.
func (a *Agent) openUDP(ctx context.Context, u *server.UDP, addr netip.AddrPort) error {
	if files := a.handover.adopt(handover.KindUDP, addr); len(files) > 0 {
		return u.Adopt(files)
	}
	return u.Listen(ctx)
}

// openTCP makes t accept from an adopted socket or its own.
func (a *Agent) openTCP(ctx context.Context, t *server.TCP, addr netip.AddrPort) error {
	files := a.handover.adopt(handover.KindTCP, addr)
	if len(files) == 1 {
		return t.Adopt(files[0])
	}
	closeFiles(files)
	return t.Listen(ctx)
}

// openAdmin makes the admin server accept from an adopted socket or its own, and from its unix socket.
func (a *Agent) openAdmin(ctx context.Context, addr netip.AddrPort) error {
	files := a.handover.adopt(handover.KindAdmin, addr)
	if len(files) == 1 {
		if err := a.admin.Adopt(files[0]); err != nil {
			return err
		}
	} else {
		closeFiles(files)
	}
	return a.admin.Listen(ctx)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (a *Agent) closeDNS() {
	for i := range a.udp {
		a.udp[i].Close()
		a.tcp[i].Close()
	}
}

// listenProblem adds a hint to an error of opening a socket.
func listenProblem(err error, port uint16) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "another program uses the port: find it with `ss -lnptu`, or set another listen.port or listen.addresses"
	case errors.Is(err, syscall.EACCES) && port < 1024:
		hint = "ports below 1024 need root or the capability NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = "this host forbids the socket: check its seccomp, LSM, and cgroup rules"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "no interface of this host has the address; list the addresses with `ip address`"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		hint = "this host does not support that IP family"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		hint = "raise the limit of open files (ulimit -n)"
	default:
		return err
	}
	return &status.HintError{Err: err, Hint: hint}
}

// adminProblem adds a hint to an error of the admin server's sockets.
func adminProblem(err error, cfg config.Admin) error {
	switch {
	case cfg.Socket == "":
	case errors.Is(err, admin.ErrSocketTaken):
		return &status.HintError{Err: err, Hint: "another agent uses this admin.socket: set a different path for each agent"}
	case errors.Is(err, fs.ErrNotExist):
		return &status.HintError{Err: err, Hint: "the folder of admin.socket does not exist: create it, or set another path"}
	case errors.Is(err, admin.ErrNoSocket):
		return &status.HintError{Err: err, Hint: "admin.socket exists and is no socket: remove that file, or set another path"}
	}
	return listenProblem(err, cfg.Address.Port())
}

// close closes the sockets of an agent that is not running.
func (a *Agent) close() {
	a.closeDNS()
	if a.admin != nil {
		a.admin.Close()
	}
}

// Ready returns a channel that is closed once the agent serves.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// longestBatch returns the longest time that a reader has spent on its current batch of queries.
func (a *Agent) longestBatch() time.Duration {
	now, longest := time.Now(), time.Duration(0)
	for _, u := range a.udp {
		longest = max(longest, u.BusyFor(now))
	}
	return longest
}

// Config returns the configuration in use.
func (a *Agent) Config() config.Config { return a.running.Load().config }

// Addrs returns the addresses served. Listen must have been called.
func (a *Agent) Addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, 0, len(a.udp))
	for _, u := range a.udp {
		addrs = append(addrs, u.Addr())
	}
	return addrs
}

// AdminAddr returns the admin server's address. It is invalid without an admin server.
func (a *Agent) AdminAddr() netip.AddrPort {
	if a.admin == nil {
		return netip.AddrPort{}
	}
	return a.admin.Addr()
}
