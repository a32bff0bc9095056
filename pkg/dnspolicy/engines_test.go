// SPDX-License-Identifier: Apache-2.0

package dnspolicy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

// shop is a cluster with a pod in namespace shop, shop/web, that asks two pods of DNS.
func shop(t *testing.T, engine dnspolicy.Engine, policies string) dnspolicy.Input {
	t.Helper()
	pod := func(namespace, name, ip string, labels map[string]string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
			Spec:       corev1.PodSpec{NodeName: "node1", ServiceAccountName: name},
			Status:     corev1.PodStatus{HostIPs: []corev1.HostIP{{IP: "10.10.0.11"}, {IP: "fd00:10::11"}}, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	in := dnspolicy.Input{
		Engine: engine, Agents: []netip.Addr{agentAddr},
		Pods: []corev1.Pod{
			pod("shop", "web", "10.244.0.20", map[string]string{"app": "web"}),
			pod("kube-system", "dns", "10.244.0.10", map[string]string{"k8s-app": "kube-dns"}),
		},
		DNS: []discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.10"}}}}},
	}
	in.Pods[1].Spec.DNSPolicy = corev1.DNSDefault
	in.Pods[1].Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "dns", Protocol: corev1.ProtocolUDP, ContainerPort: 53}}}}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		in.DNS[0].Ports = append(in.DNS[0].Ports, discoveryv1.EndpointPort{Port: new(int32(53)), Protocol: &protocol})
	}
	for _, name := range []string{"shop", "kube-system"} {
		in.Namespaces = append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	for text := range strings.SplitSeq(policies, "\n---\n") {
		o := unstructured.Unstructured{}
		assert.NoError(t, yaml.Unmarshal([]byte(text), &o.Object))
		switch {
		case len(o.Object) == 0:
		case o.GetAPIVersion() == "networking.k8s.io/v1":
			var p networkingv1.NetworkPolicy
			assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
			in.NetworkPolicies = append(in.NetworkPolicies, p)
		default:
			in.Others = append(in.Others, o)
		}
	}
	return in
}

// policyOf is a policy's text: "KIND NAMESPACE/NAME" and its spec as one line of YAML.
func policyOf(kind, spec string) string {
	version := map[string]string{"Np": "networking.k8s.io/v1", "Cn": "cilium.io/v2", "Cc": "cilium.io/v2", "Ca": "crd.projectcalico.org/v1", "Gl": "crd.projectcalico.org/v1", "Ti": "crd.projectcalico.org/v1"}[kind[:2]]
	kinds := map[string]string{"Np": "NetworkPolicy", "Cnp": "CiliumNetworkPolicy", "Ccnp": "CiliumClusterwideNetworkPolicy", "Calico": "NetworkPolicy", "Global": "GlobalNetworkPolicy", "GlobalSet": "GlobalNetworkSet", "Tier": "Tier"}
	name, namespaced, _ := strings.Cut(kind, " ")
	namespace, of, ok := strings.Cut(namespaced, "/")
	if !ok {
		namespace, of = "", namespaced
	}
	return "apiVersion: " + version + "\nkind: " + kinds[name] + "\nmetadata: {namespace: \"" + namespace + "\", name: " + of + ", labels: {app: set}}\nspec: " + spec
}

