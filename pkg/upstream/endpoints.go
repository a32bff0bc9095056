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
	current atomic.Pointer[memberList] // nil before the first use
}

// A Server is one of several that are asked alike.
type Server struct {
	Addr netip.AddrPort
	Far  bool // in another zone than this machine: asked when those nearer are much busier, or fail
}

// A membership is what one call of Set gave. It never changes.
type memberList struct {
	ready, lastResort []Server
	replaced          chan struct{} // closed when there is a newer one
}

// Set says which servers there are from now on. Those of ready share the
// queries, the nearer ones first; those of lastResort are asked only while ready
// is empty, each of ready fails, or all that a query asked there were silent for
// longer than they should. A query that begins after Set has returned is sent to
// none that is in neither list; one that was sent to such a server before may still
// get its answer from there, and is asked elsewhere, in the time it has left, when
// that fails or is late. A server that stays, and is as far as before, keeps its
// connections and counters.
//
// Addresses that are not valid or lack a port are left out, and so are those
// beyond 256. Both lists are copied.
func (e *Endpoints) Set(ready, lastResort []Server) {
	next := &memberList{ready: sanitizeServers(ready), lastResort: sanitizeServers(lastResort), replaced: make(chan struct{})}
	for {
		old := e.load()
		if slices.Equal(old.ready, next.ready) && slices.Equal(old.lastResort, next.lastResort) {
			return
		}
		if e.current.CompareAndSwap(old, next) {
			close(old.replaced)
			return
		}
	}
}

// usable is a copy of a list, cleaned.
func sanitizeServers(servers []Server) []Server {
	list := make([]Server, 0, min(len(servers), maxEndpoints))
	for _, s := range servers {
		s.Addr = netip.AddrPortFrom(s.Addr.Addr().Unmap(), s.Addr.Port())
		if s.Addr.IsValid() && s.Addr.Port() != 0 && len(list) < maxEndpoints {
			list = append(list, s)
		}
	}
	return list
}

// load is the membership of now.
func (e *Endpoints) load() *memberList {
	m := e.current.Load()
	if m == nil {
		e.current.CompareAndSwap(nil, &memberList{replaced: make(chan struct{})})
		m = e.current.Load()
	}
	return m
}

// refresh publishes the endpoints of now, unless somebody else just did.
func (p *Pool) refreshSnapshot() *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, old := p.endpoints.load(), p.snapshot.Load()
	if old.members == m {
		return old
	}
	next := &snapshot{members: m}
	others := func(servers []Server) []endpointKey {
		list := make([]endpointKey, 0, len(servers))
		for _, s := range servers {
			switch {
			case !p.self(s.Addr):
				list = append(list, endpointKey{network: "tcp", addr: s.Addr, near: !s.Far})
				continue
			case !slices.Contains(old.selfAddrs, s.Addr):
				p.log.Warn("upstream left out: it leads back here", "upstream", s.Addr)
			}
			next.selfAddrs = append(next.selfAddrs, s.Addr)
		}
		return list
	}
	p.publishLocked(next, others(m.ready), others(m.lastResort))
	return next
}

// followEndpoints takes every change over until ctx ends, so that connections
// to those that left do not wait for the next query to be closed.
func (p *Pool) watchEndpoints(ctx context.Context) {
	for {
		snap := p.currentSnapshot()
		p.reapDrained()
		select {
		case <-snap.members.replaced:
		case <-ctx.Done():
			return
		}
	}
}
