// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// defaultTier has the policies that name none, and NetworkPolicies.
const defaultTier = "default"

// Orders of Calico's: of the default tier, and of a NetworkPolicy in it.
const (
	defaultTierOrder   = 1_000_000
	networkPolicyOrder = 1000
)

// A calicoSpec is a NetworkPolicy's or a GlobalNetworkPolicy's. A field that is not here makes the policy unknown.
type calicoSpec struct {
	Tier                   string       `json:"tier"`
	Order                  *float64     `json:"order"`
	Selector               string       `json:"selector"`
	NamespaceSelector      string       `json:"namespaceSelector"`
	ServiceAccountSelector string       `json:"serviceAccountSelector"`
	Types                  []string     `json:"types"`
	Egress                 []calicoRule `json:"egress"`
	Ingress                []calicoRule `json:"ingress"`
	PerformanceHints       []string     `json:"performanceHints"`

	// These are for the interfaces of nodes only.
	DoNotTrack     bool `json:"doNotTrack"`
	PreDNAT        bool `json:"preDNAT"`
	ApplyOnForward bool `json:"applyOnForward"`
}

type calicoRule struct {
	Action      string              `json:"action"`
	IPVersion   int                 `json:"ipVersion"`
	Protocol    *intstr.IntOrString `json:"protocol"`
	NotProtocol *intstr.IntOrString `json:"notProtocol"`
	ICMP        any                 `json:"icmp"`
	HTTP        any                 `json:"http"`
	Source      calicoEntity        `json:"source"`
	Destination calicoEntity        `json:"destination"`
	Metadata    any                 `json:"metadata"`
}

type calicoEntity struct {
	Nets              []string             `json:"nets"`
	NotNets           []string             `json:"notNets"`
	Selector          string               `json:"selector"`
	NotSelector       string               `json:"notSelector"`
	NamespaceSelector string               `json:"namespaceSelector"`
	Ports             []intstr.IntOrString `json:"ports"`
	NotPorts          []intstr.IntOrString `json:"notPorts"`
	Services          any                  `json:"services"`
	ServiceAccounts   any                  `json:"serviceAccounts"`
}

func (p *policy) tier() string { return cmp.Or(p.calico.Tier, defaultTier) }

func (p *policy) order() float64 {
	if p.calico.Order == nil {
		return math.Inf(1)
	}
	return *p.calico.Order
}

// A calicoEngine evaluates as Calico does.
type calicoEngine struct{ *cluster }

// sort has the tiers, and the policies of each, in the order in which Calico evaluates them. NetworkPolicies are one of the default tier.
func (c calicoEngine) sort() {
	c.tierNames = slices.SortedFunc(maps.Keys(c.tiers), func(x, y string) int {
		return cmp.Or(cmp.Compare(c.tiers[x].order, c.tiers[y].order), strings.Compare(x, y))
	})
	c.others = append(c.others, policy{name: networkPolicies, calico: calicoSpec{Order: new(float64(networkPolicyOrder))}})
	slices.SortFunc(c.others, func(x, y policy) int { // those of a tier
		return cmp.Or(cmp.Compare(x.order(), y.order()), strings.Compare(x.name, y.name))
	})
}

// networkPolicies is behind all names of policies.
const networkPolicies = "~"

// decide evaluates tiers, policies and rules, each from the last to the first: what one does not decide, what is behind it does.
func (c calicoEngine) decide(f *flow, d direction) result {
	r := result{verdict: Allowed} // by the profile of the namespace
	for _, name := range slices.Backward(c.tierNames) {
		r = c.decideTier(name, r, f, d)
	}
	for i := range c.others {
		p := &c.others[i]
		if _, known := c.tiers[p.tier()]; (!known || p.broken) && c.selects(p, f, d) != Denied { // it may decide anything
			r = result{Unknown, union(r.policies, []string{p.name}), union(r.unknown, []string{p.name})}
		}
	}
	return r
}

