// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// manifestCheck collects the errors for which the API server would refuse an object, as far as a DNS answer depends on
// them. It also sets the API server's defaults.
type manifestCheck struct {
	findings []manifestFinding
	fatal    bool // the object cannot be served
}

type manifestFinding struct{ field, what, hint string }

// Hints of more than one finding.
const (
	labelHint = "lower-case letters, digits and '-', at most 63, with a letter or digit at both ends"
	nameHint  = "lower-case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends"
)

// refuse records an error that makes the object unusable.
func (c *manifestCheck) refuse(field, what, hint string) {
	c.fatal = true
	c.warn(field, what, hint)
}

// warn records an error in a part that can be left out.
func (c *manifestCheck) warn(field, what, hint string) {
	c.findings = append(c.findings, manifestFinding{field, what, hint})
}

func (c *manifestCheck) names(id manifestID) {
	c.label("metadata.namespace", id.namespace)
	if id.kind == "Service" || id.kind == "Namespace" {
		c.label("metadata.name", id.name)
	} else if len(validation.IsDNS1123Subdomain(id.name)) > 0 {
		c.refuse("metadata.name", quoted(id.name)+": not a name", nameHint)
	}
}

// label refuses a text that the API server does not accept as a label. The caller handles the empty text.
func (c *manifestCheck) label(field, text string) {
	if text != "" && len(validation.IsDNS1123Label(text)) > 0 {
		c.refuse(field, quoted(text)+": not a DNS label", labelHint)
	}
}

func (c *manifestCheck) service(svc *corev1.Service) {
	spec := &svc.Spec
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	switch spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		c.clusterIPs(spec)
	case corev1.ServiceTypeExternalName:
		c.externalName(spec)
	default:
		c.refuse("spec.type", quoted(string(spec.Type))+": not a type of Service",
			"one of ClusterIP, NodePort, LoadBalancer, ExternalName")
	}
	if _, err := ttlOf(svc.Annotations); err != nil {
		c.warn("metadata.annotations", strings.TrimPrefix(err.Error(), "annotation "), "such as \"30s\"")
	}
	ports := portCheck{check: c, seen: map[string]bool{}, several: len(spec.Ports) > 1}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		ports.add(field, p.Name, &p.Protocol)
		c.portNumber(field, p.Port)
	}
}

// clusterIPs checks the addresses of a Service that needs some: without an API server, nothing assigns one.
func (c *manifestCheck) clusterIPs(spec *corev1.ServiceSpec) {
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	switch {
	case len(spec.ClusterIPs) == 0:
		c.refuse("spec.clusterIP", "missing, and there is no API server to assign one",
			"write an address, or None for the addresses of its EndpointSlices")
		return
	case spec.ClusterIP != "" && spec.ClusterIP != spec.ClusterIPs[0]:
		c.refuse("spec.clusterIPs[0]", quoted(spec.ClusterIPs[0])+": not what spec.clusterIP says", "write the same in both")
		return
	case len(spec.ClusterIPs) > 2:
		c.refuse("spec.clusterIPs", "more than two", "one for each address family")
		return
	}
	field := func(i int) string {
		if i == 0 && spec.ClusterIP != "" {
			return "spec.clusterIP"
		}
		return fmt.Sprintf("spec.clusterIPs[%d]", i)
	}
	var families []bool
	for i, text := range spec.ClusterIPs {
		if text == corev1.ClusterIPNone && len(spec.ClusterIPs) == 1 {
			continue
		}
		addr, ok := c.address(field(i), text)
		if ok && slices.Contains(families, addr.Is4()) {
			c.refuse(field(i), quoted(text)+": a second address of its family", "one for each address family")
		}
		families = append(families, addr.Is4())
	}
}

func (c *manifestCheck) externalName(spec *corev1.ServiceSpec) {
	const field = "spec.externalName"
	name := strings.TrimSuffix(spec.ExternalName, ".")
	_, err := netip.ParseAddr(name)
	switch {
	case name == "":
		c.refuse(field, "missing", "the name that this one stands for")
	case len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 && err != nil:
		c.refuse(field, quoted(spec.ExternalName)+": not a DNS name", nameHint)
	case err == nil:
		c.warn(field, quoted(spec.ExternalName)+": an address cannot be what a name stands for",
			"a headless Service with an EndpointSlice answers with an address")
	}
}

