// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A networkPolicy is one with its selectors compiled.
type networkPolicy struct {
	*networkingv1.NetworkPolicy

	name     string
	selector labels.Selector // nil: not valid
	rules    [2][]rule       // by direction
	isolates [2]bool         // by direction
}

// A rule is one of a NetworkPolicy.
type rule struct {
	peers []peer // none: anywhere
	ports []networkingv1.NetworkPolicyPort
}

type peer struct {
	block      netip.Prefix
	except     []netip.Prefix
	namespaces labels.Selector // nil: the policy's own
	pods       labels.Selector // nil: an ipBlock
	broken     bool            // the API server accepts none that is
}

func newNetworkPolicy(p *networkingv1.NetworkPolicy) networkPolicy {
	n := networkPolicy{NetworkPolicy: p, name: "NetworkPolicy " + p.Namespace + "/" + p.Name}
	n.selector, _ = metav1.LabelSelectorAsSelector(&p.Spec.PodSelector) // nil is unknown
	for _, r := range p.Spec.Egress {
		n.rules[egress] = append(n.rules[egress], newRule(r.To, r.Ports))
	}
	for _, r := range p.Spec.Ingress {
		n.rules[ingress] = append(n.rules[ingress], newRule(r.From, r.Ports))
	}
	n.isolates[egress] = slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	n.isolates[ingress] = slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	if len(p.Spec.PolicyTypes) == 0 {
		n.isolates = [2]bool{egress: len(p.Spec.Egress) > 0, ingress: true}
	}
	return n
}

func newRule(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) rule {
	r := rule{ports: ports}
	for _, p := range peers {
		r.peers = append(r.peers, newPeer(p))
	}
	return r
}

func newPeer(p networkingv1.NetworkPolicyPeer) (n peer) {
	var err error
	if p.IPBlock != nil {
		n.block, err = netip.ParsePrefix(p.IPBlock.CIDR)
		n.broken = err != nil
		for _, text := range p.IPBlock.Except {
			e, err := netip.ParsePrefix(text)
			n.except, n.broken = append(n.except, e), n.broken || err != nil
		}
		return n
	}
	n.pods = labels.Everything()
	if p.PodSelector != nil {
		n.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector)
		n.broken = err != nil
	}
	if p.NamespaceSelector != nil {
		n.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector)
		n.broken = n.broken || err != nil
	}
	return n
}

// decideAddresses evaluates NetworkPolicies, the only ones that every engine has.
func (c *cluster) decideAddresses(f *flow, d direction) (r result) {
	for i := range c.policies[f.selected(d).Namespace] {
		p := &c.policies[f.selected(d).Namespace][i]
		v, isolates := c.allows(p, f, d)
		if !isolates {
			continue
		}
		r.policies = append(r.policies, p.name)
		r.verdict = max(r.verdict, v)
		if v == Unknown {
			r.unknown = append(r.unknown, p.name)
		}
	}
	if len(r.policies) == 0 {
		r.verdict = Allowed
	}
	return r
}

// allows says what one policy says, and whether it isolates the pod.
func (c *cluster) allows(p *networkPolicy, f *flow, d direction) (v Verdict, isolates bool) {
	if !p.isolates[d] || p.selector != nil && !p.selector.Matches(labels.Set(f.selected(d).Labels)) {
		return Denied, false
	}
	if p.selector == nil {
		return Unknown, true
	}
	for _, r := range p.rules[d] {
		v = max(v, c.ruleAllows(p, r, f, d))
	}
	return v, true
}

// ruleAllows says what a rule says. The pod that a named port is of follows from the peers.
func (c *cluster) ruleAllows(p *networkPolicy, r rule, f *flow, d direction) (v Verdict) {
	if len(r.peers) == 0 {
		return c.portsMatch(r.ports, f, d, false)
	}
	for _, one := range r.peers {
		v = max(v, min(c.peerMatches(p, one, f, d), c.portsMatch(r.ports, f, d, one.pods != nil)))
	}
	return v
}

func (c *cluster) peerMatches(p *networkPolicy, one peer, f *flow, d direction) Verdict {
	other := f.other(d)
	pod, addr := other.pod, other.addr
	switch {
	case one.broken:
		return Unknown
	case one.pods == nil && c.Engine == Cilium: // an address that Cilium knows is an identity, and matches no block
		return verdict(pod == nil && !f.local && !c.known.Has(addr) && one.contains(addr))
	case one.pods == nil:
		return verdict(one.contains(addr))
	case pod == nil:
		return Denied
	case one.namespaces == nil:
		return verdict(pod.Namespace == p.Namespace && one.pods.Matches(labels.Set(pod.Labels)))
	default:
		return verdict(one.namespaces.Matches(c.namespaces[pod.Namespace]) && one.pods.Matches(labels.Set(pod.Labels)))
	}
}

func (p *peer) contains(a netip.Addr) bool {
	return p.block.Contains(a) && !slices.ContainsFunc(p.except, func(e netip.Prefix) bool { return e.Contains(a) })
}

// portsMatch says whether ports match a flow. Engines agree on a named port only if a selector of pods says whose port it is.
func (c *cluster) portsMatch(ports []networkingv1.NetworkPolicyPort, f *flow, d direction, byPods bool) (v Verdict) {
	if len(ports) == 0 {
		return Allowed
	}
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		switch {
		case protocol != f.protocol:
		case port.Port == nil:
			return Allowed
		case port.Port.Type == intstr.String:
			v = max(v, c.namedPortMatches(port.Port.StrVal, f, d == ingress || byPods))
		case port.EndPort != nil:
			v = max(v, verdict(port.Port.IntVal <= f.port && f.port <= *port.EndPort))
		default:
			v = max(v, verdict(port.Port.IntVal == f.port))
		}
	}
	return v
}

// namedPortMatches says whether a named port is that of a flow. If nothing says whose port it is, some engines take that of any pod.
func (c *cluster) namedPortMatches(name string, f *flow, known bool) Verdict {
	if known {
		return verdict(f.to.pod != nil && hasPort(f.to.pod, name, f.protocol, f.port))
	}
	for i := range c.Pods {
		if hasPort(&c.Pods[i], name, f.protocol, f.port) {
			return Unknown
		}
	}
	return Denied
}

func hasPort(p *corev1.Pod, name string, protocol corev1.Protocol, number int32) bool {
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range container.Ports {
			if port.Name == name && port.ContainerPort == number && (port.Protocol == protocol || port.Protocol == "" && protocol == corev1.ProtocolTCP) {
				return true
			}
		}
	}
	return false
}