// decideTier is what a tier decides, with what the next ones do.
func (c calicoEngine) decideTier(name string, next result, f *flow, d direction) result {
	selected, r := Denied, next
	for i := range c.others {
		if p := &c.others[i]; p.tier() == name && !p.broken {
			selected = max(selected, c.selects(p, f, d))
		}
	}
	if !c.tiers[name].pass {
		r = either(selected, result{}, next)
	}
	for i := range slices.Backward(c.others) {
		if p := &c.others[i]; p.tier() == name && !p.broken {
			r = c.decidePolicy(p, r, next, f, d)
		}
	}
	return r
}

// decidePolicy is what a policy decides, with what is behind it in its tier, and what the next tiers decide.
func (c calicoEngine) decidePolicy(p *policy, rest, next result, f *flow, d direction) result {
	selects := c.selects(p, f, d)
	switch {
	case selects == Denied:
		return rest
	case p.name == networkPolicies: // they only allow
		r := c.decideAddresses(f, d)
		rest = either(r.verdict, result{verdict: Allowed}, rest)
		return result{rest.verdict, union(rest.policies, r.policies), union(rest.unknown, r.unknown)}
	}
	rules := p.calico.Egress
	if d == ingress {
		rules = p.calico.Ingress
	}
	unknown := selects == Unknown
	for i := range slices.Backward(rules) {
		m := min(selects, c.matches(p, &rules[i], f))
		switch rules[i].Action {
		case "Allow":
			rest = either(m, result{verdict: Allowed}, rest)
		case "Deny":
			rest = either(m, result{}, rest)
		case "Pass":
			rest = either(m, next, rest)
		default: // Log
			continue
		}
		unknown = m == Unknown || m == Denied && unknown
	}
	rest.policies = union(rest.policies, []string{p.name})
	if unknown {
		rest.unknown = union(rest.unknown, []string{p.name})
	}
	return rest
}

// either is one result if a condition holds, the other if it does not, and what both have in common if that is unknown.
func either(condition Verdict, then, otherwise result) result {
	switch condition {
	case Allowed:
		return then
	case Denied:
		return otherwise
	case Unknown:
	}
	verdict := then.verdict
	if verdict != otherwise.verdict {
		verdict = Unknown
	}
	return result{verdict, union(then.policies, otherwise.policies), union(then.unknown, otherwise.unknown)}
}

// selects says whether a policy applies to the pod in a direction.
func (c calicoEngine) selects(p *policy, f *flow, d direction) Verdict {
	pod, s := f.selected(d), &p.calico
	switch {
	case p.name == networkPolicies:
		return verdict(len(c.decideAddresses(f, d).policies) > 0)
	case p.broken:
		return verdict(p.namespace == "" || p.namespace == pod.Namespace)
	}
	types := s.Types
	if len(types) == 0 {
		if len(s.Egress) > 0 {
			types = append(types, "Egress")
		}
		if len(s.Ingress) > 0 || len(s.Egress) == 0 {
			types = append(types, "Ingress")
		}
	}
	switch {
	case p.namespace != "" && p.namespace != pod.Namespace, s.DoNotTrack, s.PreDNAT,
		!slices.Contains(types, map[direction]string{egress: "Egress", ingress: "Ingress"}[d]):
		return Denied
	case s.ServiceAccountSelector != "":
		return Unknown
	default:
		return min(matchCalico(s.Selector, calicoLabels(pod)), matchCalico(s.NamespaceSelector, c.namespaceLabels(pod.Namespace)))
	}
}

func (c calicoEngine) matches(p *policy, r *calicoRule, f *flow) Verdict {
	if r.ICMP != nil || r.IPVersion != 0 && (r.IPVersion == 4) != f.to.addr.Is4() ||
		r.Protocol != nil && !protocolIs(*r.Protocol, f.protocol) || r.NotProtocol != nil && protocolIs(*r.NotProtocol, f.protocol) {
		return Denied
	}
	v := Allowed
	if r.HTTP != nil || len(r.Source.Ports) > 0 || len(r.Source.NotPorts) > 0 { // the port of the pod varies
		v = Unknown
	}
	v = min(v, c.entityMatches(p, &r.Source, f.from))
	v = min(v, c.entityMatches(p, &r.Destination, f.to))
	if len(r.Destination.Ports) > 0 {
		v = min(v, calicoPorts(r.Destination.Ports, f))
	}
	return min(v, not(calicoPorts(r.Destination.NotPorts, f)))
}

