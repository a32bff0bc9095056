// SPDX-License-Identifier: Apache-2.0

package dnspolicy_test

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

// onlyDNS isolates the pods of namespace shop, and allows them the cluster's DNS.
const onlyDNS = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]}]}`

// TestConcerned says which pods are checked.
func TestConcerned(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		lost   bool
	}{
		{"as it is", func(*corev1.Pod) {}, true},
		{"on a node without an agent", func(p *corev1.Pod) { p.Spec.NodeName = "windows" }, false},
		{"on the host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		{"succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		{"failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		{"without an address", func(p *corev1.Pod) { p.Status.PodIPs = nil }, false},
		{"IPv6 only", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "fd00::20"}} }, false},
		{"the node's DNS", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, false},
		{"a DNS server of its own", func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
		}, false},
		{"the agent as its own", func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"169.254.20.10"}}
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := shop(t, dnspolicy.Addresses, policyOf("Np shop/dns", onlyDNS))
			in.Nodes = map[string][]netip.Addr{"node1": nil}
			tt.change(&in.Pods[0])
			findings, err := dnspolicy.Check(in)
			assert.NoError(t, err)
			assert.Equal(t, "loses DNS", tt.lost, len(findings) == 1)
		})
	}
}

// TestCheck shows the findings, with the commands.
func TestCheck(t *testing.T) {
	t.Parallel()
	in := shop(t, dnspolicy.Addresses, policyOf("Np shop/all", `{podSelector: {}, policyTypes: [Egress]}`)+"\n---\n"+policyOf("Np shop/dns", onlyDNS))
	more := in.Pods[0]
	more.Name = "more"
	in.Pods = append(in.Pods, more)
	findings, err := dnspolicy.Check(in)
	assert.NoError(t, err)
	assert.Same(t, "findings", []dnspolicy.Finding{{
		Namespace: "shop", Pods: []string{"more", "web"}, Policies: []string{"NetworkPolicy shop/all", "NetworkPolicy shop/dns"},
		Fix: `kubectl -n shop patch networkpolicy all --type=json -p '[{"op":"add","path":"/spec/egress","value":[{"ports":[{"protocol":"UDP","port":53},{"protocol":"TCP","port":53}],` +
			`"to":[{"ipBlock":{"cidr":"169.254.20.10/32"}}]}]}]'`,
	}}, findings)
	assert.Equal(t, "text", "namespace shop: pods more, web lose DNS; isolated by: NetworkPolicy shop/all, NetworkPolicy shop/dns", findings[0].String())
}

// TestCheckCannot says that it sees nothing, where it would find nothing.
func TestCheckCannot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*dnspolicy.Input){
		"no endpoints": func(in *dnspolicy.Input) { in.DNS = nil },
		"none ready":   func(in *dnspolicy.Input) { in.DNS[0].Endpoints[0].Conditions.Ready = new(bool) },
		"no agents":    func(in *dnspolicy.Input) { in.Agents = nil },
	} {
		in := shop(t, dnspolicy.Addresses, policyOf("Np shop/dns", onlyDNS))
		change(&in)
		if _, err := dnspolicy.Check(in); err == nil || !strings.HasPrefix(err.Error(), "checking policies: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFixes gives no command for a shell with a name that no API server has, and for each engine its own.
func TestFixes(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, policies, want string }{
		{"addresses", policyOf("Np shop/dns", onlyDNS), "kubectl -n shop patch networkpolicy dns "},
		{"addresses", policyOf("Np shop/\"$(reboot)\"", onlyDNS), ""},
		{"calico", policyOf("Np shop/dns", onlyDNS), "kubectl -n shop patch networkpolicy dns "},
		{"calico", policyOf("Global x", `{types: [Egress], egress: [{action: Deny, destination: {nets: [169.254.0.0/16]}}, {action: Allow}]}`), "kubectl apply -f daemonset/network-policies/calico.yaml"},
		{"cilium", policyOf("Np shop/dns", onlyDNS), "kubectl apply -f daemonset/network-policies/cilium.yaml"},
		{"cilium", policyOf("Ccnp nodes", `{nodeSelector: {}, ingress: [{fromEntities: [remote-node]}]}`), "kubectl apply -f daemonset/network-policies/cilium-host-firewall.yaml"},
	}
	for _, tt := range tests {
		findings, err := dnspolicy.Check(shop(t, dnspolicy.Engine(tt.name), tt.policies))
		assert.NoError(t, err)
		assert.Equal(t, "findings", 1, len(findings))
		if got := findings[0].Fix; !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", tt.policies, got, tt.want)
		}
	}
}

