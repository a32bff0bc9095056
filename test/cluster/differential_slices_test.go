// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The sizes of the large sets: no UDP answer holds one of them.
const (
	largeSet  = 120 // per slice, of which there are two
	largeSet6 = 60
)

// manualSlices are what people and foreign controllers write.
func manualSlices() []runtime.Object {
	return []runtime.Object{
		newSlice("by-hand", "by-hand-1", slicePorts("http:80"),
			endpoint("10.2.0.1"), endpoint("10.2.0.2", named("own")), endpoint("10.2.0.3", unready)),
		// The same address twice in a slice, in two slices, under two names, and two addresses under one name.
		newSlice("hand", "hand-1", slicePorts("sql:5432"),
			endpoint("10.2.1.1", named("first")), endpoint("10.2.1.1", named("first")), endpoint("10.2.1.1", named("again")),
			endpoint("10.2.1.2", named("twin")), endpoint("10.2.1.3", named("twin")), endpoint("10.2.1.4"), endpoint("10.2.1.4")),
		newSlice("hand", "hand-2", slicePorts("sql:5432"),
			endpoint("10.2.1.1"), endpoint("10.2.1.4"), endpoint("10.2.1.5", named("10-2-1-4")), endpoint("10.2.1.6", named("twin"))),
		newSlice("hand", "hand-3", slicePorts("other:5433", "late:5434/UDP"), endpoint("10.2.1.1", named("first")), endpoint("10.2.1.7")),
		newSlice("hand", "hand-4", slicePorts(), endpoint("10.2.1.8", named("silent")), endpoint("10.2.1.2", named("twin"))),
		newSlice("hand", "hand-5", slicePorts(":5432"), endpoint("10.2.1.9", named("unnamed"))),
		newSlice("hand", "hand-6", slicePorts("any:*"), endpoint("10.2.1.10", named("every"))),
		newSlice("hand6", "hand6-1", slicePorts("sql:5432"),
			endpoint("fd00:2::"), endpoint("fd00:2::1"), endpoint("fd00:2:0:1::"), endpoint("fd00:2:1:1:1:1:1:1", named("full")),
			endpoint("2001:db8::a:b:c:d")),
		newSlice("published", "published-1", slicePorts("sql:5432"), endpoint("10.2.8.1", named("first")), endpoint("10.2.8.2", named("second"), unready)),
		newSlice("mixed", "mixed-4", slicePorts("sql:5432"), endpoint("10.2.2.1", named("one")), endpoint("10.2.2.2", named("two"))),
		newSlice("mixed", "mixed-6", slicePorts("sql:5432"), endpoint("fd00:2::2:1", named("one")), endpoint("fd00:2::2:3", named("three"))),
		newSlice("zones", "zones-1", slicePorts("sql:5432"),
			endpoint("10.2.3.1", in("zone-a")), endpoint("10.2.3.2", in("zone-a"), named("a")), endpoint("10.2.3.3", in("zone-b")),
			endpoint("10.2.3.4", in("eu.West.1")), endpoint("10.2.3.5", in("pin")), endpoint("10.2.3.6"),
			endpoint("10.2.3.7", in("zone-c"), unready)),
		newSlice("zones", "zones-2", slicePorts("sql:5432"), endpoint("10.2.3.8", in("zone-a"))),
		newSlice("plain", "plain-by-hand", slicePorts("http:80"), endpoint("10.2.4.1", named("extra"))),
		newSlice("to-web", "to-web-1", slicePorts("http:80"), endpoint("10.2.4.2", named("behind"))),
	}
}

