// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/retry"
)

// The lease is renewed so often that it stays held if an overloaded host loses some self-queries.
const (
	renewInterval = time.Second
	minRenewals   = 3 // minimum number of renewals within one lease; after one that failed, another follows soon
)

// maxLeaseWait bounds how long an agent that has taken over waits for its leases before it writes its rules:
// without a lease, new rules would send queries to the fallback. With a short lease the bound is a third of it,
// less than the rest of the predecessor's lease. The agent answers already, so a self-query takes milliseconds.
const maxLeaseWait = time.Second

// Config configures a [Node].
type Config struct {
	Config       config.Config        // interface and intercept change only at a restart
	Token        string               // identifies the agent in the kernel
	Host         Host                 // the kernel
	LongestBatch func() time.Duration // longest time that a reader has spent on its current batch
	Target       func() Target        // what the running configuration and the cluster ask for now
	// Cilium reads Cilium's settings. It returns nil if they are not to be had, and an error if another try may succeed. Nil: they are not.
	Cilium func(ctx context.Context) (*dataplane.CiliumSettings, error)
	// Clients returns the addresses of the clients of the last minutes. Nil: unknown.
	Clients func() []netip.Addr
	Log     *slog.Logger
}

// Target is the part of the interception that may change while the agent runs.
type Target struct {
	Fallback []netip.AddrPort // these get queries while no lease is held; empty: the endpoints set before stay, unless None
	From     string           // intercept.fallback as configured
	None     bool             // there should be no fallback: remove the current one, also if a predecessor set it
	Services []netip.Addr     // addresses of the DNS service; empty: not known yet
	Excluded bool             // the DNS service has Calico's annotation that excludes it from its data plane
	Standby  bool             // as configured: the fallback answers, if there is one
}

// A Node is the agent's state in the kernel: the link that holds its addresses, and the interception that
// redirects queries to them. A node that manages neither does nothing.
//
// The calls come in this order: Open (kernel errors are fatal), Setup (the sockets are open, so the addresses
// may be added), Run, Serve (queries are answered, so the lease may be taken), Leave (the lease is released,
// late queries are answered), End (link and rules are removed).
type Node struct {
	cfg    Config
	config *config.Config // the field Config of cfg
	log    *slog.Logger

	link         Link              // nil: not managed
	backend      intercept.Backend // nil: not managed
	dataPlane    dataplane.Found   // set by Open
	traffic      traffic           // of the DNS service
	cilium       ciliumWatcher     // beside dataPlane, because it changes
	podsWay      podsWay           // the same
	old          oldRules          // rules that predecessors left in other backends; found by Setup
	leaseWait    time.Duration     // how long the first rules wait for leases; 0: not at all; set by Setup and TookOver
	predecessors []string          // tokens of the agents that handed over to this one; set by TookOver
	changed      chan struct{}     // capacity 1: holds a value when Target may return something else
	closing      sync.Once         // closes backend once

	leaveOnce sync.Once // runs release once; later callers of Leave wait for the first

	mu      sync.Mutex        // guards the fields below
	serving bool              // Serve was called
	left    bool              // Leave or Yield was called
	keeper  *intercept.Keeper // nil: not created yet, or not managed

	handedOver   bool      // another agent has taken over
	leaseExpiry  time.Time // when the leases of the agent that handed over (this one or its predecessor) have expired; zero: none
	otherBackend bool      // the successor uses another backend, or none
}

