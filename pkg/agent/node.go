// SPDX-License-Identifier: Apache-2.0

package agent

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

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/rules"
)

// zoneWait bounds the lease's wait for the first cluster sync while a fallback answers. After it the agent
// takes the queries and forwards the names that it does not know: other names must not wait for an API
// server.
const zoneWait = 10 * time.Second

// The lease is renewed often enough that some self-queries may be lost on an overloaded host.
const (
	renewInterval = 500 * time.Millisecond
	minRenewals   = 6 // at least, within one lease
)

// maxLeaseWait bounds how long the rules of an agent that has taken over wait for its first lease, so that no
// query goes elsewhere in between. With a short lease the bound is a third of it, which is less than what is
// left of the predecessor's lease. The agent answers already, so a self-query takes milliseconds.
const maxLeaseWait = time.Second

// A node is the agent's state in the kernel: the link that holds its addresses, and the interception that
// redirects queries to them.
//
// The calls come in this order: open (kernel errors are fatal), setup (the sockets are open, so the addresses
// may be added), serve (queries are answered, so the lease may be taken), leave (the lease is released, late
// queries are answered), end (link and rules are removed). A nil node does nothing.
type node struct {
	config       config.Config // interface and intercept change only at a restart
	owner        string
	log          *slog.Logger
	host         host
	longestBatch func() time.Duration   // longest time that a reader has spent on its current batch
	target       func() interceptTarget // what the running configuration and the cluster ask for now

	link         link              // nil: not managed
	backend      intercept.Backend // nil: not managed
	dataPlane    dataplane.Found   // set by open
	oldBackends  []string          // other backends that hold rules of a predecessor; set by setup
	oldFallback  []netip.AddrPort  // fallback of the old rules; set by setup
	leaseWait    time.Duration     // wait for leases before the first rules; set by setup and tookOver
	predecessors []string          // tokens of the agents that handed over to this one; set by tookOver
	changed      chan struct{}     // target returns something else
	closing      sync.Once         // of backend

	leaveOnce sync.Once // of leave: later callers wait for the first

	mu      sync.Mutex // guards the fields below
	serving bool
	left    bool
	keeper  *intercept.Keeper // nil: not created yet, or not managed

	handedOver   bool      // another agent has taken over
	leaseExpiry  time.Time // when the leases of the agent that handed over, this one or the predecessor, have expired
	otherBackend bool      // the successor uses another backend
}

// interceptTarget is the part of the interception that may change while the agent runs.
type interceptTarget struct {
	fallback []netip.AddrPort
	from     string       // intercept.fallback as configured
	none     bool         // no fallback is configured: the one of a predecessor must go as well
	services []netip.Addr // addresses of the DNS service; empty: not known yet
}

// newNode returns nil if cfg manages neither link nor interception.
func (a *Agent) newNode(cfg config.Config) (*node, error) {
	if !cfg.Interface.Manage && !cfg.Intercept.Manage {
		return nil, nil //nolint:nilnil // an unmanaged node is valid
	}
	n := &node{
		config: cfg, owner: a.token, log: a.log, host: a.host, longestBatch: a.longestBatch, target: a.interceptTarget,
		changed: make(chan struct{}, 1),
	}
	if cfg.Interface.Manage {
		var err error
		n.link, err = a.host.newLink(netif.Config{
			Name: cfg.Interface.Name, Kind: linkKind(cfg.Interface.Kind), Addresses: cfg.Listen.Addresses,
			Owner: a.token, Log: a.log, Now: time.Now,
		})
		if err != nil {
			return nil, fmt.Errorf("interface: %w", err)
		}
	}
	return n, nil
}

func linkKind(k config.LinkKind) netif.Kind {
	return map[config.LinkKind]netif.Kind{
		config.LinkAuto: netif.Auto, config.LinkDummy: netif.Dummy, config.LinkBridge: netif.Bridge, config.LinkLoopback: netif.Loopback,
	}[k]
}

