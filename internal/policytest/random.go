// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Options are what does not vary.
type Options struct {
	Name  string       // begins the names of the namespaces
	Node  string       // where all pods are
	Host  netip.Addr   // of the node
	Pods  []netip.Addr // the first DNSPods are of DNS, and each other one is a client
	Agent netip.Addr
}

// DNSPods is how many pods serve DNS.
const DNSPods = 2

// A Cluster is what a check reads. The clients are the pods after the first [DNSPods] that run on the pod network.
type Cluster struct {
	Namespaces []corev1.Namespace
	Pods       []corev1.Pod
	Policies   []networkingv1.NetworkPolicy
	DNS        []discoveryv1.EndpointSlice
	Port       int32 // where the pods of DNS listen
}

// random makes one cluster.
type random struct {
	*rand.Rand

	o Options
	c *Cluster
}

// Random returns a cluster that depends on r and the options only.
//
// It leaves out what kube-router 2.1 gets wrong: named ports that no pod of a rule has, which it takes for all ports, two ipBlocks in a
// rule where one has exceptions, which it puts into one set, and a policy of both types that selects both ends of a flow.
func Random(r *rand.Rand, o Options) *Cluster {
	g := &random{Rand: r, o: o, c: &Cluster{Port: 53}}
	if g.chance(0.3) {
		g.c.Port = 5353
	}
	for _, name := range []string{"dns", "a", "b", "c"} {
		g.namespace(o.Name + "-" + name)
	}
	for i, a := range o.Pods {
		namespace := g.c.Namespaces[0].Name
		if i >= DNSPods {
			namespace = g.c.Namespaces[1+g.IntN(3)].Name
		}
		g.pod(namespace, fmt.Sprintf("pod-%d", i), a)
		if i < DNSPods {
			g.c.Pods[i].Labels = map[string]string{"k8s-app": "kube-dns", "app": "a"}
			g.c.Pods[i].Spec.DNSPolicy = corev1.DNSDefault
		}
	}
	for i := range 2 { // neither has an address of its own
		g.pod(g.c.Namespaces[g.IntN(4)].Name, fmt.Sprintf("ended-%d", i), o.Pods[g.IntN(len(o.Pods))])
		g.c.Pods[len(g.c.Pods)-1].Status.Phase = corev1.PodSucceeded
		g.pod(g.c.Namespaces[g.IntN(4)].Name, fmt.Sprintf("host-%d", i), o.Host)
		g.c.Pods[len(g.c.Pods)-1].Spec.HostNetwork = true
	}
	g.slice()
	for i := range g.c.Namespaces {
		for n := range g.IntN(4) {
			if i > 0 || g.chance(0.2) {
				g.policy(g.c.Namespaces[i].Name, fmt.Sprintf("policy-%d", n), i == 0)
			}
		}
	}
	return g.c
}

func (g *random) chance(p float64) bool { return g.Float64() < p }

func pick[T any](g *random, all ...T) T { return all[g.IntN(len(all))] }

func (g *random) namespace(name string) {
	n := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.labels()}}
	n.Labels[corev1.LabelMetadataName] = name
	g.c.Namespaces = append(g.c.Namespaces, n)
}

func (g *random) labels() map[string]string {
	all := map[string]string{}
	if g.chance(0.8) {
		all["app"] = pick(g, "a", "b", "c")
	}
	if g.chance(0.5) {
		all["tier"] = pick(g, "x", "y")
	}
	return all
}

func (g *random) pod(namespace, name string, a netip.Addr) {
	ports := []corev1.ContainerPort{{Name: "dns", Protocol: corev1.ProtocolUDP, ContainerPort: g.c.Port}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, ContainerPort: g.c.Port}}
	if len(g.c.Pods) >= DNSPods && g.chance(0.5) {
		ports[0].ContainerPort, ports[1].ContainerPort = 8053, 8053
	}
	g.c.Pods = append(g.c.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: g.labels()},
		Spec:       corev1.PodSpec{NodeName: g.o.Node, Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Ports: ports}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: g.o.Host.String(), HostIPs: []corev1.HostIP{{IP: g.o.Host.String()}},
			PodIP: a.String(), PodIPs: []corev1.PodIP{{IP: a.String()}},
		},
	})
}

func (g *random) slice() {
	s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: g.c.Namespaces[0].Name, Name: "kube-dns"}, AddressType: discoveryv1.AddressTypeIPv4}
	for i := range DNSPods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{g.o.Pods[i].String()}})
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: &g.c.Port, Protocol: &protocol})
	}
	g.c.DNS = append(g.c.DNS, s)
}

