// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mirrorEndpoints gives the EndpointSlices that stand for an Endpoints object, one for each subset. In a cluster a
// controller makes such mirrors, one for each address family; here nothing reads a slice's address type, so both
// families share one. A slash in their names keeps them apart from slices that a folder names.
//
//nolint:staticcheck // deprecated in the API, and still what many folders hold
func mirrorEndpoints(endpoints *corev1.Endpoints) []*discoveryv1.EndpointSlice {
	if endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	list := make([]*discoveryv1.EndpointSlice, 0, len(endpoints.Subsets))
	for i := range endpoints.Subsets {
		subset := &endpoints.Subsets[i]
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: endpoints.Namespace,
				Name:      fmt.Sprintf("endpoints/%s/%d", endpoints.Name, i),
				Labels:    map[string]string{discoveryv1.LabelServiceName: endpoints.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range subset.Ports {
			p := &subset.Ports[j]
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		slice.Endpoints = mirrorAddresses(slice.Endpoints, subset.Addresses, true)
		slice.Endpoints = mirrorAddresses(slice.Endpoints, subset.NotReadyAddresses, false)
		list = append(list, slice)
	}
	return list
}

func mirrorAddresses(dst []discoveryv1.Endpoint, addrs []corev1.EndpointAddress, ready bool) []discoveryv1.Endpoint {
	for i := range addrs {
		a := &addrs[i]
		dst = append(dst, discoveryv1.Endpoint{
			Addresses:  []string{a.IP},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			Hostname:   &a.Hostname,
			TargetRef:  a.TargetRef,
		})
	}
	return dst
}
