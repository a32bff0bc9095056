// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/pkg/zone"
)

const (
	// ttlAnnotation on a Service gives the TTL of its names, as a Go duration ("30s").
	ttlAnnotation = "node-cache.io/ttl"

	// ttlMax is the longest TTL an annotation may ask for. A cluster name that is kept longer outlives too many pods.
	ttlMax = time.Hour

	// ttlUnset leaves the TTL to the zone.
	ttlUnset = -1 * time.Second

	// labelMax is the longest DNS label in octets, RFC 1035 section 2.3.4.
	labelMax = 63
)

// serviceOf gives the zone's record of a Service. A TTL annotation that ttlOf refuses counts as none.
// The record shares its strings with svc, nothing else.
func serviceOf(svc *corev1.Service) zone.Service {
	ttl, err := ttlOf(svc.Annotations)
	if err != nil {
		ttl = ttlUnset
	}
	s := zone.Service{
		Namespace:       svc.Namespace,
		Name:            svc.Name,
		PublishNotReady: svc.Spec.PublishNotReadyAddresses,
		TTL:             ttl,
	}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		s.Type = zone.ExternalName
		s.ExternalName = svc.Spec.ExternalName
	case headless(svc):
		s.Type = zone.Headless
	default:
		s.Type = zone.ClusterIP
		s.Addrs = clusterAddrs(svc)
	}
	if len(svc.Spec.Ports) > 0 {
		s.Ports = make([]zone.Port, 0, len(svc.Spec.Ports))
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		s.Ports = appendPort(s.Ports, p.Name, p.Protocol, p.Port)
	}
	return s
}

// headless says whether svc asks for no cluster address. The first address decides, as in the API server's validation.
func headless(svc *corev1.Service) bool {
	if len(svc.Spec.ClusterIPs) > 0 {
		return svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
	}
	return svc.Spec.ClusterIP == corev1.ClusterIPNone
}

// clusterAddrs gives the cluster addresses of svc. Servers before 1.20 fill only the single field.
func clusterAddrs(svc *corev1.Service) []netip.Addr {
	if len(svc.Spec.ClusterIPs) > 0 {
		return addrsOf(svc.Spec.ClusterIPs)
	}
	return addrsOf([]string{svc.Spec.ClusterIP})
}

// ttlOf reads the TTL annotation. Without one it gives a negative duration.
func ttlOf(annotations map[string]string) (time.Duration, error) {
	text, ok := annotations[ttlAnnotation]
	if !ok {
		return ttlUnset, nil
	}
	ttl, err := time.ParseDuration(text)
	if err != nil {
		return ttlUnset, fmt.Errorf("annotation %s: %q is not a duration", ttlAnnotation, text)
	}
	if ttl < 0 || ttl > ttlMax {
		return ttlUnset, fmt.Errorf("annotation %s: %q is not within 0s and %s", ttlAnnotation, text, ttlMax)
	}
	return ttl, nil
}

// sliceOf gives the zone's record of an EndpointSlice, and false for one that has no place in DNS: one of
// host names in place of addresses, or of no service. The record shares its strings with es, nothing else.
func sliceOf(es *discoveryv1.EndpointSlice) (zone.Slice, bool) {
	service := es.Labels[discoveryv1.LabelServiceName]
	if service == "" || es.AddressType == discoveryv1.AddressTypeFQDN {
		return zone.Slice{}, false
	}
	s := zone.Slice{Namespace: es.Namespace, Name: es.Name, Service: service}
	if len(es.Ports) > 0 {
		s.Ports = make([]zone.Port, 0, len(es.Ports))
	}
	for i := range es.Ports {
		p := &es.Ports[i]
		s.Ports = appendPort(s.Ports, orZero(p.Name), orZero(p.Protocol), orZero(p.Port))
	}
	s.Endpoints = make([]zone.Endpoint, 0, len(es.Endpoints))
	for i := range es.Endpoints {
		s.Endpoints = appendEndpoint(s.Endpoints, &es.Endpoints[i])
	}
	return s, true
}

// appendEndpoint appends ep unless it has no address.
func appendEndpoint(dst []zone.Endpoint, ep *discoveryv1.Endpoint) []zone.Endpoint {
	addrs := addrsOf(ep.Addresses)
	if len(addrs) == 0 {
		return dst
	}
	e := zone.Endpoint{
		Addrs:    addrs,
		Hostname: orZero(ep.Hostname),
		Zone:     orZero(ep.Zone),
		// Unknown counts as ready: the API asks its readers to take it so.
		Ready: ep.Conditions.Ready == nil || *ep.Conditions.Ready,
	}
	// A target of another kind than Pod names the endpoint too, as in CoreDNS; a name that is no label cannot.
	if ref := ep.TargetRef; ref != nil && len(ref.Name) <= labelMax {
		e.Pod = ref.Name
	}
	return append(dst, e)
}

// podOf gives the zone's record of a Pod, and false for one that has no address or whose containers have ended.
// A pod that is about to end keeps its address, and so its name, until it is gone. A pod of the node's own network
// is a pod like the others: its name is asked by that address.
func podOf(pod *corev1.Pod) (zone.Pod, bool) {
	if p := pod.Status.Phase; p == corev1.PodSucceeded || p == corev1.PodFailed {
		return zone.Pod{}, false // the address may have gone to another pod
	}
	var addrs []netip.Addr
	for i := range pod.Status.PodIPs {
		addrs = appendAddr(addrs, pod.Status.PodIPs[i].IP)
	}
	if len(addrs) == 0 {
		addrs = appendAddr(addrs, pod.Status.PodIP)
	}
	if len(addrs) == 0 {
		return zone.Pod{}, false
	}
	return zone.Pod{Namespace: pod.Namespace, Name: pod.Name, Addrs: addrs}, true
}

// appendPort appends a port that can be connected to. A port without number stands for all of them; it has no SRV record.
func appendPort(dst []zone.Port, name string, protocol corev1.Protocol, number int32) []zone.Port {
	if number < 1 || number > 65535 {
		return dst
	}
	p := zone.Port{Name: name, Number: uint16(number)}
	switch protocol {
	case corev1.ProtocolTCP, "":
		p.Protocol = zone.TCP
	case corev1.ProtocolUDP:
		p.Protocol = zone.UDP
	case corev1.ProtocolSCTP:
		p.Protocol = zone.SCTP
	default:
		return dst
	}
	return append(dst, p)
}

// addrsOf reads addresses and leaves out what is none, "None" among it.
func addrsOf(texts []string) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		addrs = appendAddr(addrs, text)
	}
	return addrs
}

// appendAddr appends the address text stands for, if it stands for one. An IPv4 address written as IPv6 counts as IPv4,
// and an address with an interface means nothing to another node.
func appendAddr(dst []netip.Addr, text string) []netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil || strings.Contains(text, "%") {
		return dst
	}
	return append(dst, addr.Unmap())
}

// orZero gives what p points to, or the zero value.
func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
