// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"

	"github.com/nodecache/node-cache/pkg/rules"
)

// maxFallback is how many endpoints of a family are used. Queries are spread over them,
// and with iptables each is a rule that packets may have to pass. If there are more, each
// Keeper selects its own, so that every endpoint is used by some node.
const maxFallback = 16

// A fallback is the list of endpoints that get queries while a lease is not held.
type fallback struct {
	seed maphash.Seed // of the selection

	mu      sync.Mutex // guards the fields below
	list    []netip.AddrPort
	omitted int
	cleared bool // there is to be no fallback, not even the one in the kernel
}

// SetFallback sets the endpoints that get queries while a lease is not held. A list that
// is empty or has no usable endpoint changes nothing: the last good list is better than
// none. In transparent mode, which has no fallback, it does nothing. SetFallback does not
// wait for the kernel; of several calls in quick succession only the last may get there.
// The caller keeps the list.
func (k *Keeper) SetFallback(endpoints []netip.AddrPort) {
	if k.cfg.Rules.Mode == rules.LinkLocal && k.fallback.set(endpoints, k.cfg.Rules.Addresses) {
		k.requestPass()
	}
}

// ClearFallback removes the fallback: without a lease, queries go nowhere. It also removes
// the fallback that an earlier agent left in the kernel. SetFallback sets a new one.
// ClearFallback does not wait for the kernel.
func (k *Keeper) ClearFallback() {
	if k.fallback.clear() {
		k.requestPass()
	}
}

// clear reports whether anything changed.
func (f *fallback) clear() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cleared {
		return false
	}
	f.list, f.omitted, f.cleared = nil, 0, true
	return true
}

// set reports whether anything changed.
func (f *fallback) set(endpoints []netip.AddrPort, own []netip.Addr) bool {
	list, omitted := usable(endpoints, own, f.seed)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(list) == 0 {
		return false
	}
	f.omitted, f.cleared = omitted, false
	if slices.Equal(list, f.list) {
		return false
	}
	f.list = list
	return true
}

// adopt returns the list for the rules r. It adopts the list that a predecessor left in
// the kernel until SetFallback or ClearFallback is called.
func (f *fallback) adopt(state rules.State, r *rules.Rules) []netip.AddrPort {
	if r.Mode != rules.LinkLocal {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == 0 && !f.cleared {
		f.list, f.omitted = usable(state.Fallback, r.Addresses, f.seed)
	}
	return slices.Clone(f.list)
}

func (f *fallback) read() (list []netip.AddrPort, omitted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list), f.omitted
}

// usable returns the endpoints that rules can use. They are sorted, so that another order
// is no change. It drops duplicates, invalid endpoints, the agent itself, and all above
// maxFallback of a family: the same ones for the same seed.
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
