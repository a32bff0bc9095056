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

// zonePatience is how long the lease waits for the first view of the cluster while a
// fallback answers. After it the agent takes the queries and forwards what it does
// not know: the names that are no cluster's should not wait for an API server.
const zonePatience = 10 * time.Second

// A lease is renewed so often that some queries which the agent sends itself may get
// lost, on a machine that has more to do than it can.
const (
	renewal  = 500 * time.Millisecond
	renewals = 6 // at least, within one lease
)

// leaseAhead is how long the rules of an agent that has taken over wait for its lease, for
// no query to be led elsewhere in between, and of a short lease a third: what is left of
// the other agent's is longer. It answers already, so that a probe takes a moment.
const leaseAhead = time.Second

// A node is what the agent does to the machine it runs on: the link that has its
// addresses, and the interception that leads queries to them.
//
// By the time: open (what the kernel refuses is fatal), setup (the sockets are open:
// the addresses may be there), serve (queries are answered: the lease may be taken),
// leave (the lease is off, what still comes is answered), end (what nobody needs any
// more goes). A nil node does nothing.
type node struct {
	config  config.Config // interface and intercept are as at the start: they take a restart
	owner   string
	log     *slog.Logger
	machine machine
	busy    func() time.Duration // longest time that a reader is at one batch
	wants   func() wants         // what the running configuration and the cluster ask for now

	link      link              // nil: not managed
	backend   intercept.Backend // nil: not managed
	found     dataplane.Found   // once open
	former    []string          // other backends by which an earlier agent left rules; once set up
	inherited []netip.AddrPort  // the fallback of these; once set up
	await     time.Duration     // for leases, before the first rules; once set up, or taken over
	before    []string          // who this agent took over from, if anybody; once taken over
	changed   chan struct{}     // wants gives something else
	closing   sync.Once         // of backend

	leaves sync.Once // of leave: who calls it again waits for the first

	mu      sync.Mutex // guards what follows
	serving bool
	left    bool
	keeper  *intercept.Keeper // nil: not yet, or not managed

	handed       bool      // another agent has the node
	lapse        time.Time // the leases of the one that has handed over, this agent or the one before, are at an end by then
	foreignRules bool      // the other agent has rules of another backend
}

// wants is what of the interception may change while the agent runs.
type wants struct {
	fallback []netip.AddrPort
	from     string       // intercept.fallback, as it is written
	nowhere  bool         // that is none: what an earlier agent left is not to stay either
	services []netip.Addr // the DNS service's addresses; empty: not known yet
}

