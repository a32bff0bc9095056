// SPDX-License-Identifier: Apache-2.0

package agent

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

// clearing bounds what is done to the rules that an earlier agent left by one backend.
const clearing = 5 * time.Second

// backendIPTables stands for both variants of iptables.
const backendIPTables = "iptables"

// findFormer looks for the rules that an earlier agent left by a backend that this one
// does not use, or by any when it leaves the rules alone. Nobody else would remove them,
// and they send the queries of an agent that answers elsewhere, to servers that may be
// gone. With rules to come they stay until these are there: an agent that is killed before
// that is stood in for by what was there. With handed they are those of an agent that
// still answers: it takes them away itself, once its successor does.
func (n *node) findFormer(ctx context.Context, handed bool) {
	replaced := n.backend != nil && !n.early()
	used := ""
	if replaced {
		used, _, _ = strings.Cut(n.backend.String(), "-")
	}
	for _, name := range []string{dataplane.BackendNFTables, backendIPTables} {
		if name == used || !n.machine.left(name) {
			continue
		}
		var state rules.State
		err := n.withFormer(ctx, name, func(ctx context.Context, b intercept.Backend) (err error) {
			state, err = b.State(ctx)
			return err
		})
		if err == nil && !state.Present {
			continue
		}
		n.former = append(n.former, name)
		if len(state.Fallback) > 0 {
			n.inherited = state.Fallback
		}
	}
	if replaced {
		return
	}
	if handed {
		n.former = nil
		return
	}
	if err := n.clearFormer(ctx, n.former); err != nil {
		n.former = nil
		n.warnFormer(ctx, err)
	}
}

func (n *node) warnFormer(ctx context.Context, err error) {
	n.log.WarnContext(ctx, "rules of an earlier agent stay, and may send queries elsewhere", "err", err,
		"hint", "`node-cache cleanup` takes them away, while no agent runs")
}

// withFormer does something with the backend of an earlier agent.
func (n *node) withFormer(ctx context.Context, name string, do func(context.Context, intercept.Backend) error) error {
	ctx, cancel := context.WithTimeout(ctx, clearing)
	defer cancel()
	b, err := n.machine.backend(name, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // nothing of it is needed
	return do(ctx, b)
}

// clearFormer removes what an earlier agent left by the backends of these names. The
// sockets of this agent's addresses are its own by now, so that no other serves there.
func (n *node) clearFormer(ctx context.Context, names []string) error {
	errs := make([]error, len(names))
	for i, name := range names {
		errs[i] = n.withFormer(ctx, name, func(ctx context.Context, b intercept.Backend) error {
			state, err := b.State(ctx)
			if err != nil || !state.Present {
				return err
			}
			if n.foreign(state) {
				if err := unheld(ctx, b); err != nil { // there is another agent, at other addresses
					return err
				}
			}
			if err := b.Remove(ctx, ""); err != nil {
				return err
			}
			n.log.InfoContext(ctx, "rules of an earlier agent removed", "backend", b.String(), "owner", state.Owner)
			return nil
		})
	}
	return errors.Join(errs...)
}

// foreign tells whether a lease is held on an address that is not this agent's: whose it
// is cannot be known, only whether it is renewed.
func (n *node) foreign(state rules.State) bool {
	for key := range state.Leases {
		if !slices.Contains(n.config.Listen.Addresses, key) {
			return true
		}
	}
	return false
}

// replacing is the backend of n that removes what an earlier agent left by others, once
// its own rules lead queries here.
func (n *node) replacing() intercept.Backend {
	if len(n.former) == 0 {
		return n.backend
	}
	return &replacingBackend{Backend: n.backend, node: n, former: n.former}
}

// settling is how long after the first lease the others have to be there too.
const settling = time.Second

// A replacingBackend takes over from other backends at the first Apply that goes well
// once leases are held. What was there before knows of leases of its own, and goes on
// leading queries here, or to the fallback, until then.
type replacingBackend struct {
	intercept.Backend

	node   *node
	former []string // Apply's own, which is called by one goroutine
	warned bool     // and so is this

	mu      sync.Mutex // guards what follows
	since   time.Time  // of the first renewal; zero: there was none
	held    bool       // for long enough
	changed func()     // has Apply called; nil: nobody watches yet
}

// Apply implements [intercept.Backend].
func (b *replacingBackend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	changed, err = b.Backend.Apply(ctx, r)
	if err != nil || len(b.former) == 0 || !b.holds() {
		return changed, err
	}
	if err := b.node.clearFormer(ctx, b.former); err == nil {
		b.former = nil
	} else if !b.warned { // the next Apply tries again
		b.warned = true
		b.node.warnFormer(ctx, err)
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

// renewed has Apply called again once leases are held for long enough.
func (b *replacingBackend) renewed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() {
		b.since = now
	}
	if b.held || b.changed == nil || now.Sub(b.since) < settling {
		return
	}
	b.held = true
	b.changed() // it only leaves a note
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