// TestEngines says what policies of each kind say to the UDP queries of pod shop/web, before and after a switch.
func TestEngines(t *testing.T) {
	t.Parallel()
	type spec struct{ kind, spec string }
	const (
		toDNS    = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}]}]}`
		anywhere = `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 53}]}]}`
		block    = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`
		named    = `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: dns}]}]}`
		template = `{endpointSelector: {}, enableDefaultDeny: {egress: false}, egress: [{toEntities: [host], toPorts: [{ports: [{port: "53", protocol: ANY}]}]}]}`
	)
	// A Cilium policy of the pod with one rule, and one of Calico's with rules.
	egress := func(rule string) string {
		return `{endpointSelector: {matchLabels: {app: web}}, egress: [` + rule + `]}`
	}
	calico := func(rules string) string {
		return `{order: 10, selector: app == "web", types: [Egress], egress: [` + rules + `]}`
	}
	tests := []struct {
		name          string
		engine        dnspolicy.Engine
		policies      []spec
		before, after dnspolicy.Verdict
		unknown       string
	}{
		{"none", dnspolicy.Addresses, nil, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"NetworkPolicy for DNS", dnspolicy.Addresses, []spec{{"Np shop/dns", toDNS}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"another namespace", dnspolicy.Addresses, []spec{{"Np kube-system/dns", toDNS}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"port 53 anywhere", dnspolicy.Addresses, []spec{{"Np shop/any", anywhere}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"ipBlock", dnspolicy.Addresses, []spec{{"Np shop/block", block}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"named port of any pod", dnspolicy.Addresses, []spec{{"Np shop/named", named}}, dnspolicy.Unknown, dnspolicy.Unknown, "NetworkPolicy shop/named"},
		{"DNS denies ingress", dnspolicy.Addresses, []spec{{"Np kube-system/deny", `{podSelector: {}}`}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
		{"policies of a kind not known", dnspolicy.Addresses, []spec{{"Cnp shop/x", egress(`{}`)}}, dnspolicy.Unknown, dnspolicy.Unknown, "CiliumNetworkPolicy shop/x"},

		{"Cilium: NetworkPolicy for DNS", dnspolicy.Cilium, []spec{{"Np shop/dns", toDNS}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Cilium: port 53 anywhere", dnspolicy.Cilium, []spec{{"Np shop/any", anywhere}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: no address is a pod or the node", dnspolicy.Cilium, []spec{{"Np shop/block", block}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: both kinds add up", dnspolicy.Cilium, []spec{{"Np shop/dns", toDNS}, {"Cnp shop/host", egress(`{toEntities: [host]}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: the template", dnspolicy.Cilium, []spec{{"Np shop/dns", toDNS}, {"Ccnp dns", template}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: the template isolates none", dnspolicy.Cilium, []spec{{"Ccnp dns", template}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{
			"Cilium: endpoints of another namespace", dnspolicy.Cilium,
			[]spec{{"Cnp shop/x", egress(`{toEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": kube-system, "k8s:k8s-app": kube-dns}}], toPorts: [{ports: [{port: "53", protocol: UDP}], rules: {dns: [{matchPattern: "*"}]}}]}`)}},
			dnspolicy.Allowed, dnspolicy.Denied, "",
		},
		{"Cilium: endpoints of the namespace", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEndpoints: [{}]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: endpoints of all namespaces", dnspolicy.Cilium, []spec{{"Ccnp x", egress(`{toEndpoints: [{}]}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Cilium: labels of namespaces", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEndpoints: [{matchLabels: {"io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": kube-system}}]}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Cilium: reserved:host", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEndpoints: [{matchLabels: {"reserved:host": ""}}]}`)}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
		{"Cilium: a cluster's name", dnspolicy.Cilium, []spec{{"Ccnp x", egress(`{toEndpoints: [{matchLabels: {"k8s:io.cilium.k8s.policy.cluster": one}}]}`)}}, dnspolicy.Unknown, dnspolicy.Denied, "CiliumClusterwideNetworkPolicy x"},
		{"Cilium: all", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [all]}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: cluster", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [cluster]}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: world", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [world]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: remote nodes", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [remote-node, kube-apiserver]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: addresses", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toCIDR: [169.254.20.10/32]}, {toCIDRSet: [{cidr: 0.0.0.0/0}]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: names", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toFQDNs: [{matchPattern: "*"}]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: Services", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toServices: [{k8sService: {serviceName: kube-dns, namespace: kube-system}}]}`)}}, dnspolicy.Unknown, dnspolicy.Denied, "CiliumNetworkPolicy shop/x"},
		{"Cilium: ports anywhere", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toPorts: [{ports: [{port: "50", endPort: 60}]}]}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: TCP only", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toPorts: [{ports: [{port: "53", protocol: TCP}]}]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: some names of the node", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toPorts: [{ports: [{port: "53"}], rules: {dns: [{matchName: example.com}]}}]}`)}}, dnspolicy.Allowed, dnspolicy.Unknown, "CiliumNetworkPolicy shop/x"},
		{"Cilium: an empty rule", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: no rule", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(``)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: ICMP", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [all], icmps: [{fields: [{type: 8}]}]}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Cilium: a rule that denies", dnspolicy.Cilium, []spec{{"Cnp shop/x", `{endpointSelector: {}, egress: [{toEntities: [all]}], egressDeny: [{toEntities: [host]}]}`}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Cilium: denies without default", dnspolicy.Cilium, []spec{{"Cnp shop/x", `{endpointSelector: {}, enableDefaultDeny: {egress: false}, egressDeny: [{toEntities: [host], toPorts: [{ports: [{port: "53"}]}]}]}`}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Cilium: not of this pod", dnspolicy.Cilium, []spec{{"Cnp shop/x", `{endpointSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}, egress: [{}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: a field not known", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toEntities: [all], toMoon: [{}]}`)}}, dnspolicy.Unknown, dnspolicy.Unknown, "CiliumNetworkPolicy shop/x"},
		{"Cilium: that of another namespace", dnspolicy.Cilium, []spec{{"Cnp other/x", egress(`{toMoon: [{}]}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: nodes", dnspolicy.Cilium, []spec{{"Cnp shop/x", egress(`{toNodes: [{}]}`)}}, dnspolicy.Unknown, dnspolicy.Unknown, "CiliumNetworkPolicy shop/x"},
		{"Cilium: DNS denies ingress", dnspolicy.Cilium, []spec{{"Cnp kube-system/x", `{endpointSelector: {}, ingress: [{fromEntities: [host]}]}`}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
		{"Cilium: DNS allows ingress", dnspolicy.Cilium, []spec{{"Cnp kube-system/x", `{endpointSelector: {}, ingress: [{fromEntities: [cluster]}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: DNS allows ingress to a named port", dnspolicy.Cilium, []spec{{"Cnp kube-system/x", `{endpointSelector: {}, ingress: [{fromEntities: [cluster], toPorts: [{ports: [{port: dns}]}]}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Cilium: host firewall", dnspolicy.Cilium, []spec{{"Ccnp nodes", `{nodeSelector: {}, ingress: [{fromEntities: [remote-node]}]}`}}, dnspolicy.Allowed, dnspolicy.Unknown, "CiliumClusterwideNetworkPolicy nodes"},
		{"Cilium: host firewall, a field not known", dnspolicy.Cilium, []spec{{"Ccnp nodes", `{nodeSelector: {}, ingress: [{fromMoon: [full]}]}`}}, dnspolicy.Allowed, dnspolicy.Unknown, "CiliumClusterwideNetworkPolicy nodes"},
		{"Cilium: host firewall allows", dnspolicy.Cilium, []spec{{"Ccnp nodes", `{nodeSelector: {}, ingress: [{fromEntities: [cluster], toPorts: [{ports: [{port: "53"}]}]}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},

		{"Calico: NetworkPolicy for DNS", dnspolicy.Calico, []spec{{"Np shop/dns", toDNS}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: a policy selects, none allows", dnspolicy.Calico, []spec{{"Global x", calico(``)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Calico: DNS only", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, protocol: UDP, destination: {selector: 'k8s-app in {"kube-dns"}', ports: [53]}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: nets", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, protocol: 17, destination: {nets: [169.254.20.10/32], ports: ["50:60"]}}`)}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
		{"Calico: not nets", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, destination: {notNets: [169.254.0.0/16]}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: named port", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, protocol: UDP, destination: {ports: [dns]}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: denies before a NetworkPolicy allows", dnspolicy.Calico, []spec{{"Np shop/any", anywhere}, {"Global x", calico(`{action: Log}, {action: Deny, protocol: UDP, destination: {nets: [169.254.20.10/32]}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: denies after a NetworkPolicy allows", dnspolicy.Calico, []spec{{"Np shop/any", anywhere}, {"Global x", `{order: 2000, egress: [{action: Deny}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Calico: pass", dnspolicy.Calico, []spec{{"Np shop/dns", toDNS}, {"Global x", calico(`{action: Pass}`)}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Calico: the namespace's own", dnspolicy.Calico, []spec{{"Calico shop/x", calico(`{action: Allow, destination: {selector: all()}}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Calico: another namespace", dnspolicy.Calico, []spec{{"Calico shop/x", calico(`{action: Allow, destination: {namespaceSelector: projectcalico.org/name == "kube-system"}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: not labels, of the namespace's own only", dnspolicy.Calico, []spec{{"Calico shop/x", calico(`{action: Allow, destination: {notSelector: has(none)}}`)}}, dnspolicy.Denied, dnspolicy.Denied, ""},
		{"Calico: not labels, of all namespaces", dnspolicy.Calico, []spec{{"Calico shop/x", calico(`{action: Allow, destination: {namespaceSelector: all(), notSelector: has(none)}}`)}}, dnspolicy.Allowed, dnspolicy.Denied, ""},
		{"Calico: not labels, anywhere", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, destination: {notSelector: k8s-app == "kube-dns"}}`)}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
		{"Calico: services", dnspolicy.Calico, []spec{{"Calico shop/x", calico(`{action: Allow, destination: {services: {name: kube-dns, namespace: kube-system}}}`)}}, dnspolicy.Unknown, dnspolicy.Unknown, "Calico's NetworkPolicy shop/x"},
		{"Calico: a selector not known", dnspolicy.Calico, []spec{{"Global x", `{selector: app contains "we", types: [Egress]}`}}, dnspolicy.Unknown, dnspolicy.Unknown, "Calico's GlobalNetworkPolicy x"},
		{"Calico: a field not known", dnspolicy.Calico, []spec{{"Global x", `{types: [Egress], moon: 1}`}}, dnspolicy.Unknown, dnspolicy.Unknown, "Calico's GlobalNetworkPolicy x"},
		{"Calico: a set of addresses", dnspolicy.Calico, []spec{{"Global x", calico(`{action: Allow, destination: {selector: app == "set"}}`)}, {"GlobalSet s", `{nets: [169.254.0.0/16]}`}}, dnspolicy.Denied, dnspolicy.Unknown, "Calico's GlobalNetworkPolicy x"},
		{"Calico: a tier not known", dnspolicy.Calico, []spec{{"Global x", `{tier: first, types: [Egress]}`}}, dnspolicy.Unknown, dnspolicy.Unknown, "Calico's GlobalNetworkPolicy x"},
		{
			"Calico: the template", dnspolicy.Calico,
			[]spec{{"Np shop/dns", toDNS}, {"Tier node-cache", `{order: 100}`}, {"Global node-cache.dns", `{tier: node-cache, types: [Egress], egress: [{action: Allow, protocol: UDP, destination: {nets: [169.254.20.10/32], ports: [53]}}, {action: Pass}]}`}},
			dnspolicy.Allowed, dnspolicy.Allowed, "",
		},
		{"Calico: the template isolates none", dnspolicy.Calico, []spec{{"Tier node-cache", `{order: 100}`}, {"Global node-cache.dns", `{tier: node-cache, types: [Egress], egress: [{action: Pass}]}`}}, dnspolicy.Allowed, dnspolicy.Allowed, ""},
		{"Calico: ingress only by default", dnspolicy.Calico, []spec{{"Global x", `{ingress: [{action: Deny}]}`}}, dnspolicy.Denied, dnspolicy.Allowed, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var texts []string
			for _, p := range tt.policies {
				texts = append(texts, policyOf(p.kind, p.spec))
			}
			pods, err := dnspolicy.Evaluate(shop(t, tt.engine, strings.Join(texts, "\n---\n")))
			assert.NoError(t, err)
			assert.Equal(t, "pods", 1, len(pods))
			assert.Equal(t, "before", tt.before, pods[0].Before[0])
			assert.Equal(t, "after", tt.after, pods[0].After[0])
			if !slices.Contains(pods[0].Unknown, tt.unknown) && tt.unknown+strings.Join(pods[0].Unknown, "") != "" {
				t.Errorf("not decided: %q, want %q", pods[0].Unknown, tt.unknown)
			}
		})
	}
}
