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

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/rights"
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

// settle is how long the servers go on as usual after the lease was given back:
// packets that were let through a moment before are on their way to the sockets.
const settle = 20 * time.Millisecond

// leaving bounds what is done to the kernel while stopping. A lock that somebody
// holds must not keep a pod from ending.
const leaving = 5 * time.Second

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

	link    link              // nil: not managed
	backend intercept.Backend // nil: not managed
	found   dataplane.Found   // once open
	changed chan struct{}     // wants gives something else

	mu      sync.Mutex // guards what follows
	serving bool
	left    bool
	keeper  *intercept.Keeper // nil: not yet, or not managed
}

// wants is what of the interception may change while the agent runs.
type wants struct {
	fallback []netip.AddrPort
	from     string       // intercept.fallback, as it is written
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
			name = ""
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
	n.log.InfoContext(ctx, "interception", "mode", n.config.Intercept.Mode, "backend", n.backend, "why", why,
		"data_plane", n.found.Proxy, "evidence", n.found.Evidence)
	if n.early() {
		n.log.ErrorContext(ctx, "queries to the service's address cannot be intercepted on this node", "why", n.found.Note)
	}
	return nil
}

// needs are the rights without which n cannot go on.
func (n *node) needs() []rights.Right {
	switch {
	case n == nil:
		return nil
	case n.backend != nil && n.backend.String() != dataplane.BackendNFTables:
		return []rights.Right{rights.NetAdmin, rights.NetRaw} // both variants open a raw socket, one of them for ipsets
	default:
		return []rights.Right{rights.NetAdmin}
	}
}

// early tells whether the data plane rewrites packets to the service's address before
// any rule of ours could see them.
func (n *node) early() bool {
	return n.found.Early && n.config.Intercept.Mode == config.ModeTransparent
}

// setup puts the addresses on the link. The sockets must be open: an address that
// nobody listens on costs less than one that is not there, but more than a fallback.
func (n *node) setup(ctx context.Context) error {
	if n == nil || n.link == nil {
		return nil
	}
	err := n.link.Setup(ctx)
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
			g.Go(func() error { return keeper.Run(ctx) })
		}
		if keeper != nil {
			keeper.SetFallback(now.fallback)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		}
	}
}

func (n *node) newKeeper(now wants) (*intercept.Keeper, error) {
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
		Backend: n.backend, Rules: r, Lease: n.config.Intercept.Lease, Renew: min(renewal, n.config.Intercept.Lease/renewals),
		Probe: prober.Probe, Busy: n.busy, Log: n.log, Now: time.Now,
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

// leave gives the lease back and returns when no more queries come, or after a time
// that a stop can spare. Sessions stay with the agent for the time drain.
func (n *node) leave(ctx context.Context, drain time.Duration) {
	if n == nil {
		return
	}
	n.mu.Lock()
	already := n.left
	n.left = true
	n.mu.Unlock()
	if already {
		return
	}
	keeper := n.current()
	if keeper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if err := keeper.Release(ctx, drain); err != nil {
		n.log.WarnContext(ctx, "the lease could not be given back, it ends by itself", "err", err, "within", n.config.Intercept.Lease)
	}
	wait := time.NewTimer(settle)
	defer wait.Stop()
	<-wait.C
}

// end leaves the node as intercept.onExit wants it. Nothing of the node may run.
func (n *node) end(ctx context.Context) {
	if n == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if !n.config.Intercept.Manage || n.config.Intercept.Exit() == config.ExitRemove {
		n.remove(ctx)
	}
	if n.backend != nil {
		if err := n.backend.Close(); err != nil {
			n.log.WarnContext(ctx, "closing the way to the rules", "err", err)
		}
	}
}

// remove takes rules and link away, in this order: an address that is gone while
// queries are still led to it would cost each its whole time-out.
func (n *node) remove(ctx context.Context) {
	if n.backend != nil {
		err := n.backend.Remove(ctx, n.owner)
		switch {
		case errors.Is(err, rules.ErrOwned):
			n.log.InfoContext(ctx, "rules left to a newer agent")
			return // and so the link
		case err != nil:
			n.log.ErrorContext(ctx, "rules stay behind", "err", err, "hint", "`node-cache cleanup` takes them away")
		}
	}
	if n.link == nil {
		return
	}
	switch err := n.link.Remove(ctx); {
	case errors.Is(err, netif.ErrOwned):
		n.log.InfoContext(ctx, "link left to a newer agent")
	case err != nil:
		n.log.ErrorContext(ctx, "the link stays behind", "err", err, "hint", "`node-cache cleanup` takes it away")
	}
}

// close gives up what open has opened.
func (n *node) close() {
	if n != nil && n.backend != nil {
		_ = n.backend.Close() // nothing was put there yet
	}
}

// current is the keeper, nil while there is none.
func (n *node) current() *intercept.Keeper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeper
}
