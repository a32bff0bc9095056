// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	// localGrace is how long Cilium may take to notice a new address. 1.15 takes up to a minute.
	localGrace = 2 * time.Minute
	// settingsInterval is the time between two readings of Cilium's settings, and settingsSpread at random more: 5,000 agents send 33
	// requests a second, which the API server answers from memory.
	settingsInterval = 4 * time.Minute
	settingsSpread   = 2 * time.Minute
	// settingsRetry is the time between two tries, and between two looks for Cilium.
	settingsRetry = 30 * time.Second
)

// A ciliumWatcher keeps what the node knows of Cilium, which may come or go while the agent runs.
type ciliumWatcher struct {
	host      Host
	log       *slog.Logger
	now       func() time.Time
	clients   func() []netip.Addr                                          // of the last minutes
	read      func(ctx context.Context) (*dataplane.CiliumSettings, error) // nil: they are not to be had
	addresses []netip.Addr

	mu       sync.Mutex // guards the fields below
	present  bool
	foreign  []netip.Addr // IPv4 addresses that Cilium does not take for the node's
	notSince time.Time    // since when there are any
	seen     bool         // its map is visible

	settings *dataplane.CiliumSettings // nil: unknown
	lost     []netip.Addr              // addresses to which no packet of a pod comes with these settings
}

// adapt sets in the rules what the data plane needs now.
func (w *ciliumWatcher) adapt(ctx context.Context, r *rules.Rules) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := w.host.OnCilium()
	switch {
	case err != nil:
		w.log.DebugContext(ctx, "data plane not read", "err", err) // what was known holds
	case now != w.present:
		w.log.InfoContext(ctx, "data plane changed", "cilium", now)
		w.present = now
	}
	r.Track, r.MarkHost = w.present, w.present
	w.readForeign()
	w.judge(ctx)
}

// readForeign updates foreign. It ignores IPv6, because Cilium knows no such address while its IPv6 is off.
func (w *ciliumWatcher) readForeign() {
	before := len(w.foreign)
	w.foreign, w.seen = nil, false
	if !w.present {
		return
	}
	list := slices.DeleteFunc(slices.Clone(w.addresses), netip.Addr.Is6)
	local, err := w.host.CiliumLocal(list)
	if err != nil {
		return // its map is not visible from a pod
	}
	w.seen = true
	w.foreign = slices.DeleteFunc(list, func(a netip.Addr) bool { return local[a] })
	if before == 0 && len(w.foreign) > 0 {
		w.notSince = w.now()
	}
}

// run reads Cilium's settings until ctx ends.
func (w *ciliumWatcher) run(ctx context.Context) {
	for wait := settingsRetry; ; wait = settingsRetry {
		if w.on() {
			settings, err := w.read(ctx)
			if err != nil {
				w.log.DebugContext(ctx, "settings of Cilium not read", "err", err) // those known before hold
			} else {
				w.set(ctx, settings)
				wait = settingsInterval + rand.N(settingsSpread) //nolint:gosec // no secret
			}
		}
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// set takes Cilium's settings; nil: unknown.
func (w *ciliumWatcher) set(ctx context.Context, settings *dataplane.CiliumSettings) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settings = settings
	w.judge(ctx)
}

// judge updates lost. The settings are those of all nodes, and a node may have others (CiliumNodeConfig). So a query of a pod that arrived
// in the last minutes counts for more, and so does Cilium's map, where it is visible.
func (w *ciliumWatcher) judge(ctx context.Context) {
	before := len(w.lost)
	w.lost = nil
	if !w.present || w.settings == nil || !w.settings.LosesHostScope() {
		return
	}
	scopes, err := w.host.Scopes()
	if err != nil {
		w.log.DebugContext(ctx, "addresses not read", "err", err)
		return
	}
	if slices.ContainsFunc(w.clients(), func(a netip.Addr) bool {
		_, own := scopes[a]
		return !own
	}) {
		return
	}
	for _, a := range w.addresses {
		if scopes[a] && !a.IsLoopback() && (!w.seen || slices.Contains(w.foreign, a)) {
			w.lost = append(w.lost, a)
		}
	}
	if before == 0 && len(w.lost) > 0 {
		w.log.WarnContext(ctx, "queries of pods do not arrive", "addresses", w.lost, "cilium", w.settings.Version)
	}
}

// notLocal returns the addresses that Cilium has not taken for the node's for a while, as far as its map or its settings say.
func (w *ciliumWatcher) notLocal() []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.Clone(w.lost)
	if w.now().Sub(w.notSince) >= localGrace {
		list = append(list, w.foreign...)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// loses returns why no packet of a pod comes to an address; empty: it does, or that is unknown. An invalid address stands for any of
// them.
func (w *ciliumWatcher) loses(addr netip.Addr) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) == 0 || addr.IsValid() && !slices.Contains(w.lost, addr) {
		return ""
	}
	return fmt.Sprintf("Cilium %s with BPF host routing does not take %s for an address of the node", w.settings.Version, cmp.Or(addr, w.lost[0]))
}

// on reports whether Cilium is there.
func (w *ciliumWatcher) on() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.present
}

// hostFirewall reports whether Cilium's host firewall is known to be on.
func (w *ciliumWatcher) hostFirewall() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.present && w.settings != nil && w.settings.On("enable-host-firewall")
}
