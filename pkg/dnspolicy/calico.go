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

// sort has the tiers, and the policies of each, in the order in which Calico evaluates them.
func (c calicoEngine) sort() {
	c.tierNames = slices.SortedFunc(maps.Keys(c.tiers), func(x, y string) int {
		return cmp.Or(cmp.Compare(c.tiers[x].order, c.tiers[y].order), strings.Compare(x, y))
	})
	slices.SortFunc(c.others, func(x, y policy) int { // those of a tier
		return cmp.Or(cmp.Compare(x.order(), y.order()), strings.Compare(x.name, y.name))
	})
}

// A walk is the way of a flow through policies of which the first that matches decides.
type walk struct {
	result

	allow, deny bool    // what it may come to
	selected    Verdict // whether a policy of this tier selects the pod
}

// decide evaluates Calico's policies in order, with NetworkPolicies among those of the default tier.
func (c calicoEngine) decide(f *flow, d direction) result {
	w := &walk{}
	c.walkTiers(w, f, d)
	switch {
	case w.allow && w.deny:
		w.verdict = Unknown
	case w.allow:
		w.verdict, w.unknown = Allowed, nil
	default:
		w.verdict, w.unknown = Denied, nil
	}
	return w.result
}

// walkTiers walks until a policy has decided. What no tier decides is allowed, by the profile of the namespace.
func (c calicoEngine) walkTiers(w *walk, f *flow, d direction) {
	for i := range c.others {
		p := &c.others[i]
		if _, known := c.tiers[p.tier()]; (!known || p.broken) && c.selects(p, f, d) != Denied {
			w.allow, w.deny = true, true
			w.policies, w.unknown = append(w.policies, p.name), append(w.unknown, p.name)
		}
	}
	for _, name := range c.tierNames {
		w.selected = Denied
		if c.walkTier(w, name, f, d) {
			return
		}
		if w.selected != Denied && !c.tiers[name].pass {
			w.deny = true
			if w.selected == Allowed {
				return
			}
		}
	}
	w.allow = true
}

// walkTier reports whether a rule has decided for certain.
func (c calicoEngine) walkTier(w *walk, name string, f *flow, d direction) (decided bool) {
	kubernetes := name == defaultTier
	for i := range c.others {
		p := &c.others[i]
		if p.tier() != name || p.broken {
			continue
		}
		if kubernetes && p.order() > networkPolicyOrder {
			kubernetes = false
			if c.walkNetworkPolicies(w, f, d) {
				return true
			}
		}
		if decided, pass := c.walkPolicy(w, p, f, d); decided || pass {
			return decided
		}
	}
	return kubernetes && c.walkNetworkPolicies(w, f, d)
}

// walkNetworkPolicies reports whether one allows the flow. They only allow, so their order does not matter.
func (c calicoEngine) walkNetworkPolicies(w *walk, f *flow, d direction) bool {
	r := c.decideAddresses(f, d)
	if len(r.policies) == 0 {
		return false
	}
	w.selected, w.policies = Allowed, append(w.policies, r.policies...)
	if r.verdict != Denied {
		w.allow = true
	}
	if r.verdict == Unknown {
		w.unknown = append(w.unknown, r.unknown...)
	}
	return r.verdict == Allowed
}

// walkPolicy reports whether a rule has decided for certain, or has passed the flow to the next tier.
func (c calicoEngine) walkPolicy(w *walk, p *policy, f *flow, d direction) (decided, pass bool) {
	selects := c.selects(p, f, d)
	if selects == Denied {
		return false, false
	}
	w.selected, w.policies = max(w.selected, selects), append(w.policies, p.name)
	unknown := selects == Unknown
	rules := p.calico.Egress
	if d == ingress {
		rules = p.calico.Ingress
	}
	for i := range rules {
		r := &rules[i]
		m := min(selects, c.matches(p, r, f))
		if m == Denied || r.Action == "Log" {
			continue
		}
		unknown = unknown || m == Unknown
		decided, pass = m == Allowed && r.Action != "Pass", m == Allowed && r.Action == "Pass"
		maybePassed := r.Action == "Pass" && !pass // what the next tiers say is not known
		w.allow = w.allow || r.Action == "Allow" || maybePassed
		w.deny = w.deny || r.Action == "Deny" || maybePassed
		if pass {
			w.selected = Denied
		}
		if m == Allowed {
			break
		}
	}
	if unknown {
		w.unknown = append(w.unknown, p.name)
	}
	return decided, pass
}

// selects says whether a policy applies to the pod in a direction.
func (c calicoEngine) selects(p *policy, f *flow, d direction) Verdict {
	pod, s := f.selected(d), &p.calico
	if p.broken {
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