// oddSlices belong to nothing, or have endpoints that most do not have.
func oddSlices() []runtime.Object {
	hosts := newSlice("hosts", "hosts-1", slicePorts("sql:5432"), endpoint("db.example.test", named("away")))
	hosts.AddressType = discoveryv1.AddressTypeFQDN
	ownerless := newSlice("", "ownerless", slicePorts("sql:5432"), endpoint("10.2.5.9", named("ownerless")))
	ownerless.Labels = nil
	return []runtime.Object{
		newSlice("odd", "odd-1", slicePorts("sql:5432"),
			endpoint("10.2.5.1", terminating), endpoint("10.2.5.2", unknown), endpoint("10.2.5.3", unready, named("down")),
			endpoint("10.2.5.4", named(longLabel)), endpoint("10.2.5.5", named("0")), endpoint("10.2.5.6", named("tcp")),
			endpoint("10.2.5.7", behind("odd-pod")), endpoint("10.2.5.8", behind("odd.pod")), endpoint("10.2.5.10", behind("p"+longLabel)),
			endpoint("10.2.5.11", named("named"), behind("unnamed-pod"))),
		newSlice("odd", "odd-2", slicePorts("sql:5432"), several("10.2.5.12", "10.2.5.13", "10.2.5.14")),
		newSlice("odd", "odd-3", slicePorts("sql:5432"), endpoint("10.96.1.1", named("stolen"))), // the address of a service
		newSlice("odd", "odd-4", slicePorts("sql:5432")),
		hosts, ownerless,
		newSlice("never-made", "never-made-1", slicePorts("http:80"), endpoint("10.2.6.1", named("early"))),
		inNamespace(longLabel, newSlice("long", "long-1", slicePorts(longLabel+":5432"), endpoint("10.2.7.1", named(longLabel)), endpoint("10.2.7.2"))),
	}
}

// largeSets are more than a UDP answer holds.
func largeSets() []runtime.Object {
	var objects []runtime.Object
	for n := range 2 {
		s := newSlice("large", fmt.Sprintf("large-%d", n), slicePorts("sql:5432", "admin:8080"))
		for i := range largeSet {
			s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("10.3.%d.%d", n, i+1), named(fmt.Sprintf("large-%d-%d", n, i))))
		}
		objects = append(objects, s)
	}
	six := newSlice("large6", "large6-0", slicePorts("sql:5432"))
	six.AddressType = discoveryv1.AddressTypeIPv6
	for i := range largeSet6 {
		six.Endpoints = append(six.Endpoints, endpoint(fmt.Sprintf("fd00:3::%x", i+1)))
	}
	objects = append(objects, six)
	for n := range 10 { // one address in each of many slices
		objects = append(objects, newSlice("spread", fmt.Sprintf("spread-%d", n), slicePorts("sql:5432"),
			endpoint(fmt.Sprintf("10.3.9.%d", n+1)), endpoint("10.3.9.100", named("shared"))))
	}
	return objects
}

// newSlice returns a slice of a service in namespace shop that no controller touches.
func newSlice(service, name string, list []discoveryv1.EndpointPort, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       list, Endpoints: endpoints,
	}
	if len(endpoints) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func inNamespace(name string, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Namespace = name
	return s
}

// slicePorts reads ports as [ports] does, with * for a port that has no number.
func slicePorts(list ...string) []discoveryv1.EndpointPort {
	var result []discoveryv1.EndpointPort
	for _, text := range list {
		every := text == "any:*"
		if every {
			text = "any:1"
		}
		s := newService("", "", ports(text))
		p := discoveryv1.EndpointPort{Name: &s.Spec.Ports[0].Name, Protocol: &s.Spec.Ports[0].Protocol, Port: &s.Spec.Ports[0].Port}
		if every {
			p.Port = nil
		}
		result = append(result, p)
	}
	return result
}

// An endpointOption changes an endpoint in the making.
type endpointOption func(*discoveryv1.Endpoint)

// endpoint returns a ready endpoint.
func endpoint(address string, options ...endpointOption) discoveryv1.Endpoint {
	yes := true
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}
	for _, o := range options {
		o(&e)
	}
	return e
}

// several is one endpoint with several addresses.
func several(addresses ...string) discoveryv1.Endpoint {
	e := endpoint(addresses[0], named("several"))
	e.Addresses = addresses
	return e
}

func named(hostname string) endpointOption {
	return func(e *discoveryv1.Endpoint) { e.Hostname = &hostname }
}

func in(zone string) endpointOption {
	return func(e *discoveryv1.Endpoint) { e.Zone = &zone }
}

// behind names the pod behind the endpoint, which need not exist.
func behind(pod string) endpointOption {
	return func(e *discoveryv1.Endpoint) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod}
	}
}

func unready(e *discoveryv1.Endpoint) {
	no := false
	e.Conditions.Ready = &no
}

func terminating(e *discoveryv1.Endpoint) {
	yes, no := true, false
	e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
}

func unknown(e *discoveryv1.Endpoint) { e.Conditions.Ready = nil }
