// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
)

const (
	// ttlAnnotation on a Service sets the TTL of its names, as a Go duration ("30s").
	ttlAnnotation = "node-cache.io/ttl"

	// searchLabel on a Pod, with the value off, excludes it from walks of the search path.
	searchLabel = "node-cache.io/search-path"

	// maxSearches and maxSearchBytes are the most domains, and the most bytes, that the API accepts in dnsConfig.searches.
	maxSearches, maxSearchBytes = 32, 2048

	// maxPodAddrs is the most addresses of a pod that the API accepts: one of each family.
	maxPodAddrs = 2

	// ttlMax is the longest TTL that an annotation may set. Clients that keep a cluster name longer use the addresses of pods that are gone.
	ttlMax = time.Hour

	// ttlUnset selects the zone's TTL.
	ttlUnset = -1 * time.Second

	// labelMax is the longest DNS label in bytes, RFC 1035 section 2.3.4.
	labelMax = 63
)

// serviceOf converts a Service to the zone's record. With external, the record has the external addresses, and an error means that
// not all of them can be served. serviceOf ignores a TTL annotation that ttlOf refuses. The record shares only its strings with svc.
func serviceOf(svc *corev1.Service, external bool) (zone.Service, error) {
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
	case headless(svc) && len(svc.Spec.Selector) == 0:
		s.Type = zone.Unselected
	case headless(svc):
		s.Type = zone.Headless
	default:
		s.Type = zone.ClusterIP
		if s.Addrs = addrsOf(svc.Spec.ClusterIPs); len(svc.Spec.ClusterIPs) == 0 { // an API server before 1.20 sets only clusterIP
			s.Addrs = addrsOf([]string{svc.Spec.ClusterIP})
		}
	}
	if len(svc.Spec.Ports) > 0 {
		s.Ports = make([]zone.Port, 0, len(svc.Spec.Ports))
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		s.Ports = appendPort(s.Ports, p.Name, p.Protocol, p.Port)
	}
	if external {
		return s, addExternal(&s, svc)
	}
	return s, nil
}

// addExternal adds the addresses of the load balancer and spec.externalIPs, and the first host name of the load balancer.
// It fails if one of them is not served, and adds the others.
func addExternal(s *zone.Service, svc *corev1.Service) error {
	texts := slices.Clone(svc.Spec.ExternalIPs)
	for _, point := range svc.Status.LoadBalancer.Ingress {
		if point.IP == "" && len(appendAddr(nil, point.Hostname)) == 0 {
			s.ExternalHost = cmp.Or(s.ExternalHost, point.Hostname)
			continue
		}
		texts = append(texts, cmp.Or(point.IP, point.Hostname))
	}
	if s.ExternalAddrs = addrsOf(texts); len(s.ExternalAddrs) < len(texts) {
		first := slices.IndexFunc(texts, func(text string) bool { return len(appendAddr(nil, text)) == 0 })
		return fmt.Errorf("external addresses: %s: not an IP address", quoted(texts[first]))
	}
	return s.CheckExternal()
}

// headless reports whether svc has no cluster address. The first address decides, as in the API server's validation.
func headless(svc *corev1.Service) bool {
	if len(svc.Spec.ClusterIPs) > 0 {
		return svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
	}
	return svc.Spec.ClusterIP == corev1.ClusterIPNone
}

// ttlOf parses the TTL annotation. It returns ttlUnset if there is none or it is invalid.
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

// sliceOf converts an EndpointSlice to the zone's record. It reports false for a slice without use in DNS: one of type
// FQDN, or one without a service. The record shares only its strings with es.
func sliceOf(es *discoveryv1.EndpointSlice) (zone.Slice, bool) {
	return sliceFor(es, es.Labels[discoveryv1.LabelServiceName])
}