func (g *random) policy(namespace, name string, ofDNS bool) {
	p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector = g.selector()
	egress, ingress := !ofDNS && g.chance(0.8), ofDNS || g.chance(0.4)
	if egress {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		for range g.IntN(4) {
			to, ports := g.peers()
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: to, Ports: ports})
		}
	}
	if ingress {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
		for range g.IntN(4) {
			from, ports := g.peers()
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: from, Ports: ports})
		}
	}
	if ingress == (len(p.Spec.Egress) == 0) && egress == (len(p.Spec.Egress) > 0) && g.chance(0.5) {
		p.Spec.PolicyTypes = nil // the same by default
	}
	if !egress && !ingress { // by default it denies ingress
		p.Spec.PolicyTypes = nil
	}
	g.c.Policies = append(g.c.Policies, p)
}

func (g *random) selector() metav1.LabelSelector {
	switch g.IntN(4) {
	case 0:
		return metav1.LabelSelector{}
	case 1:
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(g, "a", "b", "c")}}
	case 2:
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{g.requirement()}}
	default:
		return metav1.LabelSelector{
			MatchLabels:      map[string]string{"app": pick(g, "a", "b")},
			MatchExpressions: []metav1.LabelSelectorRequirement{g.requirement(), g.requirement()},
		}
	}
}

func (g *random) requirement() metav1.LabelSelectorRequirement {
	r := metav1.LabelSelectorRequirement{
		Key:      pick(g, "app", "tier"),
		Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
	}
	if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
		r.Values = pick(g, []string{"a", "x"}, []string{"b"}, []string{"y", "c", "a"})
	}
	return r
}

// peers are those of a rule, and its ports.
func (g *random) peers() (peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	block := false
	for range g.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch kind := g.IntN(5); {
		case kind >= 3 && !block:
			p.IPBlock, block = g.block(), true
		case kind == 0:
			s := g.selector()
			p.PodSelector = &s
		case kind == 1:
			s := g.namespaces()
			p.NamespaceSelector = &s
		default:
			s := g.namespaces()
			p.NamespaceSelector, p.PodSelector = &s, pick(g, &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}}, new(g.selector()))
		}
		peers = append(peers, p)
	}
	for range g.IntN(3) {
		ports = append(ports, g.port())
	}
	return peers, ports
}

func (g *random) namespaces() metav1.LabelSelector {
	if g.chance(0.4) {
		return metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.c.Namespaces[0].Name}}
	}
	return g.selector()
}

func (g *random) block() *networkingv1.IPBlock {
	dns, agent := netip.PrefixFrom(g.o.Pods[0], 32), netip.PrefixFrom(g.o.Agent, 32)
	wide, local := netip.PrefixFrom(g.o.Pods[0], 8).Masked(), netip.PrefixFrom(g.o.Agent, 16).Masked()
	b := &networkingv1.IPBlock{CIDR: pick(g, "0.0.0.0/0", "0.0.0.0/0", dns.String(), agent.String(), wide.String(), local.String())}
	switch {
	case g.chance(0.5):
	case b.CIDR == "0.0.0.0/0":
		b.Except = pick(g, []string{wide.String()}, []string{local.String()}, []string{agent.String(), dns.String()})
	case b.CIDR == wide.String():
		b.Except = []string{dns.String()}
	case b.CIDR == local.String():
		b.Except = []string{agent.String()}
	}
	return b
}

func (g *random) port() networkingv1.NetworkPolicyPort {
	udp, tcp := corev1.ProtocolUDP, corev1.ProtocolTCP
	protocol := pick(g, &udp, &udp, &tcp, nil)
	number := func(n int) *intstr.IntOrString { return new(intstr.FromInt(n)) }
	switch g.IntN(5) {
	case 0:
		return networkingv1.NetworkPolicyPort{Protocol: protocol}
	case 1:
		return networkingv1.NetworkPolicyPort{Protocol: protocol, Port: number(pick(g, 1, 50, 53)), EndPort: new(int32(pick(g, 53, 60, 9000)))}
	case 2:
		if protocol == &udp {
			return networkingv1.NetworkPolicyPort{Protocol: protocol, Port: new(intstr.FromString("dns"))}
		}
		return networkingv1.NetworkPolicyPort{Protocol: protocol, Port: new(intstr.FromString("dns-tcp"))}
	default:
		return networkingv1.NetworkPolicyPort{Protocol: protocol, Port: number(pick(g, 53, 53, int(g.c.Port), 443))}
	}
}
