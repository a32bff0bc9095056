// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// centralEndpoints passes the central resolver's endpoints to the pool that asks them, marked by whether they
// are in this node's topology zone. Endpoints and zone are learned separately, and both may change.
type centralEndpoints struct {
	endpoints *upstream.Endpoints

	mu         sync.Mutex // guards the fields below, and orders the calls of Set
	known      bool       // the endpoints are known
	ready      []watch.Server
	own        []netip.AddrPort // the service's addresses
	restoredAt time.Time        // when a snapshot's endpoints were current; zero: confirmed by the watch
	zone       string           // of this node; empty: none, or unknown
}

// set stores endpoints that the watch reported.
func (n *centralEndpoints) set(ready []watch.Server, own []netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known, n.ready, n.own, n.restoredAt = true, ready, own, time.Time{}
	n.setLocked()
}

// setZone stores the zone of this node. n may be nil.
func (n *centralEndpoints) setZone(zone string) {
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

func (n *centralEndpoints) setLocked() {
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

// far reports whether an endpoint is known to be in another zone.
func far(s watch.Server, zone string) bool { return zone != "" && s.Zone != "" && s.Zone != zone }

// addresses returns the addresses of servers, in their order.
func addresses(servers []watch.Server) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(servers))
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}

// topologyZone returns the zone of this node, "" if it is unknown.
func (c *cluster) topologyZone(setting string) string {
	if setting != "auto" {
		return setting
	}
	if learned := c.nodeZone.Load(); learned != nil {
		return *learned
	}
	return os.Getenv("NODE_ZONE")
}

// The API server is asked for this node's topology zone at these intervals. The wait doubles because a
// missing permission is rarely granted soon, and clusters have many nodes.
const (
	zoneRetry      = 30 * time.Second
	zoneRetryLimit = 16 * time.Minute // after doubling
)

// watchNodeZone asks the API server for this node's topology zone until it is known. Then the zone and the
// choice of central endpoints use it.
func (a *Agent) watchNodeZone(ctx context.Context) {
	for wait := zoneRetry; ; {
		r := a.running.Load()
		if w, ok := r.zoneWatch(); ok {
			name, err := w.NodeZone(ctx)
			if err == nil {
				r.cluster.nodeZone.Store(&name)
				a.log.InfoContext(ctx, "topology zone found", "zone", cmp.Or(name, "none"))
				a.request(request{replan: true})
				wait = zoneRetry
			} else {
				a.log.DebugContext(ctx, "reading topology zone failed", "err", err)
				wait = min(2*wait, zoneRetryLimit)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// zoneWatch returns the watch that can read this node's topology zone, if the zone is needed.
func (r *generation) zoneWatch() (*watch.Watch, bool) {
	c := r.cluster
	if c == nil || r.config.Cluster.NodeZone != "auto" || os.Getenv("NODE_ZONE") != "" || os.Getenv("NODE_NAME") == "" {
		return nil, false
	}
	w, ok := c.source.(*watch.Watch)
	return w, ok && c.nodeZone.Load() == nil && (c.store != nil || c.central != nil && c.centralEndpoints != nil)
}
