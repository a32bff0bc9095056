// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/retry"
)

// batchDelay is how long the report of a change waits for further changes: a Service and its slices change in several steps.
const batchDelay = 10 * time.Millisecond

// dnsPort is the number a Service gives its DNS port, RFC 1035 section 4.2.
const dnsPort = 53

// A ServiceWatch reports the ready endpoints of one service.
type ServiceWatch struct {
	Namespace, Service string

	// Changed receives the ready endpoints that are not terminating. If there is none, it receives the terminating
	// endpoints that still serve, as kube-proxy does. Each has the target port of the service's port 53/TCP, or else of
	// its TCP port named dns-tcp or dns. The second argument is the service's own addresses with that port number. Both
	// lists are sorted by address and have no duplicates. Either may be empty, and the callee may keep them. The first
	// call is made when the state is complete, further calls on each change, never two at a time.
	Changed func(ready []Server, service []netip.AddrPort)

	// Excluded receives whether the service has the annotation by which Calico's eBPF data plane leaves its packets as they are. It is
	// called before Changed. Nil: it is not reported.
	Excluded func(bool)
}

// excludeAnnotation is "true" on a Service whose packets Calico's eBPF data plane does not translate.
const excludeAnnotation = "projectcalico.org/natExcludeService"

// A Server is one endpoint of the watched service.
type Server struct {
	Addr netip.AddrPort
	Zone string // topology zone of its node; empty: unknown
}

// A serviceWatcher collects the objects of a ServiceWatch and reports changes. Its methods are safe for concurrent use.
type serviceWatcher struct {
	cfg  ServiceWatch
	wake chan struct{} // capacity 1: there may be a change to report

	mu       sync.Mutex // guards the following fields
	onSynced func()     // called once the first state is reported; nil: it is not complete yet
	service  zone.Service
	excluded bool                      // service has excludeAnnotation
	slices   map[string]sliceEndpoints // endpoints of each slice, by the slice's name
}

// sliceEndpoints are the relevant parts of one EndpointSlice.
type sliceEndpoints struct {
	ports       []zone.Port
	ready       []Server // ready and not terminating, with port 0
	terminating []Server // terminating and still serving, with port 0
}

// newServiceWatcher returns a serviceWatcher without objects.
func newServiceWatcher(f ServiceWatch) *serviceWatcher {
	return &serviceWatcher{cfg: f, wake: make(chan struct{}, 1), slices: make(map[string]sliceEndpoints)}
}

// run reports each change until ctx ends. Changes within batchDelay are reported together. The first state is complete,
// so it is reported without delay.
func (w *serviceWatcher) run(ctx context.Context) {
	var ready []Server
	var service []netip.AddrPort
	excluded := false
	for reported := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		if reported && retry.Sleep(ctx, batchDelay) != nil {
			return
		}
		r, s, e, settled := w.snapshot()
		if settled == nil || reported && slices.Equal(r, ready) && slices.Equal(s, service) && e == excluded {
			continue
		}
		if w.cfg.Excluded != nil {
			w.cfg.Excluded(e)
		}
		w.cfg.Changed(slices.Clone(r), slices.Clone(s))
		if !reported {
			settled()
		}
		reported, ready, service, excluded = true, r, s, e
	}
}

// markSynced marks the first state as complete, so it can be reported. onSynced is called after the first report.
func (w *serviceWatcher) markSynced(onSynced func()) {
	w.change(func() { w.onSynced = onSynced })
}

// target returns a target for the objects of one kind. Of these, w keeps those of the watched service.
func (w *serviceWatcher) target(kind zone.Kind) target {
	return target{
		put: w.put,
		remove: func(namespace, name string, _ time.Time) bool {
			w.retain(kind, func(otherNamespace, other string) bool { return otherNamespace != namespace || other != name })
			return true
		},
		retain: func(keep func(namespace, name string) bool, _ time.Time) { w.retain(kind, keep) },
	}
}