// TestHostNetworkDNS has DNS on the host network: no selector of pods matches it, and to Cilium it is a node.
func TestHostNetworkDNS(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, host, policy string
		engine             dnspolicy.Engine
		want               dnspolicy.Verdict
	}{
		{"a selector of pods", "10.10.0.11", policyOf("Np shop/dns", onlyDNS), dnspolicy.Addresses, dnspolicy.Denied},
		{"its address", "10.10.0.11", policyOf("Np shop/dns", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.10.0.0/16}}]}]}`), dnspolicy.Addresses, dnspolicy.Allowed},
		{"the pod's node", "10.10.0.11", policyOf("Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [host]}]}`), dnspolicy.Cilium, dnspolicy.Allowed},
		{"the pod's node over IPv6", "fd00:10::11", policyOf("Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [host]}]}`), dnspolicy.Cilium, dnspolicy.Allowed},
		{"another node", "10.10.0.12", policyOf("Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [host]}]}`), dnspolicy.Cilium, dnspolicy.Denied},
		{"other nodes", "10.10.0.12", policyOf("Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [remote-node]}]}`), dnspolicy.Cilium, dnspolicy.Allowed},
		{"no other node", "10.10.0.11", policyOf("Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [remote-node]}]}`), dnspolicy.Cilium, dnspolicy.Denied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := shop(t, tt.engine, tt.policy)
			in.Pods[0].Status.PodIPs = append(in.Pods[0].Status.PodIPs, corev1.PodIP{IP: "fd00:244::20"})
			in.Pods[1].Spec.HostNetwork, in.Pods[1].Status.PodIPs[0].IP = true, tt.host
			in.DNS[0].Endpoints[0].Addresses[0] = tt.host
			pods, err := dnspolicy.Evaluate(in)
			assert.NoError(t, err)
			assert.Equal(t, "before", tt.want, pods[0].Before[0])
		})
	}
}

// TestServers says whether agents may query the pod of DNS, which is on node1.
func TestServers(t *testing.T) {
	t.Parallel()
	const (
		fromPods  = `{podSelector: {matchLabels: {k8s-app: kube-dns}}, ingress: [{from: [{namespaceSelector: {}}]}]}`
		fromNodes = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}, {ipBlock: {cidr: 10.10.0.0/24}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}]}`
		fromOne   = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}, {ipBlock: {cidr: 10.10.0.12/32}}]}]}`
		onlyUDP   = `{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 53}]}]}`
		cluster   = `{endpointSelector: {}, ingress: [{fromEntities: [cluster]}]}`
		calicoAll = `{order: 10, selector: k8s-app == "kube-dns", types: [Ingress], ingress: [{action: Allow, source: {selector: has(x)}}]}`
		lose      = "namespace kube-system: pods dns lose the queries of agents on other nodes; isolated by: "
		maylose   = "namespace kube-system: pods dns may lose the queries of agents on other nodes: not decided: "
		template  = "sed s/NAMESPACE/kube-system/ daemonset/network-policies/kube-dns.yaml | kubectl apply -f -"
		ciliums   = "kubectl apply -f daemonset/network-policies/cilium-kube-dns.yaml"
	)
	tests := []struct {
		name           string
		engine         dnspolicy.Engine
		policy, change string
		want, fix      string
	}{
		{"no policy", dnspolicy.Addresses, "", "", "", ""},
		{"pods only", dnspolicy.Addresses, policyOf("Np kube-system/x", fromPods), "", lose + "NetworkPolicy kube-system/x", template},
		{"nodes too", dnspolicy.Addresses, policyOf("Np kube-system/x", fromNodes), "", "", ""},
		{"nodes too, of the other family", dnspolicy.Addresses, policyOf("Np kube-system/x", fromNodes), "six", lose + "NetworkPolicy kube-system/x", template},
		{"one node", dnspolicy.Addresses, policyOf("Np kube-system/x", fromOne), "", lose + "NetworkPolicy kube-system/x", template},
		{"UDP only", dnspolicy.Addresses, policyOf("Np kube-system/x", onlyUDP), "", lose + "NetworkPolicy kube-system/x", template},
		{"its own node only", dnspolicy.Addresses, policyOf("Np kube-system/x", fromPods), "alone", "", ""},
		{"nodes that are not known", dnspolicy.Addresses, policyOf("Np kube-system/x", fromPods), "unknown", "", ""},
		{"DNS on the host network", dnspolicy.Addresses, policyOf("Np kube-system/x", fromPods), "host", "", ""},
		{"a kind not known", dnspolicy.Addresses, policyOf("Cnp kube-system/x", cluster), "", maylose + "CiliumNetworkPolicy kube-system/x", ""},
		{"Cilium: pods only", dnspolicy.Cilium, policyOf("Np kube-system/x", fromPods), "", lose + "NetworkPolicy kube-system/x", ciliums},
		{"Cilium: no address is a node", dnspolicy.Cilium, policyOf("Np kube-system/x", fromNodes), "", lose + "NetworkPolicy kube-system/x", ciliums},
		{"Cilium: cluster", dnspolicy.Cilium, policyOf("Cnp kube-system/x", cluster), "", "", ""},
		{"Cilium: host", dnspolicy.Cilium, policyOf("Cnp kube-system/x", strings.Replace(cluster, "cluster", "host", 1)), "", lose + "CiliumNetworkPolicy kube-system/x", ciliums},
		{"Cilium: world", dnspolicy.Cilium, policyOf("Cnp kube-system/x", strings.Replace(cluster, "cluster", "world", 1)), "", lose + "CiliumNetworkPolicy kube-system/x", ciliums},
		{"Cilium: remote nodes", dnspolicy.Cilium, policyOf("Cnp kube-system/x", strings.Replace(cluster, "cluster", "remote-node", 1)), "", "", ""},
		{"Calico: pods only", dnspolicy.Calico, policyOf("Np kube-system/x", fromPods), "", lose + "NetworkPolicy kube-system/x", template},
		{"Calico: its own policy", dnspolicy.Calico, policyOf("Global x", calicoAll), "", lose + "Calico's GlobalNetworkPolicy x", ""},
		{"Calico: nodes", dnspolicy.Calico, policyOf("Global x", strings.Replace(calicoAll, "selector: has(x)", "nets: [10.10.0.0/24]", 1)), "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := shop(t, tt.engine, tt.policy)
			in.Pods = in.Pods[1:]
			in.Nodes = map[string][]netip.Addr{
				"node1": {nodeAddr, netip.MustParseAddr("fd00:10::11")}, "node2": {netip.MustParseAddr("10.10.0.12"), netip.MustParseAddr("fd00:10::12")}, "node3": {netip.MustParseAddr("10.10.0.13")},
			}
			switch tt.change {
			case "six":
				in.Pods[0].Status.PodIPs[0].IP, in.DNS[0].Endpoints[0].Addresses[0] = "fd00:244::10", "fd00:244::10"
			case "alone":
				in.Nodes = map[string][]netip.Addr{"node1": {nodeAddr}}
			case "unknown":
				in.Nodes = nil
			case "host":
				in.Pods[0].Spec.HostNetwork = true
			}
			findings, err := dnspolicy.Check(in)
			assert.NoError(t, err)
			var text, fix string
			if len(findings) > 0 {
				text, fix = findings[0].String(), findings[0].Fix
			}
			assert.Equal(t, "finding", tt.want, text)
			assert.Equal(t, "command", tt.fix, fix)
			if tt.fix == "" || !strings.Contains(tt.fix, ".yaml") {
				return
			}
			file := regexp.MustCompile(`[a-z-]+\.yaml`).FindString(tt.fix)
			more, err := os.ReadFile("../../daemonset/network-policies/" + file)
			assert.NoError(t, err)
			with := shop(t, tt.engine, strings.ReplaceAll(string(more), "NAMESPACE", "kube-system"))
			in.NetworkPolicies, in.Others = append(in.NetworkPolicies, with.NetworkPolicies...), append(in.Others, with.Others...)
			findings, err = dnspolicy.Check(in)
			assert.NoError(t, err)
			assert.Equal(t, "findings after the command", 0, len(findings))
		})
	}
}

