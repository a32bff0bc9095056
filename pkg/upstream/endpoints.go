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

// Endpoints is the current list of servers behind a name. The zero value is empty. Several pools may share one, and
// its methods are safe for concurrent use.
type Endpoints struct {
	current atomic.Pointer[memberList] // nil before the first use
}

// A Server is one of several equivalent servers.
type Server struct {
	Addr netip.AddrPort
	Far  bool // in another zone than this node: used when those in this zone are much busier, or fail
}

// A memberList is the argument of one call of Set. It is immutable.
type memberList struct {
	ready, lastResort []Server
	replaced          chan struct{} // closed when a newer list replaces it
}

// Set replaces the servers. The servers of ready share the queries, those of this zone first. Those of lastResort are
// asked only while ready is empty, while each of ready fails, or if every ready server that a query was sent to timed
// out.
//
// A query that begins after Set has returned goes to no server outside the two lists. A query that was sent to such a
// server before may still get its answer from there; on failure or timeout it is sent to another one in the time that
// is left. A server that stays, with the same Far, keeps its connections and counters.
//
// Set ignores addresses that are invalid or lack a port, and all beyond 256. It copies both lists.
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

// sanitizeServers returns a copy of the list with valid addresses only.
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

// load returns the current list.
func (e *Endpoints) load() *memberList {
	m := e.current.Load()
	if m == nil {
		e.current.CompareAndSwap(nil, &memberList{replaced: make(chan struct{})})
		m = e.current.Load()
	}
	return m
}

// refreshSnapshot publishes the current endpoints, unless another goroutine just did.
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
				p.log.Warn("upstream excluded", "reason", "own address", "upstream", s.Addr)
			}
			next.selfAddrs = append(next.selfAddrs, s.Addr)
		}
		return list
	}
	p.publishLocked(next, others(m.ready), others(m.lastResort))
	return next
}

// watchEndpoints applies every change until ctx ends, so that connections to removed servers close without waiting
// for the next query.
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
