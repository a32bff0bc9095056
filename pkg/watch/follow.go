// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/pkg/zone"
)

// gatherTime is how long a change waits for others: that of a service and its slices comes in pieces.
const batchDelay = 10 * time.Millisecond

// dnsPort is the number a Service gives its DNS port, RFC 1035 section 4.2.
const dnsPort = 53

// A Follow says whose ready endpoints somebody wants to know.
type ServiceWatch struct {
	Namespace, Service string

	// Changed is told the endpoints that are ready and not about to end, or while there is none, those that are about
	// to end and still serve, as kube-proxy does: each with the target port of the service's port 53/TCP, else of its
	// TCP port named dns-tcp or dns. Beside them it is told the service's own addresses with that port's number. Both
	// are sorted by address, without repetition and the callee's to keep; either may be empty. It is called once when the first
	// view is complete, then on each change, never by two goroutines at a time.
	Changed func(ready []Server, service []netip.AddrPort)
}

// A Server is one endpoint of the service that is followed.
type Server struct {
	Addr netip.AddrPort
	Zone string // topology zone of its node; empty: not known
}

// A follower keeps what a Follow asks for, and tells it. Its methods may be called by several goroutines.
type serviceWatcher struct {
	cfg  ServiceWatch
	wake chan struct{} // holds one: there is something to tell

	mu       sync.Mutex // guards the following fields
	onSynced func()     // called once the first view is told; nil: it is not complete yet
	service  zone.Service
	slices   map[string]sliceEndpoints // by name
}

// A followedSlice is what counts of one EndpointSlice.
type sliceEndpoints struct {
	ports       []zone.Port
	ready       []zonedAddr // and not about to end
	terminating []zonedAddr // about to end, and still serving
}

// A placed is an address and the topology zone that it is in.
type zonedAddr struct {
	addr netip.Addr
	zone string
}

// newFollower makes a follower that knows nothing yet.
func newServiceWatcher(f ServiceWatch) *serviceWatcher {
	return &serviceWatcher{cfg: f, wake: make(chan struct{}, 1), slices: make(map[string]sliceEndpoints)}
}

// run tells each change until ctx ends. Changes within gatherTime are told as one, but nothing is gained by waiting with
// the first view, which is whole.
func (f *serviceWatcher) run(ctx context.Context) {
	var ready []Server
	var service []netip.AddrPort
	for told := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		if told && !sleep(ctx, batchDelay) {
			return
		}
		r, s, settled := f.snapshot()
		if settled == nil || told && slices.Equal(r, ready) && slices.Equal(s, service) {
			continue
		}
		f.cfg.Changed(slices.Clone(r), slices.Clone(s))
		if !told {
			settled()
		}
		told, ready, service = true, r, s
	}
}

// settle says that the first view is complete: from now on there is something to tell. told is called when that was
// told for the first time.
func (f *serviceWatcher) markSynced(told func()) {
	f.change(func() { f.onSynced = told })
}

// putService takes the Service if it is the one followed.
func (f *serviceWatcher) putService(svc *corev1.Service) {
	if f.isWatched(svc.Namespace, svc.Name) {
		record := serviceOf(svc)
		f.change(func() { f.service = record })
	}
}

// deleteService forgets the Service if it is the one followed.
func (f *serviceWatcher) deleteService(namespace, name string) {
	if f.isWatched(namespace, name) {
		f.change(func() { f.service = zone.Service{} })
	}
}

// putSlice takes the EndpointSlice if it belongs to the service followed, and forgets it if it no longer does.
func (f *serviceWatcher) putSlice(es *discoveryv1.EndpointSlice) {
	record, ok := sliceOf(es)
	if !ok || !f.isWatched(record.Namespace, record.Service) {
		f.deleteSlice(es.Namespace, es.Name)
		return
	}
	s := sliceEndpoints{ports: record.Ports}
	for i := range es.Endpoints {
		s.add(&es.Endpoints[i])
	}
	f.change(func() { f.slices[es.Name] = s })
}

