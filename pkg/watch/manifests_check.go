// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// manifestCheck finds the errors for which the API server would refuse an object and that would change a DNS answer.
type manifestCheck struct {
	report func(field, what, hint string)
	fatal  bool // the object cannot be served
}

// check checks an object and returns the objects that it gives to the zone.
func (c *manifestCheck) check(id manifestID, o object) []object {
	c.label("metadata.namespace", id.namespace)
	if id.kind == "Service" || id.kind == "Namespace" {
		c.label("metadata.name", id.name)
	} else {
		c.name("metadata.name", id.name)
	}
	switch o := o.(type) {
	case *corev1.Service:
		c.service(o)
	case *discoveryv1.EndpointSlice:
		c.slice(o)
	case *serviceImport:
		if _, err := importOf(o); err != nil {
			field, what, _ := strings.Cut(err.Error(), ": ")
			c.refuse(field, what, "")
		}
	case *corev1.Endpoints: //nolint:staticcheck // see newObject
		return c.mirror(o)
	case *corev1.Pod: // a Pod without status is valid: the manifests of applications have none
		for i := range o.Status.PodIPs {
			c.address(fmt.Sprintf("status.podIPs[%d].ip", i), o.Status.PodIPs[i].IP)
		}
		if o.Status.PodIP != "" {
			c.address("status.podIP", o.Status.PodIP)
		}
	}
	return []object{o}
}

// refuse reports an error that makes the object unusable.
func (c *manifestCheck) refuse(field, what, hint string) {
	c.fatal = true
	c.report(field, what, hint)
}

// label refuses a text that is neither empty nor a DNS label.
func (c *manifestCheck) label(field, text string) {
	if text != "" && len(validation.IsDNS1123Label(text)) > 0 {
		c.refuse(field, quoted(text)+": not a DNS label", "lower-case letters, digits and '-', at most 63, with a letter or digit at both ends")
	}
}

// name refuses a text that is not a DNS name in lower case.
func (c *manifestCheck) name(field, text string) {
	if len(validation.IsDNS1123Subdomain(text)) > 0 {
		c.refuse(field, quoted(text)+": not a DNS name", "lower-case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends")
	}
}

// address refuses a text that is not an IP address.
func (c *manifestCheck) address(field, text string) {
	if len(appendAddr(nil, text)) == 0 {
		c.refuse(field, quoted(text)+": not an IP address", "")
	}
}

// port refuses a port that cannot be served. A nil number means all ports.
func (c *manifestCheck) port(field, name string, protocol corev1.Protocol, number *int32) {
	c.label(field+".name", name)
	if number != nil && (*number < 1 || *number > 65535) {
		c.refuse(field+".port", strconv.Itoa(int(*number))+": not between 1 and 65535", "")
	}
	switch protocol {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		c.refuse(field+".protocol", quoted(string(protocol))+": not a protocol", "TCP, UDP or SCTP")
	}
}

func (c *manifestCheck) service(svc *corev1.Service) {
	switch spec := &svc.Spec; {
	case spec.Type == corev1.ServiceTypeExternalName:
		c.name("spec.externalName", strings.ToLower(strings.TrimSuffix(spec.ExternalName, ".")))
	case spec.Type != "" && spec.Type != corev1.ServiceTypeClusterIP && spec.Type != corev1.ServiceTypeNodePort && spec.Type != corev1.ServiceTypeLoadBalancer:
		c.refuse("spec.type", quoted(string(spec.Type))+": not a type of Service", "one of ClusterIP, NodePort, LoadBalancer, ExternalName")
	case headless(svc):
	case len(spec.ClusterIPs) == 0 && spec.ClusterIP == "":
		c.refuse("spec.clusterIP", "missing, and there is no API server to assign one", "write an address, or None for the addresses of its EndpointSlices")
	case len(spec.ClusterIPs) == 0:
		c.address("spec.clusterIP", spec.ClusterIP)
	default:
		for i, text := range spec.ClusterIPs {
			c.address(fmt.Sprintf("spec.clusterIPs[%d]", i), text)
		}
	}
	c.external(svc)
	if _, err := ttlOf(svc.Annotations); err != nil { // the Service is served, with the zone's TTL
		c.report("metadata.annotations", strings.TrimPrefix(err.Error(), "annotation "), "such as \"30s\"")
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		c.port(fmt.Sprintf("spec.ports[%d]", i), p.Name, p.Protocol, &p.Port)
	}
}

// external checks the fields that the external names of a Service are made of.
func (c *manifestCheck) external(svc *corev1.Service) {
	for i, text := range svc.Spec.ExternalIPs {
		c.address(fmt.Sprintf("spec.externalIPs[%d]", i), text)
	}
	for i, point := range svc.Status.LoadBalancer.Ingress {
		if point.IP != "" {
			c.address(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), point.IP)
		}
	}
	if _, err := serviceOf(svc, true); err != nil && !c.fatal {
		c.report("", err.Error(), "")
	}
}

func (c *manifestCheck) slice(slice *discoveryv1.EndpointSlice) {
	if _, _, err := importedSliceOf(slice); err != nil {
		c.report("metadata.labels", err.Error(), "the cluster set has no names for its endpoints")
	}
	if slice.Labels[discoveryv1.LabelServiceName] == "" && slice.Labels[labelImport] == "" {
		c.refuse("metadata.labels", "no label "+discoveryv1.LabelServiceName, "name the Service whose endpoints these are")
	}
	if slice.AddressType == discoveryv1.AddressTypeFQDN {
		return // no names are made of such a slice
	}
	for i := range slice.Endpoints {
		for j, text := range slice.Endpoints[i].Addresses {
			c.address(fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), text)
		}
		c.label(fmt.Sprintf("endpoints[%d].hostname", i), orZero(slice.Endpoints[i].Hostname))
	}
	for i := range slice.Ports {
		p := &slice.Ports[i]
		c.port(fmt.Sprintf("ports[%d]", i), orZero(p.Name), orZero(p.Protocol), p.Port)
	}
}

// mirror checks an Endpoints object and converts it to EndpointSlices, one per subset. In a cluster, a controller makes
// one per subset and address family. Here nothing reads a slice's address type, so both families share one slice. A slash
// in the slices' names keeps them distinct from the folder's own slices.
//
//nolint:staticcheck // deprecated in the API, and still common in folders
func (c *manifestCheck) mirror(endpoints *corev1.Endpoints) (list []object) {
	if endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	for i := range endpoints.Subsets {
		subset := &endpoints.Subsets[i]
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: endpoints.Namespace,
			Name:      fmt.Sprintf("endpoints/%s/%d", endpoints.Name, i),
			Labels:    map[string]string{discoveryv1.LabelServiceName: endpoints.Name},
		}}
		add := func(field string, addrs []corev1.EndpointAddress, ready bool) {
			for j := range addrs {
				a := &addrs[j]
				c.address(fmt.Sprintf("subsets[%d].%s[%d].ip", i, field, j), a.IP)
				c.label(fmt.Sprintf("subsets[%d].%s[%d].hostname", i, field, j), a.Hostname)
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					Hostname: &a.Hostname, TargetRef: a.TargetRef,
				})
			}
		}
		add("addresses", subset.Addresses, true)
		add("notReadyAddresses", subset.NotReadyAddresses, false)
		for j := range subset.Ports {
			p := &subset.Ports[j]
			c.port(fmt.Sprintf("subsets[%d].ports[%d]", i, j), p.Name, p.Protocol, &p.Port)
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		list = append(list, slice)
	}
	return list
}
