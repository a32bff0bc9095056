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

// fallbackMax is how many endpoints of a family are used. Queries are spread over
// them, and with iptables each is a rule that packets may have to pass. Which of more
// they are is each Keeper's own choice, so that all are some node's.
const fallbackMax = 16

// A fallback is the list of endpoints that queries go to while a lease is not held.
type fallback struct {
	seed maphash.Seed // of the choice

	mu      sync.Mutex // guards what follows
	list    []netip.AddrPort
	omitted int
	nowhere bool // there is to be none: what the kernel has is not wanted either
}

// SetFallback tells where queries go while a lease is not held. An empty list, or one
// without any endpoint that can be used, changes nothing: what was good last is a
// better guess than nowhere. So does one in transparent mode, which has no fallback.
// It does not wait for the kernel, and of several calls in short order only the last
// may get there. The list stays the caller's.
func (k *Keeper) SetFallback(endpoints []netip.AddrPort) {
	if k.cfg.Rules.Mode == rules.LinkLocal && k.fallback.set(endpoints, k.cfg.Rules.Addresses) {
		k.wantLook()
	}
}

// ClearFallback tells that queries are to go nowhere while a lease is not held. What an
// earlier agent left in the kernel goes, too. SetFallback ends that. It does not wait
// for the kernel.
func (k *Keeper) ClearFallback() {
	if k.fallback.clear() {
		k.wantLook()
	}
}

// clear says whether anything changed.
func (f *fallback) clear() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nowhere {
		return false
	}
	f.list, f.omitted, f.nowhere = nil, 0, true
	return true
}

// set says whether anything changed.
func (f *fallback) set(endpoints []netip.AddrPort, own []netip.Addr) bool {
	list, omitted := clean(endpoints, own, f.seed)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(list) == 0 {
		return false
	}
	f.omitted, f.nowhere = omitted, false
	if slices.Equal(list, f.list) {
		return false
	}
	f.list = list
	return true
}

// adopt returns the list for the rules r. One that a former agent left in the kernel
// is taken over while nobody has told a newer one.
func (f *fallback) adopt(state rules.State, r *rules.Rules) []netip.AddrPort {
	if r.Mode != rules.LinkLocal {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == 0 && !f.nowhere {
		f.list, f.omitted = clean(state.Fallback, r.Addresses, f.seed)
	}
	return slices.Clone(f.list)
}

func (f *fallback) look() (list []netip.AddrPort, omitted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list), f.omitted
}

// clean returns the endpoints that rules can have: sorted, so that another order is
// no change, each once, none the agent itself, and not too many of a family: the same
// ones for the same seed.
func clean(endpoints []netip.AddrPort, own []netip.Addr, seed maphash.Seed) (list []netip.AddrPort, omitted int) {
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
			return of4 > fallbackMax
		}
		of6++
		return of6 > fallbackMax
	})
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list, before - len(list)
}
