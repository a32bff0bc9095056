// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func addrs(texts ...string) []netip.Addr {
	list := []netip.Addr{}
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestServiceOf(t *testing.T) {
	t.Parallel()
	selector := map[string]string{"app": "web"}
	tests := []struct {
		name    string
		spec    corev1.ServiceSpec
		ingress []corev1.LoadBalancerIngress
		ttl     string
		want    zone.Service
	}{
		{
			name: "external addresses", spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", ExternalIPs: []string{"198.51.100.1", "none", "fe80::1%eth0", ""}},
			ingress: []corev1.LoadBalancerIngress{
				{IP: "203.0.113.1", Hostname: "both.example"}, {Hostname: "lb.example"}, {Hostname: "second.example"}, {Hostname: "203.0.113.2"}, {},
			},
			want: zone.Service{
				Addrs: addrs("10.0.0.1"), ExternalAddrs: addrs("198.51.100.1", "203.0.113.1", "203.0.113.2"), ExternalHost: "lb.example", TTL: -time.Second,
			},
		},
		{
			name: "cluster IPs of both families", ttl: "30s",
			spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
				Ports: []corev1.ServicePort{
					{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
					{Name: "web", Port: 80},
					{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 65535},
				},
				PublishNotReadyAddresses: true,
			},
			want: zone.Service{
				Addrs: addrs("10.0.0.1", "fd00::1"), PublishNotReady: true, TTL: 30 * time.Second,
				Ports: []zone.Port{{Name: "dns", Protocol: zone.UDP, Number: 53}, {Name: "web", Number: 80}, {Name: "sctp", Protocol: zone.SCTP, Number: 65535}},
			},
		},
		{
			name: "of a server that fills one field", spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"},
			want: zone.Service{Addrs: addrs("10.0.0.1"), TTL: -time.Second},
		},
		{name: "a negative TTL", ttl: "-5s", want: zone.Service{Addrs: addrs(), TTL: -time.Second}},
		{name: "no address yet", want: zone.Service{Addrs: addrs(), TTL: -time.Second}},
		{
			name: "headless", spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, Selector: selector},
			want: zone.Service{Type: zone.Headless, TTL: -time.Second},
		},
		{
			name: "headless in the single field", spec: corev1.ServiceSpec{ClusterIP: "None", Selector: selector}, ttl: "0s",
			want: zone.Service{Type: zone.Headless},
		},
		{name: "headless without a selector", spec: corev1.ServiceSpec{ClusterIP: "None"}, want: zone.Service{Type: zone.Unselected, TTL: -time.Second}},
		{
			name: "external name, whatever its address",
			spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ClusterIP: "None", ExternalName: "mail.example"}, ttl: "1h",
			want: zone.Service{Type: zone.ExternalName, ExternalName: "mail.example", TTL: time.Hour},
		},
		{
			name: "nonsense",
			spec: corev1.ServiceSpec{
				ClusterIPs: []string{"10.0.0.300", "fe80::1%eth0", "::ffff:10.0.0.1", "\x00", "None"},
				Ports:      []corev1.ServicePort{{Port: 0}, {Port: -1}, {Port: 65536}, {Port: 1, Protocol: "QUIC"}, {Port: 2, Protocol: "tcp"}},
			},
			ttl:  "61m",
			want: zone.Service{Addrs: addrs("10.0.0.1"), Ports: []zone.Port{}, TTL: -time.Second},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			svc := &corev1.Service{ObjectMeta: named("web"), Spec: tt.spec}
			svc.Status.LoadBalancer.Ingress = tt.ingress
			if tt.ttl != "" {
				svc.Annotations = map[string]string{"node-cache.io/ttl": tt.ttl}
			}
			tt.want.Namespace, tt.want.Name = "shop", "web"
			if tt.want.ExternalAddrs == nil {
				tt.want.ExternalAddrs = addrs()
			}
			got, _ := serviceOf(svc, true)
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestSliceOf(t *testing.T) {
	t.Parallel()
	es := &discoveryv1.EndpointSlice{
		ObjectMeta:  named("db-1"),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("pg"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(5432))},
			{Name: new("all ports")},
			{Port: new(int32(53)), Protocol: new(corev1.ProtocolUDP)},
		},
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses: []string{"10.1.0.1"}, Hostname: new("db-0"), Zone: new("a"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"10.1.0.3"}, TargetRef: &corev1.ObjectReference{Name: strings.Repeat("x", 64)}},
			{Addresses: []string{"nowhere"}},
			{},
		},
	}
	if _, ok := sliceOf(es); ok {
		t.Error("a slice of no service counts")
	}
	es.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	want := zone.Slice{
		Namespace: "shop", Name: "db-1", Service: "db",
		Ports: []zone.Port{{Name: "pg", Number: 5432}, {Protocol: zone.UDP, Number: 53}},
		Endpoints: []zone.Endpoint{
			{Addrs: addrs("10.1.0.1"), Hostname: "db-0", Pod: "db-0", Zone: "a", Ready: true},
			{Addrs: addrs("10.1.0.2")},
			{Addrs: addrs("10.1.0.3"), Ready: true},
		},
	}
	got, ok := sliceOf(es)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); !ok || diff != "" {
		t.Errorf("%t (-want +got)\n%s", ok, diff)
	}
	es.AddressType = discoveryv1.AddressTypeFQDN
	if _, ok := sliceOf(es); ok {
		t.Error("a slice of host names counts")
	}
}

func TestPodOf(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	tests := []struct {
		name string
		pod  corev1.Pod
		want []netip.Addr // nil: none
	}{
		{name: "both families", pod: corev1.Pod{Status: corev1.PodStatus{PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}}}, want: addrs("10.1.0.1", "fd00::1")},
		{name: "the single field", pod: corev1.Pod{Status: corev1.PodStatus{PodIP: "10.1.0.1"}}, want: addrs("10.1.0.1")},
		{name: "of the node's network", pod: corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}, Status: corev1.PodStatus{PodIP: "192.0.2.1"}}, want: addrs("192.0.2.1")},
		{name: "about to end", pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Status: corev1.PodStatus{PodIP: "10.1.0.1"}}, want: addrs("10.1.0.1")},
		{name: "no address yet"},
		{name: "succeeded", pod: corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded, PodIP: "10.1.0.1"}}},
		{name: "failed", pod: corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, PodIP: "10.1.0.1"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.pod.Namespace, tt.pod.Name = "shop", "p"
			got, ok := podOf(&tt.pod)
			want := zone.Pod{Namespace: "shop", Name: "p", Addrs: tt.want}
			if tt.want == nil {
				want = zone.Pod{}
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); ok != (tt.want != nil) || diff != "" {
				t.Errorf("%t (-want +got)\n%s", ok, diff)
			}
		})
	}
}