// sliceFor converts an EndpointSlice of the named service, as sliceOf does for the service of the label.
func sliceFor(es *discoveryv1.EndpointSlice, service string) (zone.Slice, bool) {
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

// appendEndpoint appends ep if it has an address.
func appendEndpoint(dst []zone.Endpoint, ep *discoveryv1.Endpoint) []zone.Endpoint {
	addrs := addrsOf(ep.Addresses)
	if len(addrs) == 0 {
		return dst
	}
	e := zone.Endpoint{
		Addrs:    addrs,
		Hostname: orZero(ep.Hostname),
		Zone:     orZero(ep.Zone),
		// An unknown condition counts as ready, as the API asks of its clients.
		Ready: ep.Conditions.Ready == nil || *ep.Conditions.Ready,
	}
	// A target of a kind other than Pod names the endpoint too, as in CoreDNS. A name longer than a label cannot.
	if ref := ep.TargetRef; ref != nil && len(ref.Name) <= labelMax {
		e.Pod = ref.Name
	}
	return append(dst, e)
}

// podOf converts a Pod to the zone's record. It reports false for a pod without an address and for one whose containers
// have ended. A terminating pod keeps its address, and so its name, until it is deleted. A pod on the host network counts
// like any other: its name is made from that address.
func podOf(pod *corev1.Pod) (zone.Pod, bool) {
	if p := pod.Status.Phase; p == corev1.PodSucceeded || p == corev1.PodFailed {
		return zone.Pod{}, false // the address may belong to another pod by now
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

// maxObjectName is the longest name of an object that the API accepts, in bytes. It bounds the kind of a pod's controller, too.
const maxObjectName = 253

// isObjectName reports whether text may be a kind or the name of a pod or controller. The API server accepts any bytes, of
// any length, in an owner reference, the kubelet's socket may be another program's, and names are printed on terminals.
func isObjectName(text string) bool {
	return len(text) <= maxObjectName && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// ownPodOf returns the record of a pod of the node. It is nil for a pod on another node, for one with odd names or no addresses, and
// if another client may use the pod's addresses: on the host network they are the node's, and once a pod ends, another pod may get
// them before the end is reported. If node is empty, pods of any node have a record. A record has at most 4 KiB.
func ownPodOf(pod *corev1.Pod, node string) *pods.Pod {
	record, ok := podOf(pod)
	if !ok || pod.Spec.HostNetwork || pod.DeletionTimestamp != nil || mayHaveEnded(pod) || node != "" && pod.Spec.NodeName != node {
		return nil
	}
	if !isObjectName(record.Namespace) || !isObjectName(record.Name) || len(record.Addrs) > maxPodAddrs {
		return nil
	}
	return &pods.Pod{Namespace: record.Namespace, Name: record.Name, Workload: workloadOf(pod), Addrs: record.Addrs, DNS: dnsOf(pod)}
}

// dnsOf returns the pod's settings for its resolv.conf. An ndots that is not a number has no effect, as in resolvers.
func dnsOf(pod *corev1.Pod) pods.DNS {
	d := pods.DNS{Skip: pod.Labels[searchLabel] == "off"}
	if p := pod.Spec.DNSPolicy; p == corev1.DNSNone || p == corev1.DNSDefault {
		d.Policy = string(p)
	}
	c := pod.Spec.DNSConfig
	if c == nil {
		return d
	}
	if d.Searches = c.Searches; len(c.Searches) > maxSearches || len(strings.Join(c.Searches, " ")) > maxSearchBytes {
		d.Searches, d.Skip = nil, true
	}
	for _, option := range c.Options {
		if option.Name == "ndots" && option.Value != nil {
			if n, err := strconv.Atoi(*option.Value); err == nil {
				d.Ndots, d.Skip = n, d.Skip || n < 1 // with ndots 0, resolvers try each name as it is first
			}
		}
	}
	return d
}

// mayHaveEnded reports whether the pod's network may be gone: its sandbox is gone, or all containers have terminated and may
// not be restarted.
func mayHaveEnded(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse {
			return true
		}
	}
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Terminated == nil })
}

// workloadOf returns KIND/NAME of the pod's controller, with the Deployment in place of its ReplicaSet; "" without a usable one.
func workloadOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !isObjectName(owner.Kind) || !isObjectName(owner.Name) {
		return ""
	}
	name, found := strings.CutSuffix(owner.Name, "-"+pod.Labels["pod-template-hash"])
	if owner.Kind == "ReplicaSet" && found {
		return "Deployment/" + name
	}
	return owner.Kind + "/" + owner.Name
}

// appendPort appends a port with a usable number. A port without a number means all ports and has no SRV record.
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

// addrsOf parses addresses and skips everything that is not an address, such as "None".
func addrsOf(texts []string) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		addrs = appendAddr(addrs, text)
	}
	return addrs
}

// appendAddr appends the address in text, if it is one. An IPv4-mapped IPv6 address counts as IPv4. An address with an
// IPv6 zone is skipped: it means nothing on another node.
func appendAddr(dst []netip.Addr, text string) []netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil || strings.Contains(text, "%") {
		return dst
	}
	return append(dst, addr.Unmap())
}

// orZero returns *p, or the zero value if p is nil.
func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
