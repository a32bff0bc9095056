// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
)

// maxEndpoints is how many servers of one Endpoints are used.
const maxEndpoints = 256

// Endpoints is the servers behind a name, as somebody who watches it tells. The
// zero value has none yet. Any number of pools may follow it, and its methods may
// be called from any goroutine.
type Endpoints struct {
	members atomic.Pointer[membership] // nil before the first use
}

// A membership is what one call of Set gave. It never changes.
type membership struct {
	ready, last []netip.AddrPort
	replaced    chan struct{} // closed when there is a newer one
}

// Set says which servers there are from now on. Those of ready share the
// queries; those of lastResort are asked only while ready is empty or each of
// ready fails. A query that begins after Set has returned is sent to none that
// is in neither list; one that was sent to such a server before may still get
// its answer from there, and is asked elsewhere, in the time it has left, when
// that fails or is late. A server that stays keeps its connections and
// counters.
//
// Addresses that are not valid or lack a port are left out, and so are those
// beyond 256. Both lists are copied.
func (e *Endpoints) Set(ready, lastResort []netip.AddrPort) {
	next := &membership{ready: usable(ready), last: usable(lastResort), replaced: make(chan struct{})}
	for {
		old := e.load()
		if slices.Equal(old.ready, next.ready) && slices.Equal(old.last, next.last) {
			return
		}
		if e.members.CompareAndSwap(old, next) {
			close(old.replaced)
			return
		}
	}
}

// usable is a copy of a list, cleaned.
func usable(addrs []netip.AddrPort) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, min(len(addrs), maxEndpoints))
	for _, addr := range addrs {
		addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
		if addr.IsValid() && addr.Port() != 0 && len(list) < maxEndpoints {
			list = append(list, addr)
		}
	}
	return list
}

// load is the membership of now.
func (e *Endpoints) load() *membership {
	m := e.members.Load()
	if m == nil {
		e.members.CompareAndSwap(nil, &membership{replaced: make(chan struct{})})
		m = e.members.Load()
	}
	return m
}

// refresh publishes the endpoints of now, unless somebody else just did.
func (p *Pool) refresh() *roster {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, old := p.follow.load(), p.list.Load()
	if old.from == m {
		return old
	}
	next := &roster{from: m}
	others := func(addrs []netip.AddrPort) []listing {
		list := make([]listing, 0, len(addrs))
		for _, addr := range addrs {
			switch {
			case !p.self(addr):
				list = append(list, listing{"tcp", addr})
				continue
			case !slices.Contains(old.self, addr):
				p.log.Warn("upstream left out: it leads back here", "upstream", addr)
			}
			next.self = append(next.self, addr)
		}
		return list
	}
	p.publishLocked(next, others(m.ready), others(m.last))
	return next
}

// followEndpoints takes every change over until ctx ends, so that connections
// to those that left do not wait for the next query to be closed.
func (p *Pool) followEndpoints(ctx context.Context) {
	for {
		list := p.current()
		p.sweep()
		select {
		case <-list.from.replaced:
		case <-ctx.Done():
			return
		}
	}
}
