// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/nodecache/node-cache/pkg/rules"
)

// fallbackMax is how many endpoints of a family are used. Queries are spread over
// them, and with iptables each is a rule that packets may have to pass.
const fallbackMax = 32

// A fallback is the list of endpoints that queries go to while a lease is not held.
type fallback struct {
	mu      sync.Mutex // guards list, omitted
	list    []netip.AddrPort
	omitted int
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

// set says whether anything changed.
func (f *fallback) set(endpoints []netip.AddrPort, own []netip.Addr) bool {
	list, omitted := clean(endpoints, own)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(list) == 0 {
		return false
	}
	f.omitted = omitted
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
	if len(f.list) == 0 {
		f.list, f.omitted = clean(state.Fallback, r.Addresses)
	}
	return slices.Clone(f.list)
}

func (f *fallback) look() (list []netip.AddrPort, omitted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list), f.omitted
}

// clean returns the endpoints that rules can have: sorted, so that another order is
// no change, each once, none the agent itself, and not too many of a family.
func clean(endpoints []netip.AddrPort, own []netip.Addr) (list []netip.AddrPort, omitted int) {
	for _, e := range endpoints {
		list = append(list, netip.AddrPortFrom(e.Addr().Unmap(), e.Port()))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
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
	return list, before - len(list)
}