// TestTemplates shows that the project's policies give DNS to the pods that lose it, and isolate no other.
func TestTemplates(t *testing.T) {
	t.Parallel()
	tests := []struct {
		engine   dnspolicy.Engine
		file     string
		policies string // with which shop/web loses DNS
	}{
		{dnspolicy.Addresses, "pods.yaml", policyOf("Np shop/dns", onlyDNS)},
		{dnspolicy.Calico, "pods.yaml", policyOf("Np shop/dns", onlyDNS)},
		{dnspolicy.Calico, "calico.yaml", policyOf("Global x", `{order: 1, types: [Egress], egress: [{action: Allow, destination: {selector: "k8s-app == 'kube-dns'"}}]}`)},
		{dnspolicy.Cilium, "cilium.yaml", policyOf("Np shop/dns", onlyDNS)},
		{dnspolicy.Cilium, "cilium-host-firewall.yaml", policyOf("Ccnp nodes", `{nodeSelector: {}, ingress: [{fromEntities: [remote-node]}]}`)},
	}
	for _, tt := range tests {
		text, err := os.ReadFile("../../daemonset/network-policies/" + tt.file)
		assert.NoError(t, err)
		template := strings.ReplaceAll(string(text), "NAMESPACE", "shop")
		without, err := dnspolicy.Check(shop(t, tt.engine, tt.policies))
		assert.NoError(t, err)
		with, err := dnspolicy.Check(shop(t, tt.engine, tt.policies+"\n---\n"+template))
		assert.NoError(t, err)
		if len(without) != 1 || len(with) != 0 {
			t.Errorf("%s: without it %v, with it %v", tt.file, without, with)
		}
		alone, err := dnspolicy.Evaluate(shop(t, tt.engine, template))
		assert.NoError(t, err)
		if p := alone[0]; tt.engine != dnspolicy.Addresses && tt.file != "pods.yaml" && (p.Before[0] != dnspolicy.Allowed || tt.engine == dnspolicy.Cilium && len(p.Policies) > 0) {
			t.Errorf("%s isolates a pod that no policy isolates: %+v", tt.file, p)
		}
	}
}

