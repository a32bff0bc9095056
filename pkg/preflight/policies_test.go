// SPDX-License-Identifier: Apache-2.0

package preflight_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
	"github.com/nodecache/node-cache/pkg/preflight"
)

// withPolicies is a cluster with pod shop/web, which a policy allows an ipBlock of all addresses.
func withPolicies() *preflight.Facts {
	f := kubeadm()
	dns := &f.Slices[0]
	dns.Ports = []discoveryv1.EndpointPort{{Port: new(int32(53)), Protocol: new(corev1.ProtocolUDP)}}
	dns.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.10"}}}
	f.Services[0].Spec.Ports = []corev1.ServicePort{{Port: 53}, {Port: 9153, Name: "metrics"}}
	web := pod("10.244.0.20")
	web.Namespace, web.Name, web.Spec.NodeName = "shop", "web", "node1"
	f.Policies = &dnspolicy.Input{Pods: []corev1.Pod{web}, NetworkPolicies: []networkingv1.NetworkPolicy{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "dns"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}}}},
		},
	}}}
	return f
}

// own is a policy of an engine that isolates all pods, and allows them nothing.
func own(version, kind, spec string) change {
	return func(f *preflight.Facts) {
		f.Policies.Others = append(f.Policies.Others, unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": "own"}, "spec": map[string]any{spec: []any{map[string]any{}}, "endpointSelector": map[string]any{}},
		}})
	}
}

// TestPolicies chooses the engine, and says what it could not look at.
func TestPolicies(t *testing.T) {
	t.Parallel()
	const lost = "warn at 169.254.20.10, namespace shop: pods web lose DNS; isolated by: NetworkPolicy shop/dns"
	const noPod = "ok they deny no pod DNS at 169.254.20.10"
	const none = noPod + ", and no agent the DNS Service"
	denies := func(f *preflight.Facts) { // all ingress of the pod of DNS, on node1
		p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "deny"}}
		f.Policies.NetworkPolicies = []networkingv1.NetworkPolicy{p}
		for i := range f.Nodes {
			f.Nodes[i].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "x"}, {Type: corev1.NodeInternalIP, Address: "10.10.0.1" + f.Nodes[i].Name[4:]}}
		}
	}
	tests := []struct {
		name    string
		changes []change
		want    string
	}{
		{"NetworkPolicies", nil, lost},
		{"none", []change{func(f *preflight.Facts) { f.Policies.NetworkPolicies = nil }}, none},
		{"Calico", []change{sets(daemonSet("calico-node", "calico-node", "calico/node:v3.32.0"))}, lost},
		{"Calico, with policies that Cilium has left", []change{sets(daemonSet("calico-node", "calico-node", "calico/node:v3.32.0")), own("cilium.io/v2", "CiliumClusterwideNetworkPolicy", "egress")}, lost},
		{"Cilium", []change{sets(daemonSet("cilium", "cilium-agent", "cilium:v1.20.2"))}, none}, // its pods have no DNS now: no block matches a pod
		{"Cilium, known by its policies", []change{own("cilium.io/v2", "CiliumClusterwideNetworkPolicy", "egress")}, none},
		{"transparent mode, where pods ask the Service", []change{label(gke, "p")}, "ok they deny no pod DNS at 10.96.0.10, and no agent the DNS Service"},
		{"the port for metrics is not DNS", []change{func(f *preflight.Facts) { // no TCP before, so none is lost
			f.Slices[0].Ports = append(f.Slices[0].Ports, discoveryv1.EndpointPort{Name: new("metrics"), Port: new(int32(9153)), Protocol: new(corev1.ProtocolTCP)})
			f.Policies.NetworkPolicies[0].Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
				{Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolUDP)}}}, {Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(9153))}}},
			}
		}}, none},
		{"the agents", []change{denies}, "warn namespace kube-system: pods coredns lose the queries of agents on other nodes; isolated by: NetworkPolicy kube-system/deny"},
		{"the agents, where no other node has one", []change{denies, func(f *preflight.Facts) { f.Nodes[1].Status.NodeInfo.OperatingSystem = "windows" }}, none},
		{"the agents, with nodes not read", []change{denies, func(f *preflight.Facts) { f.Unread[preflight.ListNodes] = preflight.Unread{} }}, noPod},
		{"Cilium that redirects", []change{ciliumAlone("v1.20.2", "enable-local-redirect-policy=true")}, "unknown they are not looked at with overlays/cilium"},
		{"no endpoints", []change{func(f *preflight.Facts) { f.Slices = nil }}, "unknown checking policies: the DNS Service has no endpoints, so no pod has DNS now"},
		{"no Service", []change{func(f *preflight.Facts) { f.Services = nil }}, "unknown the DNS Service that pods ask now is not known"},
		{"not read", []change{func(f *preflight.Facts) { f.Policies = nil }}, "unknown they are not looked at"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := withPolicies()
			dns := pod("10.244.0.10")
			dns.Namespace, dns.Name, dns.Spec.DNSPolicy, dns.Spec.NodeName = "kube-system", "coredns", corev1.DNSDefault, "node1"
			if f.Policies != nil {
				f.Policies.Pods = append(f.Policies.Pods, dns)
			}
			for _, change := range tt.changes {
				change(f)
			}
			var got []string
			for _, one := range preflight.Examine(f).Findings {
				if one.Check == "policies" {
					got = append(got, one.Verdict.String()+" "+one.What)
					if one.Verdict != preflight.OK && one.Hint == "" {
						t.Error("no hint")
					}
				}
			}
			assert.Equal(t, "findings", tt.want, strings.Join(got, "\n"))
		})
	}
}
