// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

// removeTimeout bounds the removal of a predecessor's rules, for each backend.
const removeTimeout = 5 * time.Second

// backendIPTables stands for both variants of iptables.
const backendIPTables = "iptables"

// findOldRules finds the rules that a predecessor left through a backend that this agent does not use, or
// through any backend if this agent manages no rules.
//
// No other process would remove them, and they send queries to servers that may be gone. If this agent makes
// rules, the old ones stay until its own are in place: should it be killed before, the old ones still work.
// With handover the rules belong to an agent that still answers and removes them itself.
func (n *Node) findOldRules(ctx context.Context, handed bool) {
	replaced := n.backend != nil && !n.bypassed()
	used := ""
	if replaced {
		used, _, _ = strings.Cut(n.backend.String(), "-")
	}
	for _, name := range []string{dataplane.BackendNFTables, backendIPTables} {
		if name == used || !n.cfg.Host.MayHaveRules(name) {
			continue
		}
		var state rules.State
		err := n.withOldBackend(ctx, name, func(ctx context.Context, b intercept.Backend) (err error) {
			state, err = b.State(ctx)
			return err
		})
		if err == nil && !state.Present {
			continue
		}
		n.oldBackends = append(n.oldBackends, name)
		if len(state.Fallback) > 0 {
			n.oldFallback = state.Fallback
		}
	}
	if replaced {
		return
	}
	if handed {
		n.oldBackends = nil
		return
	}
	if err := n.removeOldRules(ctx, n.oldBackends); err != nil {
		n.oldBackends = nil
		n.warnOldRules(ctx, err)
	}
}

func (n *Node) warnOldRules(ctx context.Context, err error) {
	n.log.WarnContext(ctx, "predecessor's rules not removed", "err", err,
		"hint", "they may redirect queries; stop all agents on the node, then run `node-cache cleanup`")
}

// withOldBackend calls do with the backend of a predecessor.
func (n *Node) withOldBackend(ctx context.Context, name string, do func(context.Context, intercept.Backend) error) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	b, err := n.cfg.Host.OpenBackend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // its error changes nothing
	return do(ctx, b)
}

// removeOldRules removes the rules that predecessors left through the named backends. This agent owns the
// sockets of its addresses by now, so no other agent serves there.
func (n *Node) removeOldRules(ctx context.Context, names []string) error {
	errs := make([]error, len(names))
	for i, name := range names {
		errs[i] = n.withOldBackend(ctx, name, func(ctx context.Context, b intercept.Backend) error {
			state, err := b.State(ctx)
			if err != nil || !state.Present {
				return err
			}
			if n.hasForeignLease(state) {
				if err := waitLeases(ctx, b); err != nil { // another agent serves other addresses
					return err
				}
			}
			if err := b.Remove(ctx, ""); err != nil {
				return err
			}
			n.log.InfoContext(ctx, "predecessor's rules removed", "backend", b.String(), "owner", state.Owner)
			return nil
		})
	}
	return errors.Join(errs...)
}

// hasForeignLease reports whether a lease is held on an address that is not this agent's. The owner is
// unknown; only a renewal shows that it is alive.
func (n *Node) hasForeignLease(state rules.State) bool {
	for key := range state.Leases {
		if !slices.Contains(n.config.Listen.Addresses, key) {
			return true
		}
	}
	return false
}

// wrapBackend returns the backend of n. It removes the old rules of other backends once its own rules
// redirect queries.
func (n *Node) wrapBackend() intercept.Backend {
	if len(n.oldBackends) == 0 {
		return n.backend
	}
	return &replacingBackend{Backend: n.backend, node: n, remaining: n.oldBackends}
}

// leaseSettleTime is how long after the first lease all other leases must be held.
const leaseSettleTime = time.Second

// A replacingBackend removes the rules of other backends at the first successful Apply after the leases are
// held. Until then the old rules, with leases of their own, redirect queries here or to the fallback.
type replacingBackend struct {
	intercept.Backend

	node      *Node
	remaining []string // backends whose rules remain; owned by Apply, which one goroutine calls
	warned    bool     // owned by Apply

	mu      sync.Mutex // guards the fields below
	since   time.Time  // time of the first renewal; zero: there was none
	held    bool       // for at least leaseSettleTime
	changed func()     // requests an Apply; nil: no watch yet
}

// Apply implements [intercept.Backend].
func (b *replacingBackend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	changed, err = b.Backend.Apply(ctx, r)
	if err != nil || len(b.remaining) == 0 || !b.holds() {
		return changed, err
	}
	if err := b.node.removeOldRules(ctx, b.remaining); err == nil {
		b.remaining = nil
	} else if !b.warned { // the next Apply tries again
		b.warned = true
		b.node.warnOldRules(ctx, err)
	}
	return changed, nil
}

// Renew implements [intercept.Backend].
func (b *replacingBackend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	err := b.Backend.Renew(ctx, keys, d)
	if err == nil {
		b.renewed(time.Now())
	}
	return err
}

// renewed requests an Apply once leases are held for leaseSettleTime.
func (b *replacingBackend) renewed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() {
		b.since = now
	}
	if b.held || b.changed == nil || now.Sub(b.since) < leaseSettleTime {
		return
	}
	b.held = true
	b.changed() // it never blocks
}

func (b *replacingBackend) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// Watch implements [intercept.Backend].
func (b *replacingBackend) Watch(ctx context.Context, changed func()) error {
	b.mu.Lock()
	b.changed = changed
	b.mu.Unlock()
	return b.Backend.Watch(ctx, changed)
}