// TestLargeCluster bounds the time for a cluster whose namespaces all have policies.
func TestLargeCluster(t *testing.T) {
	t.Parallel()
	for _, engine := range []dnspolicy.Engine{dnspolicy.Addresses, dnspolicy.Cilium, dnspolicy.Calico} {
		in := large(t, engine)
		began := time.Now()
		findings, err := dnspolicy.Check(in)
		assert.NoError(t, err)
		took := time.Since(began)
		t.Logf("%s: %d pods, %d policies: %s", engine, len(in.Pods), len(in.NetworkPolicies)+len(in.Others), took.Round(time.Millisecond))
		if len(findings) != 500 || took > time.Minute {
			t.Errorf("%s: %d findings, want 500, after %s", engine, len(findings), took)
		}
	}
}

// large has 500 namespaces with 20 pods and two policies each, and five policies of the cluster.
func large(t *testing.T, engine dnspolicy.Engine) dnspolicy.Input {
	t.Helper()
	in := shop(t, engine, "")
	kind := map[dnspolicy.Engine]string{dnspolicy.Cilium: "Ccnp", dnspolicy.Calico: "Global"}[engine]
	for i := range 5 {
		if kind != "" {
			in.Others = append(in.Others, shop(t, engine, policyOf(fmt.Sprintf("%s x%d", kind, i), map[string]string{"Ccnp": `{endpointSelector: {matchLabels: {x: x}}}`, "Global": `{selector: has(x)}`}[kind])).Others...)
		}
	}
	web, policy := in.Pods[0], shop(t, engine, policyOf("Np shop/dns", onlyDNS)).NetworkPolicies[0]
	in.Pods = in.Pods[1:]
	for i := range 500 {
		namespace := fmt.Sprintf("shop-%d", i)
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		for j := range 20 {
			p := web
			p.Namespace, p.Name = namespace, fmt.Sprintf("web-%d", j)
			p.Status.PodIPs = []corev1.PodIP{{IP: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}).String()}}
			in.Pods = append(in.Pods, p)
		}
		for j := range 2 {
			var p networkingv1.NetworkPolicy
			policy.DeepCopyInto(&p)
			p.Namespace, p.Name = namespace, fmt.Sprintf("dns-%d", j)
			in.NetworkPolicies = append(in.NetworkPolicies, p)
		}
		if kind == "Ccnp" {
			in.Others = append(in.Others, shop(t, engine, policyOf("Cnp "+namespace+"/x", `{endpointSelector: {}, egress: [{toEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": kube-system}}]}]}`)).Others...)
		}
	}
	return in
}
