// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// localGrace is how long Cilium may take to notice a new address. 1.15 takes up to a minute.
const localGrace = 2 * time.Minute

// A ciliumWatcher keeps what the node knows of Cilium, which may come or go while the agent runs.
type ciliumWatcher struct {
	host      Host
	log       *slog.Logger
	now       func() time.Time
	addresses []netip.Addr

	mu       sync.Mutex // guards the fields below
	present  bool
	foreign  []netip.Addr // IPv4 addresses that Cilium does not take for the node's
	notSince time.Time    // since when there are any
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
	// Calico can exempt packets from conntrack too, with bpfHostConntrackBypass, and only those to link-local addresses never.
	r.Track, r.MarkHost = w.present || r.Excluded, w.present
	w.readForeign()
}

// readForeign updates foreign. It ignores IPv6, because Cilium knows no such address while its IPv6 is off.
func (w *ciliumWatcher) readForeign() {
	before := len(w.foreign)
	w.foreign = nil
	if !w.present {
		return
	}
	list := slices.DeleteFunc(slices.Clone(w.addresses), netip.Addr.Is6)
	local, err := w.host.CiliumLocal(list)
	if err != nil {
		return // its map is not visible from a pod: unknown, and no problem
	}
	w.foreign = slices.DeleteFunc(list, func(a netip.Addr) bool { return local[a] })
	if before == 0 && len(w.foreign) > 0 {
		w.notSince = w.now()
	}
}

// notLocal returns the addresses that Cilium has not taken for the node's for a while. It is empty where Cilium's map is not visible.
func (w *ciliumWatcher) notLocal() []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now().Sub(w.notSince) < localGrace {
		return nil
	}
	return slices.Clone(w.foreign)
}

// on reports whether Cilium is there.
func (w *ciliumWatcher) on() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.present
}