// protocolIs compares a protocol, which may be a number.
func protocolIs(p intstr.IntOrString, protocol corev1.Protocol) bool {
	number := map[corev1.Protocol]string{corev1.ProtocolUDP: "17", corev1.ProtocolTCP: "6"}[protocol]
	return strings.EqualFold(p.String(), string(protocol)) || p.String() == number
}

// entityMatches says whether one end of a flow matches, without its port.
func (c calicoEngine) entityMatches(p *policy, e *calicoEntity, one end) Verdict {
	v := Allowed
	if e.Services != nil || e.ServiceAccounts != nil {
		v = Unknown
	}
	if len(e.Nets) > 0 {
		v = min(v, netsContain(e.Nets, one.addr))
	}
	v = min(v, not(netsContain(e.NotNets, one.addr)))
	if e.Selector != "" || e.NamespaceSelector != "" || e.NotSelector != "" && p.namespace != "" {
		v = min(v, c.endMatches(p, e.Selector, e.NamespaceSelector, one))
	}
	if e.NotSelector != "" {
		v = min(v, not(c.endMatches(p, e.NotSelector, e.NamespaceSelector, one)))
	}
	return v
}

func netsContain(nets []string, addr netip.Addr) (v Verdict) {
	for _, text := range nets {
		n, ok := prefix(text)
		if !ok {
			return Unknown
		}
		v = max(v, verdict(n.Contains(addr)))
	}
	return v
}

// endMatches says whether selectors match a pod, or a set of addresses. A policy of a namespace selects there, unless it says otherwise.
func (c calicoEngine) endMatches(p *policy, selector, namespaces string, one end) (v Verdict) {
	if pod := one.pod; pod != nil {
		v = matchCalico(selector, calicoLabels(pod))
		switch {
		case namespaces == "global()":
			v = Denied
		case namespaces != "":
			v = min(v, matchCalico(namespaces, c.namespaceLabels(pod.Namespace)))
		case p.namespace != "":
			v = min(v, verdict(p.namespace == pod.Namespace))
		}
	}
	for i := range c.sets {
		if slices.ContainsFunc(c.sets[i].nets, func(n netip.Prefix) bool { return n.Contains(one.addr) }) {
			v = max(v, min(Unknown, matchCalico(selector, c.sets[i].labels))) // whether its namespace is right is not evaluated
		}
	}
	return v
}

// calicoLabels are those of a pod, and those that Calico adds.
func calicoLabels(p *corev1.Pod) labels.Set {
	set := labels.Set{"projectcalico.org/namespace": p.Namespace, "projectcalico.org/orchestrator": "k8s"}
	maps.Copy(set, p.Labels)
	set["projectcalico.org/serviceaccount"] = cmp.Or(p.Spec.ServiceAccountName, "default")
	return set
}

func (c calicoEngine) namespaceLabels(name string) labels.Set {
	set := labels.Set{"projectcalico.org/name": name}
	maps.Copy(set, c.namespaces[name])
	return set
}

// calicoPorts says whether a port is listed: as a number, a range such as 50:60, or by its name in the pod.
func calicoPorts(ports []intstr.IntOrString, f *flow) (v Verdict) {
	for _, p := range ports {
		low, high, _ := strings.Cut(p.String(), ":")
		first, err := strconv.ParseInt(low, 10, 32)
		if err != nil {
			v = max(v, verdict(f.to.pod != nil && hasPort(f.to.pod, p.String(), f.protocol, f.port)))
			continue
		}
		last, err := strconv.ParseInt(cmp.Or(high, low), 10, 32)
		if err != nil {
			return Unknown
		}
		v = max(v, verdict(int32(first) <= f.port && f.port <= int32(last)))
	}
	return v
}