// New returns the node of a configuration. It changes nothing in the kernel.
func New(c Config) (*Node, error) {
	n := &Node{
		cfg: c, config: &c.Config, log: c.Log, changed: make(chan struct{}, 1),
		old: oldRules{host: c.Host, addresses: c.Config.Listen.Addresses, log: c.Log},
		cilium: ciliumWatcher{
			host: c.Host, log: c.Log, now: time.Now, addresses: c.Config.Listen.Addresses, clients: c.Clients, read: c.Cilium,
		},
	}
	n.podsWay = podsWay{host: c.Host, log: c.Log, now: time.Now, cilium: &n.cilium}
	if n.cilium.clients == nil {
		n.cilium.clients = func() []netip.Addr { return nil }
	}
	n.traffic.config, n.traffic.found = &n.config.Intercept, &n.dataPlane
	if !n.config.Interface.Manage {
		return n, nil
	}
	var err error
	n.link, err = c.Host.NewLink(netif.Config{
		Name: n.config.Interface.Name, Kind: netif.Kind(n.config.Interface.Kind), Addresses: n.config.Listen.Addresses,
		Owner: c.Token, Log: c.Log, Now: time.Now,
		// Cilium takes addresses on lo and on a dummy for the node's, and those on a bridge for those of the world.
		NoBridge: func() bool { on, err := c.Host.OnCilium(); return on && err == nil },
	})
	if err != nil {
		return nil, fmt.Errorf("interface: %w", err)
	}
	return n, nil
}

// Managed reports whether the agent manages link or interception.
func (n *Node) Managed() bool { return n.config.Interface.Manage || n.config.Intercept.Manage }

// Open detects the data plane and opens the backend of the rules. It changes nothing in the kernel.
func (n *Node) Open(ctx context.Context) error {
	if !n.Managed() {
		return nil
	}
	if missing := n.cfg.Host.MissingCapabilities(); len(missing) > 0 {
		return &hint.Error{
			Err:  fmt.Errorf("interface and intercept: missing capability: %s", missing),
			Hint: "run as root, or give the container securityContext.capabilities.add: [NET_ADMIN, NET_BIND_SERVICE]",
		}
	}
	if !n.config.Intercept.Manage {
		return nil
	}
	var err error
	if n.dataPlane, err = n.cfg.Host.DetectDataPlane(ctx); err != nil {
		return fmt.Errorf("intercept: detecting the data plane: %w", err)
	}
	n.cilium.present = n.dataPlane.Proxy == dataplane.Cilium
	name, why := n.dataPlane.Backend, n.dataPlane.Reason
	switch n.config.Intercept.Backend {
	case config.BackendNftables:
		name, why = dataplane.BackendNFTables, "set by intercept.backend"
	case config.BackendIptables:
		if name == dataplane.BackendNFTables {
			name = "" // the backend detects the variant
		}
		why = "set by intercept.backend"
	default:
	}
	if n.backend, err = n.cfg.Host.OpenBackend(name, n.log); err != nil {
		return &hint.Error{
			Err:  fmt.Errorf("intercept: %w", err),
			Hint: "set intercept.backend to nftables or iptables; `node-cache doctor` shows what this node supports",
		}
	}
	n.podsWay.open(n.backend, n.dataPlane)
	if chosen, ok := n.backend.(interface{ Reason() string }); ok && name == "" {
		why += ", and " + chosen.Reason()
	}
	n.log.InfoContext(ctx, "interception set up", "mode", n.config.Intercept.Mode, "backend", n.backend.String(), "why", why,
		"data_plane", n.dataPlane.Proxy, "evidence", n.dataPlane.Evidence)
	if !n.traffic.mayIntercept() {
		n.log.ErrorContext(ctx, "service address cannot be intercepted on this node", "why", n.dataPlane.Note)
	}
	return nil
}

// RequiredCapabilities returns the capabilities that n needs while it runs.
func (n *Node) RequiredCapabilities() []cap.Value {
	switch {
	case !n.Managed():
		return nil
	case n.backend != nil && n.backend.String() != dataplane.BackendNFTables, slices.Contains(n.old.backends, backendIPTables):
		return []cap.Value{capabilities.NetAdmin, capabilities.NetRaw} // both variants open a raw socket, one of them for ipsets
	default:
		return []cap.Value{capabilities.NetAdmin}
	}
}

