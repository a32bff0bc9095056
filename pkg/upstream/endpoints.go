// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// maxEndpoints bounds each of the two lists of an Endpoints.
const maxEndpoints = 256

// A Server is one of several equivalent servers.
type Server struct {
	Addr netip.AddrPort
	Far  bool // in another topology zone than this node: used when those in this zone are much busier, or fail
}

// Endpoints is the current list of servers behind a name. The zero value is empty. Several pools may share one, and
// its methods are safe for concurrent use.
type Endpoints struct {
	version atomic.Uint64 // counts the changes

	mu                sync.Mutex // guards the fields below, and changes of version
	ready, lastResort []Server
	changed           chan struct{} // closed by the next change; nil: no call waits for it
}

// Set replaces the servers. The servers of ready share the queries, those of this zone first. Those of lastResort are
// asked only while ready is empty, while each of ready fails, or if every ready server that a query was sent to timed
// out.
//
// A query that begins after Set has returned goes to no server outside the two lists. A query that was sent to such a
// server before may still get its answer from there; on failure or timeout it is sent to a server of the lists in the
// time that is left. A server that stays, with the same Far, keeps its connections and counters.
//
// Set ignores addresses that are invalid or lack a port, and all beyond 256. It copies both lists.
func (e *Endpoints) Set(ready, lastResort []Server) {
	ready, lastResort = sanitizeServers(ready), sanitizeServers(lastResort)
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(e.ready, ready) && slices.Equal(e.lastResort, lastResort) {
		return
	}
	e.ready, e.lastResort = ready, lastResort
	e.version.Add(1)
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// nextChange returns a channel that the next change closes.
func (e *Endpoints) nextChange() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// list returns the current servers. The slices are immutable.
func (e *Endpoints) list() (ready, lastResort []Server, version uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready, e.lastResort, e.version.Load()
}

// sanitizeServers returns a copy of the first maxEndpoints servers with a valid address and a port.
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