func (c *manifestCheck) slice(slice *discoveryv1.EndpointSlice) {
	if slice.Labels[discoveryv1.LabelServiceName] == "" {
		c.refuse("metadata.labels", "no label "+discoveryv1.LabelServiceName, "name the Service whose endpoints these are")
	}
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		return // it has no names
	default:
		c.refuse("addressType", quoted(string(slice.AddressType))+": not a type of address", "IPv4 or IPv6")
		return
	}
	for i := range slice.Endpoints {
		c.endpoint(fmt.Sprintf("endpoints[%d]", i), &slice.Endpoints[i], slice.AddressType)
	}
	ports := portCheck{check: c, seen: map[string]bool{}}
	for i := range slice.Ports {
		p := &slice.Ports[i]
		field := fmt.Sprintf("ports[%d]", i)
		if p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
		ports.add(field, orZero(p.Name), p.Protocol)
		if p.Port != nil {
			c.portNumber(field, *p.Port)
		}
	}
}

func (c *manifestCheck) endpoint(field string, e *discoveryv1.Endpoint, kind discoveryv1.AddressType) {
	if len(e.Addresses) == 0 {
		c.refuse(field+".addresses", "missing", "")
	}
	for j, text := range e.Addresses {
		at := fmt.Sprintf("%s.addresses[%d]", field, j)
		addr, ok := c.address(at, text)
		if ok && addr.Is4() != (kind == discoveryv1.AddressTypeIPv4) {
			c.refuse(at, quoted(text)+": not of addressType "+string(kind), "one EndpointSlice for each address family")
		}
	}
	c.label(field+".hostname", orZero(e.Hostname))
}

//nolint:staticcheck // deprecated in the API, and still common in folders
func (c *manifestCheck) endpoints(endpoints *corev1.Endpoints) {
	for i := range endpoints.Subsets {
		subset := &endpoints.Subsets[i]
		field := fmt.Sprintf("subsets[%d]", i)
		for j := range subset.Addresses {
			c.endpointAddress(fmt.Sprintf("%s.addresses[%d]", field, j), &subset.Addresses[j])
		}
		for j := range subset.NotReadyAddresses {
			c.endpointAddress(fmt.Sprintf("%s.notReadyAddresses[%d]", field, j), &subset.NotReadyAddresses[j])
		}
		ports := portCheck{check: c, seen: map[string]bool{}, several: len(subset.Ports) > 1}
		for j := range subset.Ports {
			p := &subset.Ports[j]
			at := fmt.Sprintf("%s.ports[%d]", field, j)
			ports.add(at, p.Name, &p.Protocol)
			c.portNumber(at, p.Port)
		}
	}
}

func (c *manifestCheck) endpointAddress(field string, a *corev1.EndpointAddress) {
	c.address(field+".ip", a.IP)
	c.label(field+".hostname", a.Hostname)
}

// pod checks a Pod's status. A Pod without status is valid: the manifests of applications have none.
func (c *manifestCheck) pod(pod *corev1.Pod) {
	if pod.Status.PodIP != "" {
		c.address("status.podIP", pod.Status.PodIP)
	}
	for i := range pod.Status.PodIPs {
		c.address(fmt.Sprintf("status.podIPs[%d].ip", i), pod.Status.PodIPs[i].IP)
	}
}

// address refuses a text that is not an IP address. An IPv4-mapped IPv6 address counts as IPv4.
func (c *manifestCheck) address(field, text string) (netip.Addr, bool) {
	addrs := appendAddr(nil, text)
	if len(addrs) == 0 {
		c.refuse(field, quoted(text)+": not an IP address", "")
		return netip.Addr{}, false
	}
	return addrs[0], true
}

func (c *manifestCheck) portNumber(field string, number int32) {
	if number < 1 || number > 65535 {
		c.refuse(field+".port", strconv.Itoa(int(number))+": not between 1 and 65535", "")
	}
}

// portCheck checks the names and protocols of an object's ports.
type portCheck struct {
	check   *manifestCheck
	seen    map[string]bool
	several bool // then each port needs a name
}

func (p *portCheck) add(field, name string, protocol *corev1.Protocol) {
	switch *protocol {
	case "":
		*protocol = corev1.ProtocolTCP
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		p.check.refuse(field+".protocol", quoted(string(*protocol))+": not a protocol", "TCP, UDP or SCTP")
	}
	p.check.label(field+".name", name)
	if name == "" && p.several {
		p.check.refuse(field+".name", "missing", "where there are several, each needs one")
	}
	if p.seen[name] {
		p.check.refuse(field+".name", quoted(name)+": the name of another port", "")
	}
	p.seen[name] = name != ""
}