// add takes an endpoint that is or may be asked. Unknown counts as ready, and where nothing is said of serving, ready
// says it: the API asks its readers to take it so.
func (s *sliceEndpoints) add(ep *discoveryv1.Endpoint) {
	ready := ep.Conditions.Ready == nil || *ep.Conditions.Ready
	serving := ready
	if ep.Conditions.Serving != nil {
		serving = *ep.Conditions.Serving
	}
	to := &s.ready
	switch ending := orZero(ep.Conditions.Terminating); {
	case ending && serving:
		to = &s.terminating
	case ending, !ready:
		return
	}
	for _, addr := range addrsOf(ep.Addresses) {
		*to = append(*to, zonedAddr{addr, orZero(ep.Zone)})
	}
}

// deleteSlice forgets an EndpointSlice.
func (f *serviceWatcher) deleteSlice(namespace, name string) {
	if namespace == f.cfg.Namespace {
		f.change(func() { delete(f.slices, name) })
	}
}

// retain forgets the service, or the slices, that keep does not hold.
func (f *serviceWatcher) retain(kind zone.Kind, keep func(namespace, name string) bool) {
	f.change(func() {
		switch kind {
		case zone.Services:
			if !keep(f.cfg.Namespace, f.cfg.Service) {
				f.service = zone.Service{}
			}
		case zone.Slices:
			for name := range f.slices {
				if !keep(f.cfg.Namespace, name) {
					delete(f.slices, name)
				}
			}
		default:
		}
	})
}

func (f *serviceWatcher) isWatched(namespace, name string) bool {
	return namespace == f.cfg.Namespace && name == f.cfg.Service
}

// change applies do and asks run to look.
func (f *serviceWatcher) change(do func()) {
	f.mu.Lock()
	do()
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // run will look anyway, and see this too
	}
}

// view gives what there is to tell, and what to call once it is told; nil while the first view is not complete.
func (f *serviceWatcher) snapshot() (ready []Server, service []netip.AddrPort, settled func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.service.Name != ""
	port, serves := dnsPortOf(f.service.Ports)
	if serves {
		for _, addr := range f.service.Addrs {
			service = append(service, netip.AddrPortFrom(addr, port.Number))
		}
	}
	var leaving []Server
	for _, s := range f.slices {
		if known && !serves {
			break // its slices have no such port either
		}
		if target, found := targetPort(s.ports, port.Name, known); found {
			ready, leaving = appendServers(ready, s.ready, target), appendServers(leaving, s.terminating, target)
		}
	}
	if len(ready) == 0 {
		ready = leaving
	}
	slices.SortFunc(service, netip.AddrPort.Compare)
	return uniqueServers(ready), slices.Compact(service), f.onSynced
}

// appendServers appends the endpoints of a slice with their port.
func appendServers(dst []Server, endpoints []zonedAddr, port uint16) []Server {
	for _, ep := range endpoints {
		dst = append(dst, Server{netip.AddrPortFrom(ep.addr, port), ep.zone})
	}
	return dst
}

// dnsPortOf gives the port that serves DNS over TCP.
func dnsPortOf(ports []zone.Port) (zone.Port, bool) {
	for _, p := range ports {
		if p.Protocol == zone.TCP && p.Number == dnsPort {
			return p, true
		}
	}
	for _, name := range []string{"dns-tcp", "dns"} {
		for _, p := range ports {
			if p.Protocol == zone.TCP && p.Name == name {
				return p, true
			}
		}
	}
	return zone.Port{}, false
}

// targetPort gives the port of a slice that stands for the service's port of this name. A slice whose service is not known
// is read by itself.
func targetPort(ports []zone.Port, name string, known bool) (uint16, bool) {
	if !known {
		p, ok := dnsPortOf(ports)
		return p.Number, ok
	}
	for _, p := range ports {
		if p.Protocol == zone.TCP && p.Name == name {
			return p.Number, true
		}
	}
	return 0, false
}

// serverSet sorts list in place and drops repetitions: while a slice is split, two may hold the same endpoint. The one
// that tells its zone stays.
func uniqueServers(list []Server) []Server {
	slices.SortFunc(list, func(a, b Server) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(b.Zone, a.Zone))
	})
	return slices.CompactFunc(list, func(a, b Server) bool { return a.Addr == b.Addr })
}
