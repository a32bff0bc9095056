// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// The shape of a large cluster.
const (
	largeNamespaces = 20
	largeZones      = 3
	podsPerNode     = 100
	sliceSize       = 100 // what the EndpointSlice controller puts into a slice
)

// Large returns the objects of a large cluster: services with a ClusterIP, headless services, and the EndpointSlices
// of the latter with endpointsPer endpoints each, 100 to a slice, as the EndpointSlice controller writes them.
// Large(10_000, 1_000, 100) is 11,000 services and 100,000 endpoints in 1,000 slices.
//
// Service i is cluster-i or headless-i in namespace large-(i mod 20). The endpoints of headless services with an
// even i have hostnames, headless-i-0 and so on, as those of a StatefulSet. Without selectors, no controller
// touches them.
func Large(services, headless, endpointsPer int) []runtime.Object {
	objects := make([]runtime.Object, 0, largeNamespaces+services+headless*(1+endpointsPer/sliceSize))
	for i := range largeNamespaces {
		objects = append(objects, Namespace(largeNamespace(i)))
	}
	for i := range services {
		objects = append(objects, largeService(fmt.Sprintf("cluster-%d", i), i, ""))
	}
	for i := range headless {
		s := largeService(fmt.Sprintf("headless-%d", i), i, corev1.ClusterIPNone)
		objects = append(objects, s)
		for from := 0; from < endpointsPer; from += sliceSize {
			objects = append(objects, largeSlice(s, i, i*endpointsPer, from, min(from+sliceSize, endpointsPer)))
		}
	}
	return objects
}

func largeNamespace(i int) string { return fmt.Sprintf("large-%d", i%largeNamespaces) }

func largeService(name string, i int, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: largeNamespace(i), Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
				{Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP},
			},
		},
	}
}

// largeSlice holds the endpoints from to to of headless service i, whose first endpoint is number first of all.
func largeSlice(s *corev1.Service, i, first, from, to int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, from/sliceSize),
			Labels: map[string]string{
				"app": s.Name, discoveryv1.LabelServiceName: s.Name, corev1.IsHeadlessService: "",
				discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   make([]discoveryv1.Endpoint, 0, to-from),
	}
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	for n := from; n < to; n++ {
		slice.Endpoints = append(slice.Endpoints, largeEndpoint(s, i, n, first+n))
	}
	return slice
}

// largeEndpoint is endpoint n of headless service i, and number of all.
func largeEndpoint(s *corev1.Service, i, n, number int) discoveryv1.Endpoint {
	yes, no := true, false
	name := fmt.Sprintf("%s-%d", s.Name, n)
	node := fmt.Sprintf("node-%d", number/podsPerNode)
	zone := fmt.Sprintf("zone-%d", number/podsPerNode%largeZones)
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], 10<<24|128<<16+uint32(number)) // 10.128.0.0 and up: no service's
	e := discoveryv1.Endpoint{
		Addresses:  []string{netip.AddrFrom4(ip).String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		NodeName:   &node, Zone: &zone,
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: s.Namespace, Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", number)),
		},
	}
	if i%2 == 0 {
		e.Hostname = &name
	}
	return e
}