// Setup adds the addresses to the link, and finds or removes the rules of predecessors, see oldRules. The sockets must be open: queries
// to an address without a listener fail. handed means that a predecessor still reads the same sockets.
func (n *Node) Setup(ctx context.Context, handed bool) error {
	if !n.Managed() {
		return nil
	}
	if handed {
		n.leaseWait = min(maxLeaseWait, n.config.Intercept.Lease/3)
	}
	_, used := n.Kept()
	n.old.find(ctx, used)
	if handed && used == "" { // the predecessor still answers, and removes its rules itself
		n.old.backends = nil
	}
	if used == "" { // otherwise replacingBackend removes them later: if the agent is killed before, the old rules still work
		if err := n.old.remove(ctx); err != nil {
			n.old.backends = nil
			n.old.warn(ctx, err)
		}
	}
	if n.link == nil {
		return nil
	}
	err := n.link.Setup(ctx)
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // the agent stops before it served: no failure
	}
	if stats := n.link.Stats(); err != nil && len(stats.Held) > 0 && len(stats.Missing) > 0 { // such as a node without IPv6: Run tries again
		n.log.WarnContext(ctx, "adding addresses to the link failed", "err", err)
		err = nil
	}
	if err != nil {
		return &hint.Error{
			Err:  fmt.Errorf("interface: %w", err),
			Hint: "set another interface.kind or interface.name; `ip address` shows which link has the address",
		}
	}
	return nil
}

// Run maintains link and rules until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if n.link != nil {
		g.Go(func() error { return n.link.Run(ctx) })
	}
	if n.backend != nil && n.traffic.mayIntercept() {
		g.Go(func() error { return n.intercept(ctx, g) })
		if n.config.Intercept.Mode == config.ModeLinkLocal && n.cilium.read != nil {
			g.Go(func() error {
				n.cilium.run(ctx)
				return nil
			})
		}
	}
	return g.Wait()
}