// open detects the data plane and opens the backend of the rules. It changes nothing in the kernel.
func (n *node) open(ctx context.Context) error {
	if n == nil {
		return nil
	}
	if missing := n.host.missingCapabilities(); len(missing) > 0 {
		return &HintError{
			Err:  fmt.Errorf("interface and intercept: missing capability: %s", missing),
			Hint: "run as root, or give the container securityContext.capabilities.add: [NET_ADMIN, NET_BIND_SERVICE]",
		}
	}
	if !n.config.Intercept.Manage {
		return nil
	}
	var err error
	if n.dataPlane, err = n.host.detectDataPlane(ctx); err != nil {
		return fmt.Errorf("intercept: detecting the data plane: %w", err)
	}
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
	if n.backend, err = n.host.openBackend(name, n.log); err != nil {
		return &HintError{
			Err:  fmt.Errorf("intercept: %w", err),
			Hint: "set intercept.backend to nftables or iptables; `node-cache doctor` shows what this node supports",
		}
	}
	if chosen, ok := n.backend.(interface{ Reason() string }); ok && name == "" {
		why += ", and " + chosen.Reason()
	}
	n.log.InfoContext(ctx, "interception set up", "mode", n.config.Intercept.Mode.String(), "backend", n.backend.String(), "why", why,
		"data_plane", n.dataPlane.Proxy, "evidence", n.dataPlane.Evidence)
	if n.bypassed() {
		n.log.ErrorContext(ctx, "service address cannot be intercepted on this node", "why", n.dataPlane.Note)
	}
	return nil
}

// requiredCapabilities returns the capabilities that n needs while it runs.
func (n *node) requiredCapabilities() []capabilities.Capability {
	switch {
	case n == nil:
		return nil
	case n.backend != nil && n.backend.String() != dataplane.BackendNFTables, slices.Contains(n.oldBackends, backendIPTables):
		return []capabilities.Capability{capabilities.NetAdmin, capabilities.NetRaw} // both variants open a raw socket, one of them for ipsets
	default:
		return []capabilities.Capability{capabilities.NetAdmin}
	}
}

// bypassed reports whether the data plane rewrites packets to the service's address before netfilter rules
// see them.
func (n *node) bypassed() bool {
	return n.dataPlane.Early && n.config.Intercept.Mode == config.ModeTransparent
}

// setup adds the addresses to the link. The sockets must be open: an address without a listener is better
// than no address, but worse than a fallback. With takeover the predecessor still answers until takeOver.
func (n *node) setup(ctx context.Context, handed bool) error {
	if n == nil {
		return nil
	}
	if handed {
		n.leaseWait = min(maxLeaseWait, n.config.Intercept.Lease/3)
	}
	n.findOldRules(ctx, handed)
	if n.link == nil {
		return nil
	}
	err := n.link.Setup(ctx)
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // the agent stops before it served: no failure
	}
	var partly *netif.MissingError
	if errors.As(err, &partly) && partly.Held > 0 { // such as a node without IPv6: Run tries again
		n.log.WarnContext(ctx, "adding addresses to the link failed", "err", err)
		err = nil
	}
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("interface: %w", err),
			Hint: "set another interface.kind or interface.name; `ip address` shows which link has the address",
		}
	}
	return nil
}

// run maintains link and rules until ctx ends.
func (n *node) run(ctx context.Context) error {
	if n == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	if n.link != nil {
		g.Go(func() error { return n.link.Run(ctx) })
	}
	if n.backend != nil && !n.bypassed() {
		g.Go(func() error { return n.intercept(ctx, g) })
	}
	return g.Wait()
}