// newNode is nil when cfg manages neither link nor interception.
func (a *Agent) newNode(cfg config.Config) (*node, error) {
	if !cfg.Interface.Manage && !cfg.Intercept.Manage {
		return nil, nil //nolint:nilnil // a node that is left as it is is no mistake
	}
	n := &node{
		config: cfg, owner: a.token, log: a.log, machine: a.machine, busy: a.busy, wants: a.wants,
		changed: make(chan struct{}, 1),
	}
	if cfg.Interface.Manage {
		var err error
		n.link, err = a.machine.link(netif.Config{
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

// open looks at the data plane and opens the way to its rules. It changes nothing.
func (n *node) open(ctx context.Context) error {
	if n == nil {
		return nil
	}
	if missing := n.machine.missing(); len(missing) > 0 {
		return &HintError{
			Err:  fmt.Errorf("interface and intercept: missing right: %s", missing),
			Hint: "run as root, or give the container securityContext.capabilities.add: [NET_ADMIN, NET_BIND_SERVICE]",
		}
	}
	if !n.config.Intercept.Manage {
		return nil
	}
	var err error
	if n.found, err = n.machine.find(ctx); err != nil {
		return fmt.Errorf("intercept: looking for the data plane: %w", err)
	}
	name, why := n.found.Backend, n.found.Why
	switch n.config.Intercept.Backend {
	case config.BackendNftables:
		name, why = dataplane.BackendNFTables, "intercept.backend says so"
	case config.BackendIptables:
		if name == dataplane.BackendNFTables {
			name = "" // the backend finds out which variant
		}
		why = "intercept.backend says so"
	default:
	}
	if n.backend, err = n.machine.backend(name, n.log); err != nil {
		return &HintError{
			Err:  fmt.Errorf("intercept: %w", err),
			Hint: "intercept.backend chooses nftables or iptables; `node-cache doctor` tells what this node has",
		}
	}
	if chosen, ok := n.backend.(interface{ Reason() string }); ok && name == "" {
		why += ", and " + chosen.Reason()
	}
	n.log.InfoContext(ctx, "interception", "mode", n.config.Intercept.Mode.String(), "backend", n.backend.String(), "why", why,
		"data_plane", n.found.Proxy, "evidence", n.found.Evidence)
	if n.early() {
		n.log.ErrorContext(ctx, "queries to the service's address cannot be intercepted on this node", "why", n.found.Note)
	}
	return nil
}

// needs are the rights without which n cannot go on.
func (n *node) needs() []capabilities.Capability {
	switch {
	case n == nil:
		return nil
	case n.backend != nil && n.backend.String() != dataplane.BackendNFTables, slices.Contains(n.former, backendIPTables):
		return []capabilities.Capability{capabilities.NetAdmin, capabilities.NetRaw} // both variants open a raw socket, one of them for ipsets
	default:
		return []capabilities.Capability{capabilities.NetAdmin}
	}
}

// early tells whether the data plane rewrites packets to the service's address before
// any rule of ours could see them.
func (n *node) early() bool {
	return n.found.Early && n.config.Intercept.Mode == config.ModeTransparent
}

// setup puts the addresses on the link. The sockets must be open: an address that
// nobody listens on costs less than one that is not there, but more than a fallback.
// With handed the agent before this one still answers, and leaves when it is told to.
func (n *node) setup(ctx context.Context, handed bool) error {
	if n == nil {
		return nil
	}
	if handed {
		n.await = min(leaseAhead, n.config.Intercept.Lease/3)
	}
	n.findFormer(ctx, handed)
	if n.link == nil {
		return nil
	}
	err := n.link.Setup(ctx)
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // the agent ends before it began: that is no failure
	}
	var partly *netif.MissingError
	if errors.As(err, &partly) && partly.Held > 0 { // a node without IPv6, say: Run goes on trying
		n.log.WarnContext(ctx, "not every address could be put on the link", "err", err)
		err = nil
	}
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("interface: %w", err),
			Hint: "interface.kind and interface.name choose another link; `ip address` shows who has the address",
		}
	}
	return nil
}

// run keeps link and rules until ctx ends.
func (n *node) run(ctx context.Context) error {
	if n == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	if n.link != nil {
		g.Go(func() error { return n.link.Run(ctx) })
	}
	if n.backend != nil && !n.early() {
		g.Go(func() error { return n.intercept(ctx, g) })
	}
	return g.Wait()
}

// intercept makes the keeper of the rules once all they need is known, and tells it
// what changes.
func (n *node) intercept(ctx context.Context, g *errgroup.Group) error {
	for {
		now := n.wants()
		keeper := n.current()
		if keeper == nil && (n.config.Intercept.Mode == config.ModeLinkLocal || len(now.services) > 0) {
			var err error
			if keeper, err = n.newKeeper(now); err != nil {
				return fmt.Errorf("intercept: %w", err)
			}
			tellFallback(keeper, &now)
			g.Go(func() error { return keeper.Run(ctx) })
		}
		if keeper != nil {
			tellFallback(keeper, &now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		}
	}
}

// tellFallback tells the keeper where queries go that the agent does not take.
func tellFallback(keeper *intercept.Keeper, now *wants) {
	if now.nowhere {
		keeper.ClearFallback()
	} else {
		keeper.SetFallback(now.fallback)
	}
}

func (n *node) newKeeper(now wants) (*intercept.Keeper, error) {
	if len(now.fallback) == 0 && !now.nowhere {
		now.fallback = n.inherited
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
	prober := intercept.NewProber(intercept.ProberConfig{Port: r.Port, Token: n.owner, Dial: n.machine.dialer()})
	keeper, err := intercept.New(intercept.Config{
		Backend: n.replacing(), Rules: r, Lease: n.config.Intercept.Lease, Renew: min(renewal, n.config.Intercept.Lease/renewals),
		Await: n.await, Former: n.before, Probe: prober.Probe, Busy: n.busy, Log: n.log, Now: time.Now,
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

// refresh says that wants gives something else now.
func (n *node) refresh() {
	if n == nil {
		return
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// serve lets the lease be taken: the agent answers.
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

// current is the keeper, nil while there is none.
func (n *node) current() *intercept.Keeper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeper
}
