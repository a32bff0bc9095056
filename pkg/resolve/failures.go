// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxFailedClients bounds the clients that are kept of one route between two calls of TakeFailures.
const maxFailedClients = 8

// RouteFailures are the SERVFAIL replies for the names of one route.
type RouteFailures struct {
	Zone    string // the suffix of the route, with a final dot; the cluster domain if no route takes its names
	Queries uint64
	Clients []FailedClient // the first ones, at most maxFailedClients
}

// A FailedClient got SERVFAIL.
type FailedClient struct {
	Addr netip.Addr
	Pod  string // as namespace/name; empty: unknown
	Name string // the first name, with a final dot
}

// failures counts the failed replies by route until they are taken. A hostile pod can fill neither the places of other
// clients nor memory: each client has one place.
type failures struct {
	mu      sync.Mutex
	byRoute map[string]*RouteFailures // by suffix, in wire form
}

// add counts a SERVFAIL for a client.
func (f *failures) add(plan *Plan, ask *wire.Question, addr netip.Addr) {
	var room [wire.MaxName]byte
	name, suffix := canonical(&room, ask), plan.Cluster
	if route := plan.route(name); route != nil {
		suffix = route.Suffix
	} else if !isIn(name, suffix) {
		return // no route takes the name
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.byRoute[string(suffix)]
	if r == nil {
		if f.byRoute == nil {
			f.byRoute = map[string]*RouteFailures{}
		}
		r = &RouteFailures{Zone: string(wire.AppendText(nil, suffix))}
		f.byRoute[string(suffix)] = r
	}
	r.Queries++
	if len(r.Clients) == maxFailedClients || slices.ContainsFunc(r.Clients, func(c FailedClient) bool { return c.Addr == addr }) {
		return
	}
	c := FailedClient{Addr: addr, Name: string(wire.AppendText(nil, name))}
	if plan.Pods != nil {
		if pod, _ := plan.Pods.UsageOf(addr); pod != nil {
			c.Pod = pod.String()
		}
	}
	r.Clients = append(r.Clients, c)
}

// TakeFailures returns the failed replies since the last call.
func (r *Resolver) TakeFailures() []RouteFailures {
	f := &r.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]RouteFailures, 0, len(f.byRoute))
	for _, of := range f.byRoute {
		list = append(list, *of)
	}
	clear(f.byRoute)
	return list
}