// put keeps an object if it is the watched service or one of its slices.
func (w *serviceWatcher) put(obj runtime.Object, _ time.Time) bool {
	switch o := obj.(type) {
	case *corev1.Service:
		if w.isWatched(o.Namespace, o.Name) {
			record, _ := serviceOf(o, false)
			w.change(func() { w.service, w.excluded = record, o.Annotations[excludeAnnotation] == "true" })
		}
	case *discoveryv1.EndpointSlice:
		record, ok := sliceOf(o)
		if !ok || !w.isWatched(record.Namespace, record.Service) {
			if o.Namespace == w.cfg.Namespace { // the slice may have belonged to the service before
				w.change(func() { delete(w.slices, o.Name) })
			}
			return true
		}
		s := sliceEndpoints{ports: record.Ports}
		for i := range o.Endpoints {
			s.add(&o.Endpoints[i])
		}
		w.change(func() { w.slices[o.Name] = s })
	default:
	}
	return true
}

// retain drops the objects of one kind for which keep returns false.
func (w *serviceWatcher) retain(kind zone.Kind, keep func(namespace, name string) bool) {
	w.change(func() {
		if kind == zone.Services && !keep(w.cfg.Namespace, w.cfg.Service) {
			w.service, w.excluded = zone.Service{}, false
		}
		if kind == zone.Slices {
			maps.DeleteFunc(w.slices, func(name string, _ sliceEndpoints) bool { return !keep(w.cfg.Namespace, name) })
		}
	})
}

// add adds an endpoint that serves or may serve. Unknown counts as ready, and an unset serving condition equals ready,
// as the API asks of its clients.
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
		*to = append(*to, Server{netip.AddrPortFrom(addr, 0), orZero(ep.Zone)})
	}
}

func (w *serviceWatcher) isWatched(namespace, name string) bool {
	return namespace == w.cfg.Namespace && name == w.cfg.Service
}

// change applies do and wakes run.
func (w *serviceWatcher) change(do func()) {
	w.mu.Lock()
	do()
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // run is already woken and sees this change too
	}
}

// snapshot returns the state to report and the callback for its first report. The callback is nil until the state is complete.
func (w *serviceWatcher) snapshot() (ready []Server, service []netip.AddrPort, excluded bool, settled func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.service.Name != ""
	port, serves := dnsPortOf(w.service.Ports)
	if serves {
		for _, addr := range w.service.Addrs {
			service = append(service, netip.AddrPortFrom(addr, port.Number))
		}
	}
	var leaving []Server
	for _, s := range w.slices {
		if known && !serves {
			break // the Service has no DNS port, so its slices have none
		}
		if target, found := targetPort(s.ports, port.Name, known); found {
			ready, leaving = appendServers(ready, s.ready, target), appendServers(leaving, s.terminating, target)
		}
	}
	if len(ready) == 0 {
		ready = leaving
	}
	slices.SortFunc(service, netip.AddrPort.Compare)
	return uniqueServers(ready), slices.Compact(service), w.excluded, w.onSynced
}

// appendServers appends the endpoints of a slice with their port.
func appendServers(dst, endpoints []Server, port uint16) []Server {
	for _, ep := range endpoints {
		dst = append(dst, Server{netip.AddrPortFrom(ep.Addr.Addr(), port), ep.Zone})
	}
	return dst
}

// dnsPortOf returns the port that serves DNS over TCP.
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

// targetPort returns the slice's port for the service port of this name. If the service is unknown, it picks the DNS
// port of the slice itself.
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

// uniqueServers sorts list in place and removes duplicates: while a slice is split, two slices may hold the same
// endpoint. The copy that has a zone stays.
func uniqueServers(list []Server) []Server {
	slices.SortFunc(list, func(a, b Server) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(b.Zone, a.Zone))
	})
	return slices.CompactFunc(list, func(a, b Server) bool { return a.Addr == b.Addr })
}