// intercept creates the keeper of the rules once the service addresses are known, and passes changes on to
// it.
func (n *node) intercept(ctx context.Context, g *errgroup.Group) error {
	for {
		now := n.target()
		keeper := n.currentKeeper()
		if keeper == nil && (n.config.Intercept.Mode == config.ModeLinkLocal || len(now.services) > 0) {
			var err error
			if keeper, err = n.newKeeper(now); err != nil {
				return fmt.Errorf("intercept: %w", err)
			}
			setFallback(keeper, &now)
			g.Go(func() error { return keeper.Run(ctx) })
		}
		if keeper != nil {
			setFallback(keeper, &now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		}
	}
}

// setFallback sets the fallback of the rules.
func setFallback(keeper *intercept.Keeper, now *interceptTarget) {
	if now.none {
		keeper.ClearFallback()
	} else {
		keeper.SetFallback(now.fallback)
	}
}

func (n *node) newKeeper(now interceptTarget) (*intercept.Keeper, error) {
	if len(now.fallback) == 0 && !now.none {
		now.fallback = n.oldFallback
	}
	r := rules.Rules{
		Owner: n.owner, Addresses: n.config.Listen.Addresses, Port: n.config.Listen.Port, Fallback: now.fallback,
	}
	if n.config.Intercept.Mode == config.ModeTransparent {
		r.Mode, r.Services = rules.Transparent, now.services
	}
	if admin := n.config.Admin.Address; slices.Contains(r.Addresses, admin.Addr()) {
		r.Admin = admin.Port()
	}
	prober := intercept.NewProber(intercept.ProberConfig{Port: r.Port, Token: n.owner, Dial: n.host.selfQueryDialer()})
	keeper, err := intercept.New(intercept.Config{
		Backend: n.wrapBackend(), Rules: r, Lease: n.config.Intercept.Lease, Renew: min(renewInterval, n.config.Intercept.Lease/minRenewals),
		AwaitLease: n.leaseWait, Predecessors: n.predecessors, Probe: prober.Probe, Busy: n.longestBatch, Log: n.log, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keeper = keeper
	if n.serving && !n.left {
		keeper.Start()
	}
	return keeper, nil
}

// targetChanged notifies intercept that target returns something else.
func (n *node) targetChanged() {
	if n == nil {
		return
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// serve allows the lease to be taken: the agent answers.
func (n *node) serve() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = true
	if n.keeper != nil && !n.left {
		n.keeper.Start()
	}
}

// currentKeeper returns the keeper, nil while there is none.
func (n *node) currentKeeper() *intercept.Keeper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeper
}

// interceptTarget returns the part of the interception that may change: from the running configuration and
// the cluster.
func (a *Agent) interceptTarget() interceptTarget {
	r := a.running.Load()
	var w interceptTarget
	var known serviceState
	if r.cluster != nil && r.cluster.service != nil {
		if state := r.cluster.service.Load(); state != nil {
			known = *state
		}
	}
	w.services = r.config.Intercept.Services
	if len(w.services) == 0 {
		w.services = serviceAddresses(known.own, r.config.Listen)
	}
	if r.config.Intercept.Mode == config.ModeTransparent {
		return w // kube-proxy is the fallback
	}
	to := r.config.Intercept.Fallback
	w.from, w.none = to.String(), !to.Central && len(to.Addresses) == 0
	switch {
	case !to.Central:
		w.fallback = to.Addresses
	case r.config.Cluster.Central.Service != config.ServiceName{}:
		w.fallback = known.ready
	default:
		w.fallback = r.config.Cluster.Central.Addresses
	}
	return w
}

// serviceAddresses returns the first address in own for each family that the agent listens on.
func serviceAddresses(own []netip.AddrPort, listen config.Listen) []netip.Addr {
	var addrs []netip.Addr
	for _, o := range own {
		sameFamily := func(a netip.Addr) bool { return a.Is4() == o.Addr().Is4() }
		if slices.ContainsFunc(listen.Addresses, sameFamily) && !slices.ContainsFunc(addrs, sameFamily) {
			addrs = append(addrs, o.Addr())
		}
	}
	return addrs
}
