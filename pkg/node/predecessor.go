// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// removeTimeout bounds the removal of a predecessor's rules, for each backend.
const removeTimeout = 5 * time.Second

// backendIPTables stands for both variants of iptables.
const backendIPTables = "iptables"

// oldRules are the rules that predecessors left through backends that this agent does not use.
type oldRules struct {
	host      Host
	addresses []netip.Addr // listen addresses of this agent
	log       *slog.Logger
	backends  []string         // names of the backends that hold rules, or could not be read
	fallback  []netip.AddrPort // targets in these rules; empty: unknown
}

// find finds the rules in all backends but the one called used, which this agent uses. No other process would remove these rules,
// and they send queries to servers that may be gone.
func (o *oldRules) find(ctx context.Context, used string) {
	used, _, _ = strings.Cut(used, "-")
	for _, name := range []string{dataplane.BackendNFTables, backendIPTables} {
		if name == used || !o.host.MayHaveRules(name) {
			continue
		}
		var state rules.State
		err := o.with(ctx, name, func(ctx context.Context, b intercept.Backend) (err error) {
			state, err = b.State(ctx)
			return err
		})
		if err == nil && !state.Present {
			continue
		}
		o.backends = append(o.backends, name)
		if len(state.Fallback) > 0 {
			o.fallback = state.Fallback
		}
	}
}

func (o *oldRules) warn(ctx context.Context, err error) {
	o.log.WarnContext(ctx, "predecessor's rules not removed", "err", err,
		"hint", "they may redirect queries; stop all agents on the node, then run `node-cache cleanup`")
}

// with opens the backend called name, calls do with it, and closes it.
func (o *oldRules) with(ctx context.Context, name string, do func(context.Context, intercept.Backend) error) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	b, err := o.host.OpenBackend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // its error changes nothing
	return do(ctx, b)
}

// remove removes the rules. This agent owns the sockets of its addresses by now, so no other agent serves there.
func (o *oldRules) remove(ctx context.Context) error {
	errs := make([]error, len(o.backends))
	for i, name := range o.backends {
		errs[i] = o.with(ctx, name, func(ctx context.Context, b intercept.Backend) error {
			state, err := b.State(ctx)
			if err != nil || !state.Present {
				return err
			}
			// A lease on another address may belong to a running agent. Only a renewal of the lease shows that.
			foreign := func(key netip.Addr) bool { return !slices.Contains(o.addresses, key) }
			if slices.ContainsFunc(slices.Collect(maps.Keys(state.Leases)), foreign) {
				if err := waitLeases(ctx, b); err != nil { // another agent serves other addresses
					return err
				}
			}
			if err := b.Remove(ctx, ""); err != nil {
				return err
			}
			o.log.InfoContext(ctx, "predecessor's rules removed", "backend", b.String(), "owner", state.Owner)
			return nil
		})
	}
	return errors.Join(errs...)
}

// leaseSettleTime is the time after the first renewal until all leases count as held.
const leaseSettleTime = time.Second

// A replacingBackend removes the rules of other backends at the first successful Apply after the leases are
// held. Until then the old rules, with leases of their own, redirect queries here or to the fallback.
type replacingBackend struct {
	intercept.Backend

	old     *oldRules
	removed bool // the old rules are removed; only Apply uses it, which one goroutine calls
	warned  bool // a failed removal is logged; only Apply uses it

	mu      sync.Mutex // guards the fields below
	since   time.Time  // time of the first renewal; zero: there was none
	held    bool       // leases are held, for at least leaseSettleTime
	changed func()     // requests an Apply; nil: Watch was not called yet
}

// Apply implements [intercept.Backend].
func (b *replacingBackend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	changed, err = b.Backend.Apply(ctx, r)
	if err != nil || b.removed || !b.holds() {
		return changed, err
	}
	if err := b.old.remove(ctx); err == nil {
		b.removed = true
	} else if !b.warned { // the next Apply tries again
		b.warned = true
		b.old.warn(ctx, err)
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
