// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// maxFallback is the maximum number of endpoints in use per IP family. Queries are spread over
// them, and with iptables each endpoint is a rule that packets may have to pass. If there are
// more, each Keeper selects some at random, so that every endpoint is used by some node.
const maxFallback = 16

// SetFallback sets the endpoints that get queries while a lease is not held. A list that
// is empty or has no usable endpoint changes nothing: the last good list is better than
// none. Where the data plane is the fallback, it does nothing. SetFallback does not
// wait for the kernel; of several calls in quick succession only the last may take effect.
// It neither keeps nor changes the slice endpoints.
func (k *Keeper) SetFallback(endpoints []netip.AddrPort) {
	if !k.cfg.Rules.FallsBack() {
		return
	}
	list, omitted := usable(endpoints, own(&k.cfg.Rules), k.seed)
	if len(list) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.FallbackOmitted, k.fallbackCleared = omitted, false
	if !slices.Equal(list, k.stats.Fallback) {
		k.stats.Fallback = list
		k.ruleChanges.Add(1)
		k.requestPass()
	}
}

// ClearFallback removes the fallback, also one that an earlier agent left in the kernel: without
// a lease, no rule redirects queries. SetFallback sets a new fallback.
// ClearFallback does not wait for the kernel.
func (k *Keeper) ClearFallback() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.fallbackCleared {
		k.stats.Fallback, k.stats.FallbackOmitted, k.fallbackCleared = nil, 0, true
		k.ruleChanges.Add(1)
		k.requestPass()
	}
}

// wantedFallback returns the endpoints for the rules. If none are set, and ClearFallback was not
// called, it returns the endpoints that a predecessor left in the kernel, and keeps them.
func (k *Keeper) wantedFallback(state rules.State) []netip.AddrPort {
	if !k.cfg.Rules.FallsBack() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.stats.Fallback) == 0 && !k.fallbackCleared {
		k.stats.Fallback, k.stats.FallbackOmitted = usable(state.Fallback, own(&k.cfg.Rules), k.seed)
	}
	return slices.Clone(k.stats.Fallback)
}

// own returns the addresses whose packets come back to the agent.
func own(r *rules.Rules) []netip.Addr { return slices.Concat(r.Addresses, r.Services) }

// usable returns the endpoints that rules can use, sorted: the same endpoints in another order give the same list.
// It drops duplicates. It omits invalid endpoints, the agent itself, and those above maxFallback
// of a family: seed selects which. omitted is their number.
func usable(endpoints []netip.AddrPort, own []netip.Addr, seed maphash.Seed) (list []netip.AddrPort, omitted int) {
	for _, e := range endpoints {
		list = append(list, netip.AddrPortFrom(e.Addr().Unmap(), e.Port()))
	}
	rank := func(e netip.AddrPort) uint64 { return maphash.Comparable(seed, e) }
	slices.SortFunc(list, func(a, b netip.AddrPort) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Compare(b)) })
	list = slices.Compact(list)
	before, of4, of6 := len(list), 0, 0
	list = slices.DeleteFunc(list, func(e netip.AddrPort) bool {
		a := e.Addr()
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" || e.Port() == 0 || slices.Contains(own, a) {
			return true
		}
		if a.Is4() {
			of4++
			return of4 > maxFallback
		}
		of6++
		return of6 > maxFallback
	})
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list, before - len(list)
}