// intercept creates the keeper of the rules once the service addresses are known, and passes changes on to
// it.
func (n *Node) intercept(ctx context.Context, g *errgroup.Group) error {
	for {
		now := n.cfg.Target()
		keeper := n.currentKeeper()
		possible := !n.traffic.bypassed() || n.traffic.isExcluded(&now)
		if keeper == nil && possible && (n.config.Intercept.Mode == config.ModeLinkLocal || len(now.Services) > 0) {
			var err error
			if keeper, err = n.newKeeper(ctx, now); err != nil {
				return fmt.Errorf("intercept: %w", err)
			}
			setFallback(keeper, &now) // before it writes rules
			g.Go(func() error { return keeper.Run(ctx) })
		} else if keeper != nil {
			setFallback(keeper, &now)
			n.setStandby(ctx, keeper, &now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		}
	}
}

// setFallback sets the fallback of the rules.
func setFallback(keeper *intercept.Keeper, now *Target) {
	if now.None {
		keeper.ClearFallback()
	} else {
		keeper.SetFallback(now.Fallback)
	}
}

// setStandby releases the leases while the configuration has standby and another server answers, and takes them otherwise.
func (n *Node) setStandby(ctx context.Context, keeper *intercept.Keeper, now *Target) {
	answered := !n.traffic.fallsBack() || len(keeper.Stats().Fallback) > 0
	on, before := now.Standby && answered, keeper.Stats().Standby
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := keeper.SetStandby(ctx, on, n.config.Limits.Deadline+time.Second); err != nil {
		n.log.WarnContext(ctx, "releasing lease failed", "err", err, "expires_within", n.config.Intercept.Lease)
	}
	switch {
	case on && !before:
		n.log.WarnContext(ctx, "standby: the leases are released", "fallback", keeper.Stats().Fallback)
	case before && !on:
		n.log.InfoContext(ctx, "standby ended: the leases are taken")
	}
}

func (n *Node) newKeeper(ctx context.Context, now Target) (*intercept.Keeper, error) {
	if len(now.Fallback) == 0 && !now.None {
		now.Fallback = n.old.fallback
	}
	r := rules.Rules{Owner: n.cfg.Token, Addresses: n.config.Listen.Addresses, Port: n.config.Listen.Port}
	if n.config.Intercept.Mode == config.ModeTransparent {
		r.Mode, r.Services, r.Excluded = rules.Transparent, now.Services, n.traffic.isExcluded(&now)
	}
	if r.FallsBack() {
		r.Fallback = now.Fallback
	}
	n.traffic.excluded.Store(r.Excluded)
	if admin := n.config.Admin.Address; slices.Contains(r.Addresses, admin.Addr()) {
		r.Admin = admin.Port()
	}
	if now.Standby {
		n.leaseWait = 0
	}
	backend := n.backend
	if len(n.old.backends) > 0 {
		backend = &replacingBackend{Backend: backend, old: &n.old}
	}
	prober := &intercept.Prober{Port: r.Port, Token: n.cfg.Token, Dial: n.cfg.Host.SelfQueryDialer()}
	var test func(context.Context, *rules.Rules, rules.Lease) intercept.FallbackResult
	if dial := n.cfg.Host.TestDialer(); dial != nil {
		test = (&intercept.Tester{Domain: n.config.ClusterDomain, Dial: dial}).Test
	}
	keeper, err := intercept.New(intercept.Config{
		Backend: backend, Rules: r, Lease: n.config.Intercept.Lease, Renew: min(renewInterval, n.config.Intercept.Lease/minRenewals),
		AwaitLease: n.leaseWait, Predecessors: n.predecessors, Probe: prober.Probe, Busy: n.cfg.LongestBatch, Adapt: n.podsWay.adapt,
		TestFallback: test, PodsWay: n.podsWay.of, Log: n.log, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	n.setStandby(ctx, keeper, &now)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keeper = keeper
	if n.serving && !n.left {
		keeper.Start()
	}
	return keeper, nil
}

// TargetChanged must be called when Target may return something else. It does not block.
func (n *Node) TargetChanged() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Serve allows the leases to be taken: from now on the agent answers queries.
func (n *Node) Serve() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = true
	if n.keeper != nil && !n.left {
		n.keeper.Start()
	}
}

// currentKeeper returns the keeper, nil while there is none.
func (n *Node) currentKeeper() *intercept.Keeper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeper
}

// drainDelay is how long the servers continue after the lease is released: packets that the rules let through
// just before are still on their way to the sockets.
const drainDelay = 20 * time.Millisecond

// stopTimeout bounds the kernel changes during a stop. A lock of another process must not keep a pod from
// ending.
const stopTimeout = 5 * time.Second

// Lapsed reports whether the agent has rules that intercept queries, but no lease, so that queries do not reach it.
func (n *Node) Lapsed() bool {
	keeper := n.currentKeeper()
	return keeper != nil && keeper.Stats().NoneHeldFor > 0
}

// Leave releases the lease and returns once no more queries arrive, or after a bounded time. TCP sessions
// stay with the agent for the time drain.
func (n *Node) Leave(ctx context.Context, drain time.Duration) {
	n.leaveOnce.Do(func() { n.release(ctx, drain) })
}

func (n *Node) release(ctx context.Context, drain time.Duration) {
	n.mu.Lock()
	n.left = true
	theirs := time.Until(n.leaseExpiry)
	n.mu.Unlock()
	keeper := n.currentKeeper()
	if keeper == nil {
		_ = retry.Sleep(context.WithoutCancel(ctx), theirs)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	more := drainDelay
	if err := keeper.Release(ctx, drain); err != nil {
		n.log.WarnContext(ctx, "releasing lease failed", "err", err, "expires_within", n.config.Intercept.Lease)
		more = min(n.config.Intercept.Lease, stopTimeout) // queries arrive until the lease expires
	}
	_ = retry.Sleep(context.WithoutCancel(ctx), max(more, theirs))
}

// End leaves the node as intercept.onExit says. No task of the node may run.
func (n *Node) End(ctx context.Context) {
	n.mu.Lock()
	handedOver, lapse, foreign := n.handedOver, n.leaseExpiry, n.otherBackend
	n.mu.Unlock()
	defer n.Close()
	if handedOver {
		// The kernel removes nftables leases together with their set, so the backend is closed only once the successor has
		// had time to take its own lease.
		_ = retry.Sleep(context.WithoutCancel(ctx), time.Until(lapse))
		if foreign {
			n.removeUnmaintainedRules(ctx)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	settings := n.config.Intercept
	settings.ServiceExcluded = settings.ServiceExcluded || n.traffic.excluded.Load()
	if !settings.Manage || settings.Exit() == config.ExitRemove {
		n.remove(ctx)
	}
}

// remove removes first the rules, then the link: queries redirected to a missing address would each run into
// a timeout.
func (n *Node) remove(ctx context.Context) {
	if keeper := n.currentKeeper(); keeper != nil { // without a keeper there are no rules
		err := keeper.Remove(ctx)
		switch {
		case errors.Is(err, rules.ErrOwned):
			n.log.InfoContext(ctx, "rules left to the newer agent")
			return // the link stays too: the newer agent uses it
		case err != nil:
			n.log.ErrorContext(ctx, "removing rules failed", "err", err, "hint", "run `node-cache cleanup` on the node")
		}
	}
	if n.link == nil {
		return
	}
	// Rules that could not be removed in time are no reason to keep the link.
	switch err := n.link.Remove(context.WithoutCancel(ctx)); {
	case errors.Is(err, netif.ErrOwned):
		n.log.InfoContext(ctx, "link left to the newer agent")
	case err != nil:
		n.log.ErrorContext(ctx, "removing link failed", "err", err, "hint", "run `node-cache cleanup` on the node")
	}
}

// Close closes the backend. It may be called again.
func (n *Node) Close() {
	if n.backend == nil {
		return
	}
	n.closing.Do(func() {
		if err := n.backend.Close(); err != nil {
			n.log.Warn("closing rules backend failed", "err", err)
		}
	})
}

// Kept returns what this agent maintains: the link, and the backend of the rules.
func (n *Node) Kept() (link bool, rules string) {
	if n.backend != nil && n.traffic.mayIntercept() {
		rules = n.backend.String()
	}
	return n.link != nil, rules
}

// Yield leaves the node to the agent that has taken over. The lease stays, because the successor renews it,
// and so do link and rules. Rules that the successor does not maintain would redirect its queries, so they
// are removed. The tasks of link and rules are ending when Yield is called.
func (n *Node) Yield(ctx context.Context, claim handover.Claim) {
	n.leaveOnce.Do(func() {}) // the lease stays
	_, rules := n.Kept()
	n.mu.Lock()
	n.left, n.handedOver, n.otherBackend = true, true, claim.Rules != rules
	n.leaseExpiry = n.leaseEnd()
	n.mu.Unlock()
	if claim.Rules == "" {
		n.removeUnmaintainedRules(ctx)
	}
}

// TookOver notes that the agent of that token has handed the node over, or has ended (gone). Its leases
// remain and cannot be released. If it has ended, its rules redirect queries to the fallback already, so
// there is no reason to wait for a lease.
func (n *Node) TookOver(from string, gone bool) {
	n.predecessors = []string{from} // the keeper is created later
	if gone {
		n.leaseWait = 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaseExpiry = n.leaseEnd()
}

// leaseEnd returns when a lease that is renewed now has expired, but at most stopTimeout from now.
func (n *Node) leaseEnd() time.Time {
	if !n.Managed() {
		return time.Time{}
	}
	return time.Now().Add(min(n.config.Intercept.Lease, stopTimeout))
}

// removeUnmaintainedRules removes the rules that the successor does not maintain.
func (n *Node) removeUnmaintainedRules(ctx context.Context) {
	keeper := n.currentKeeper()
	if keeper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := keeper.Remove(ctx); err != nil {
		n.log.ErrorContext(ctx, "removing rules after handover failed", "err", err,
			"hint", "they may redirect queries; stop all agents on the node, then run `node-cache cleanup`")
	}
}

// RestoreLink sets up the link again after an agent that had set it up ended without taking over.
func (n *Node) RestoreLink(ctx context.Context) {
	if n.link == nil {
		return
	}
	if err := n.link.Setup(ctx); err != nil {
		n.log.WarnContext(ctx, "restoring link failed", "err", err)
	}
}
