// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// neighbours hand the central resolver's endpoints on to the pool that asks them, with the word which are near: in
// this node's topology zone. Endpoints and zone are learned apart, and each may change.
type neighbours struct {
	endpoints *upstream.Endpoints

	mu    sync.Mutex // guards the fields below, and keeps the calls of Set in their order
	known bool       // the endpoints were told
	ready []watch.Server
	own   []netip.AddrPort // the service's addresses
	since time.Time        // when they were right, if it is a snapshot that has them; zero: they were told
	zone  string           // of this node; empty: it has none, or it is not known
}

// tell says which endpoints there are.
func (n *neighbours) tell(ready []watch.Server, own []netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known, n.ready, n.own, n.since = true, ready, own, time.Time{}
	n.setLocked()
}

// move says in which zone this node is. It may be called on nil.
func (n *neighbours) move(zone string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.zone == zone {
		return
	}
	n.zone = zone
	if n.known {
		n.setLocked()
	}
}

func (n *neighbours) setLocked() {
	ready := make([]upstream.Server, 0, len(n.ready))
	for _, s := range n.ready {
		ready = append(ready, upstream.Server{Addr: s.Addr, Far: far(s, n.zone)})
	}
	own := make([]upstream.Server, 0, len(n.own))
	for _, addr := range n.own {
		own = append(own, upstream.Server{Addr: addr})
	}
	n.endpoints.Set(ready, own)
}

// far tells whether an endpoint is in another zone, as far as is known.
func far(s watch.Server, zone string) bool { return zone != "" && s.Zone != "" && s.Zone != zone }

// addresses are those of servers, in their order.
func addresses(servers []watch.Server) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(servers))
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}
