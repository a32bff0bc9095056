// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// policyObjects are a cluster whose namespace shop allows DNS to kube-dns only, and Cilium's policies of one pod.
func policyObjects() map[string]string {
	list := objects()
	const system = "/api/v1/namespaces/kube-system"
	list[system+"/pods"] = `{"kind": "PodList", "apiVersion": "v1", "items": [{"status": {"phase": "Running", "podIPs": [{"ip": "10.244.0.2"}]}}]}`
	list["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"] = `{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": [
		{"metadata": {"namespace": "kube-system", "labels": {"kubernetes.io/service-name": "coredns"}}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.10"]}], "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}]}`
	list[system+"/services"] = strings.Replace(list[system+"/services"], `"spec": {`, `"spec": {"ports": [{"name": "dns", "port": 53}], `, 1)
	list["/api/v1/pods"] = `{"kind": "PodList", "apiVersion": "v1", "items": [
		{"metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"}}, "spec": {"nodeName": "node1"}, "status": {"podIPs": [{"ip": "10.244.0.20"}]}},
		{"metadata": {"namespace": "kube-system", "name": "coredns", "labels": {"k8s-app": "kube-dns"}}, "spec": {"dnsPolicy": "Default"}, "status": {"podIPs": [{"ip": "10.244.0.10"}]}}]}`
	list["/api/v1/namespaces"] = `{"kind": "NamespaceList", "apiVersion": "v1", "items": [{"metadata": {"name": "shop"}}, {"metadata": {"name": "kube-system"}}]}`
	list["/apis/networking.k8s.io/v1/networkpolicies"] = `{"kind": "NetworkPolicyList", "apiVersion": "networking.k8s.io/v1", "items": [{"metadata": {"namespace": "shop", "name": "dns"},
		"spec": {"policyTypes": ["Egress"], "podSelector": {}, "egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}]}}]}`
	list["/apis/cilium.io/v2/ciliumnetworkpolicies"] = `{"kind": "CiliumNetworkPolicyList", "apiVersion": "cilium.io/v2", "items": []}`
	list["/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"] = list["/apis/cilium.io/v2/ciliumnetworkpolicies"]
	list["/apis/crd.projectcalico.org/v1/tiers"] = `{"kind": "TierList", "apiVersion": "crd.projectcalico.org/v1", "items": [{"kind": "Tier", "apiVersion": "crd.projectcalico.org/v1", "metadata": {"name": "default"}}]}`
	return list
}

// TestPreflightPolicies names the pods that would lose DNS, or says that it could not look.
func TestPreflightPolicies(t *testing.T) {
	t.Parallel()
	const lost = "policies at 169.254.20.10, namespace shop: pods web lose DNS; isolated by: NetworkPolicy shop/dns"
	tests := []struct {
		name   string
		change func(map[string]string)
		denied string // path
		want   string
	}{
		{"Cilium", func(map[string]string) {}, "", "warn " + lost},
		{"Cilium with the template", func(list map[string]string) {
			list["/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"] = `{"kind": "CiliumClusterwideNetworkPolicyList", "apiVersion": "cilium.io/v2", "items": [{"kind": "CiliumClusterwideNetworkPolicy", "apiVersion": "cilium.io/v2",
				"metadata": {"name": "node-cache"}, "spec": {"endpointSelector": {}, "enableDefaultDeny": {"egress": false}, "egress": [{"toEntities": ["host"], "toPorts": [{"ports": [{"port": "53"}]}]}]}}]}`
		}, "", "ok policies they deny no pod DNS at 169.254.20.10, and no agent the DNS Service"},
		{"NetworkPolicies only", func(list map[string]string) {
			list["/apis/apps/v1/daemonsets"] = `{"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": []}`
			delete(list, "/apis/crd.projectcalico.org/v1/tiers")
		}, "", "warn " + lost},
		{"a kind that is not evaluated", func(list map[string]string) {
			list["/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"] = `{"kind": "AdminNetworkPolicyList", "apiVersion": "policy.networking.k8s.io/v1alpha1", "items": [{"kind": "AdminNetworkPolicy", "apiVersion": "policy.networking.k8s.io/v1alpha1", "metadata": {"name": "a"}}]}`
		}, "", "unknown policies at 169.254.20.10, namespace shop: pods web may lose DNS: not decided: AdminNetworkPolicy a; isolated by: NetworkPolicy shop/dns"},
		{"Antrea's", func(list map[string]string) {
			list["/apis/crd.antrea.io/v1beta1/clusternetworkpolicies"] = `{"kind": "ClusterNetworkPolicyList", "apiVersion": "crd.antrea.io/v1beta1", "items": [{"kind": "ClusterNetworkPolicy", "apiVersion": "crd.antrea.io/v1beta1", "metadata": {"name": "a"}}]}`
		}, "", "unknown policies at 169.254.20.10, namespace shop: pods web may lose DNS: not decided: ClusterNetworkPolicy a; isolated by: NetworkPolicy shop/dns"},
		{"no right to list Cilium's", func(map[string]string) {}, "/apis/cilium.io/v2/ciliumnetworkpolicies", "unknown policies they are not looked at"},
		{"no right to list pods", func(map[string]string) {}, "/api/v1/pods", "unknown policies they are not looked at"},
		{"a list that is none", func(list map[string]string) {
			list["/apis/cilium.io/v2/ciliumnetworkpolicies"] = "\x1b[2J"
		}, "", "unknown policies they are not looked at"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list := policyObjects()
			tt.change(list)
			got := command("preflight", serveObjects(t, list, func(path string) bool { return path == tt.denied }))
			var lines []string
			for _, f := range findings(got.Stdout) {
				if strings.Contains(f, " policies ") || strings.HasPrefix(f, "unknown permissions") {
					lines = append(lines, f)
				}
			}
			if len(lines) == 0 || lines[len(lines)-1] != tt.want || strings.Contains(got.Stdout, "\x1b") {
				t.Errorf("%q, want %q", lines, tt.want)
			}
		})
	}
}
