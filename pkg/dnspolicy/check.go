// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// An Engine is what applies the policies.
type Engine string

// The engines. They differ in what the node is to them.
const (
	Addresses Engine = "addresses" // the node's address; kube-router and most others
	Cilium    Engine = "cilium"    // the entity host, which no address matches
	Calico    Engine = "calico"    // the node's address; and policies have an order
)

// Input is the state of a cluster, and the switch to check.
type Input struct {
	Engine          Engine
	Namespaces      []corev1.Namespace
	Pods            []corev1.Pod
	NetworkPolicies []networkingv1.NetworkPolicy
	Others          []unstructured.Unstructured // the engines' own policies and sets of addresses: all objects of all kinds
	DNS             []discoveryv1.EndpointSlice // of the DNS Service, with the ports for DNS only
	Agents          []netip.Addr                // where pods send their queries after the switch: the agents' addresses, or those of the Service
	Nodes           map[string][]netip.Addr     // those that run an agent, by name; nil: all, and what agents may query is not checked
}

// A Verdict is what policies say to a query.
type Verdict int

// The verdicts, in the order that makes the larger one right for rules of which one is enough.
const (
	Denied Verdict = iota
	Unknown
	Allowed
)

func (v Verdict) String() string { return [...]string{"denied", "unknown", "allowed"}[v] }

// verdict is a verdict that is certain.
func verdict(allowed bool) Verdict {
	if allowed {
		return Allowed
	}
	return Denied
}

// not is the verdict on the opposite.
func not(v Verdict) Verdict { return Allowed - v }

// A Pod is what policies say to the queries of one pod.
type Pod struct {
	Namespace, Name string
	Before, After   [2]Verdict // over UDP and TCP: to at least one of the DNS Service's endpoints, and to each agent's address
	Policies        []string   // that isolate it, or deny the query after the switch
	Unknown         []string   // that could not be decided

	fix string
}

// Lost reports whether the pod may lose DNS over UDP or TCP, and whether that is certain.
func (p *Pod) Lost() (lost, certain bool) {
	for i := range p.Before {
		if p.Before[i] != Denied && p.After[i] != Allowed {
			lost = true
			certain = certain || p.Before[i] == Allowed && p.After[i] == Denied
		}
	}
	return lost, certain
}

// A Finding is pods of a namespace that one change helps.
type Finding struct {
	Namespace string
	Pods      []string
	Serve     bool     // these pods serve DNS, and lose the queries of agents; false: they lose DNS
	Policies  []string // that isolate these pods, with their kinds
	Unknown   []string // that could not be decided: these pods may or may not lose it; empty: they do
	Fix       string   // the command
}

func (f *Finding) String() string {
	what, why := "lose DNS", ""
	if f.Serve {
		what = "lose the queries of agents on other nodes"
	}
	if len(f.Unknown) > 0 {
		what, why = "may "+what, ": not decided: "+strings.Join(f.Unknown, ", ")
	}
	if len(f.Policies) > 0 {
		why += "; isolated by: " + strings.Join(f.Policies, ", ")
	}
	return fmt.Sprintf("namespace %s: pods %s %s%s", f.Namespace, strings.Join(f.Pods, ", "), what, why)
}

// Check names the pods that lose DNS, and those of DNS that lose the agents' queries. An error says that the input cannot show it.
func Check(in Input) ([]Finding, error) {
	c, err := newCluster(in)
	if err != nil {
		return nil, err
	}
	all := c.checkServers()
	for _, p := range c.evaluateAll() {
		if lost, certain := p.Lost(); lost {
			f := Finding{Namespace: p.Namespace, Pods: []string{p.Name}, Policies: p.Policies, Fix: p.fix}
			if !certain {
				f.Unknown = p.Unknown
			}
			all = append(all, f)
		}
	}
	return merge(all), nil
}

// merge makes one finding of those that one change helps.
func merge(all []Finding) (merged []Finding) {
	type key struct {
		namespace, fix, unknown string
		serve                   bool
	}
	at := map[key]int{}
	for _, f := range all {
		k := key{f.Namespace, f.Fix, strings.Join(f.Unknown, ","), f.Serve}
		i, has := at[k]
		if !has {
			at[k], merged = len(merged), append(merged, f)
			continue
		}
		merged[i].Pods, merged[i].Policies = union(merged[i].Pods, f.Pods), union(merged[i].Policies, f.Policies)
	}
	slices.SortFunc(merged, func(x, y Finding) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), slices.Compare(x.Pods, y.Pods))
	})
	return merged
}

// A flow is a query on its way through policies.
type flow struct {
	from, to end
	local    bool // both ends are on one node
	protocol corev1.Protocol
	port     int32
}

// An end is one of a flow's.
type end struct {
	pod  *corev1.Pod // nil: no pod, or one on the host network
	addr netip.Addr
}

// A direction is one of a policy's types.
type direction int

const (
	egress direction = iota
	ingress
)

// selected is the pod that policies of a direction select.
func (f *flow) selected(d direction) *corev1.Pod {
	if d == egress {
		return f.from.pod
	}
	return f.to.pod
}

// other is the other end.
func (f *flow) other(d direction) end {
	if d == egress {
		return f.to
	}
	return f.from
}

// A result is what the policies of a direction say.
type result struct {
	verdict  Verdict
	policies []string // that isolate the pod
	unknown  []string // that made the verdict unknown
}

// A cluster is an input that is prepared for many flows.
type cluster struct {
	Input

	namespaces map[string]labels.Set
	policies   map[string][]networkPolicy // by namespace
	known      sets.Set[netip.Addr]       // addresses of pods and of their nodes
	endpoints  []flow                     // to the DNS Service, without the end that asks
	others     []policy                   // the engine's own, in order
	sets       []addressSet
	tiers      map[string]tier
	tierNames  []string // in order
	strange    []string // objects that are not evaluated
}

// Evaluate says for each pod that uses the cluster's DNS, and that policies apply to, what they say to its queries.
func Evaluate(in Input) ([]Pod, error) {
	c, err := newCluster(in)
	if err != nil {
		return nil, err
	}
	return c.evaluateAll(), nil
}

func newCluster(in Input) (*cluster, error) {
	c := &cluster{
		Input: in, namespaces: map[string]labels.Set{}, policies: map[string][]networkPolicy{}, known: sets.Set[netip.Addr]{},
		tiers: map[string]tier{defaultTier: {order: defaultTierOrder}},
	}
	c.endpoints = c.dnsEndpoints()
	switch {
	case len(in.Agents) == 0:
		return nil, errors.New("checking policies: no address of the agents")
	case len(c.endpoints) == 0:
		return nil, errors.New("checking policies: the DNS Service has no endpoints, so no pod has DNS now")
	}
	for i := range in.Namespaces {
		c.namespaces[in.Namespaces[i].Name] = in.Namespaces[i].Labels
	}
	for i := range in.Pods {
		c.known.Insert(addrsOf(&in.Pods[i])...)
	}
	for _, addrs := range in.Nodes {
		c.known.Insert(addrs...)
	}
	for i := range in.NetworkPolicies {
		p := &in.NetworkPolicies[i]
		c.policies[p.Namespace] = append(c.policies[p.Namespace], newNetworkPolicy(p))
	}
	for i := range in.Others {
		c.add(&in.Others[i])
	}
	if c.Engine == Calico {
		calicoEngine{c}.sort()
	}
	return c, nil
}

func (c *cluster) evaluateAll() (pods []Pod) {
	for i := range c.Pods {
		if p := &c.Pods[i]; c.concerned(p) {
			pods = append(pods, c.evaluate(p))
		}
	}
	return pods
}

// concerned reports whether a pod runs, is subject to policies, and sends its queries to the agents after the switch.
func (c *cluster) concerned(p *corev1.Pod) bool {
	if _, has := c.Nodes[p.Spec.NodeName]; p.Spec.HostNetwork || ended(p) || len(addrsOf(p)) == 0 || c.Nodes != nil && !has {
		return false
	}
	switch p.Spec.DNSPolicy {
	case corev1.DNSDefault:
		return false
	case corev1.DNSNone:
		return p.Spec.DNSConfig != nil && slices.ContainsFunc(c.Agents, func(a netip.Addr) bool { return slices.Contains(p.Spec.DNSConfig.Nameservers, a.String()) })
	default:
		return true
	}
}

// protocols are those of DNS, in the order of [Pod].
func protocols() [2]corev1.Protocol {
	return [2]corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP}
}

func (c *cluster) evaluate(p *corev1.Pod) Pod {
	r := Pod{Namespace: p.Namespace, Name: p.Name}
	for i, protocol := range protocols() {
		before, after := c.before(p, protocol), c.after(p, protocol)
		r.Before[i], r.After[i] = before.verdict, after.verdict
		r.Policies = union(r.Policies, after.policies)
		for _, one := range []result{before, after} {
			if one.verdict == Unknown {
				r.Unknown = union(r.Unknown, one.unknown)
			}
		}
	}
	r.fix = c.fix(p.Namespace, r.Policies)
	return r
}

// before is the best of what policies say to queries to the DNS Service: a pod asks again if an endpoint does not answer.
func (c *cluster) before(p *corev1.Pod, protocol corev1.Protocol) (best result) {
	for _, f := range c.endpoints {
		f.from = endOf(p, f.to.addr)
		if f.protocol != protocol || !f.from.addr.IsValid() {
			continue
		}
		f.local = slices.Contains(p.Status.HostIPs, corev1.HostIP{IP: f.to.addr.String()})
		one := both(c.decide(&f, egress), c.decide(&f, ingress))
		best.verdict, best.unknown = max(best.verdict, one.verdict), union(best.unknown, one.unknown)
	}
	return best
}

// after is the worst of what policies say to queries to the agents: the first address that does not answer costs seconds.
func (c *cluster) after(p *corev1.Pod, protocol corev1.Protocol) result {
	worst := result{verdict: Allowed}
	for _, a := range c.Agents {
		if f := (flow{from: endOf(p, a), to: end{addr: a}, local: true, protocol: protocol, port: 53}); f.from.addr.IsValid() {
			worst = both(worst, both(c.decide(&f, egress), ciliumEngine{c}.hostPolicies(&f)))
		}
	}
	return worst
}

// checkServers finds the pods of DNS that policies do not let agents on other nodes query. A pod's own node always may.
func (c *cluster) checkServers() (all []Finding) {
	for _, f := range c.endpoints {
		worst := result{verdict: Allowed}
		for name, addrs := range c.Nodes {
			for _, a := range addrs {
				if f.to.pod != nil && f.to.pod.Spec.NodeName != name && a.Is4() == f.to.addr.Is4() && worst.verdict != Denied {
					f.from = end{addr: a}
					worst = both(worst, c.decide(&f, ingress))
				}
			}
		}
		if worst.verdict == Allowed {
			continue
		}
		one := Finding{Namespace: f.to.pod.Namespace, Pods: []string{f.to.pod.Name}, Serve: true, Policies: worst.policies, Fix: c.serverFix(f.to.pod.Namespace, worst.policies)}
		if worst.verdict == Unknown {
			one.Unknown = worst.unknown
		}
		all = append(all, one)
	}
	return all
}

// decide says what the policies of a direction say to a flow.
func (c *cluster) decide(f *flow, d direction) result {
	if f.selected(d) == nil { // no policies for pods apply
		return result{verdict: Allowed}
	}
	var r result
	switch c.Engine {
	case Cilium:
		r = ciliumEngine{c}.decide(f, d)
	case Calico:
		r = calicoEngine{c}.decide(f, d)
	default:
		r = c.decideAddresses(f, d)
	}
	if len(c.strange) > 0 { // what is not evaluated may decide anything
		r.verdict, r.unknown = Unknown, union(r.unknown, c.strange)
	}
	if r.verdict != Unknown {
		r.unknown = nil
	}
	return r
}

// dnsEndpoints are the flows to the DNS Service, without the end that asks.
func (c *cluster) dnsEndpoints() (all []flow) {
	byAddr := map[netip.Addr]*corev1.Pod{}
	for i := range c.Pods {
		if p := &c.Pods[i]; !ended(p) && !p.Spec.HostNetwork {
			for _, a := range addrsOf(p) {
				byAddr[a] = p
			}
		}
	}
	for i := range c.DNS {
		for _, a := range readyAddrs(&c.DNS[i]) {
			for _, port := range c.DNS[i].Ports {
				if port.Port != nil && port.Protocol != nil {
					all = append(all, flow{to: end{byAddr[a], a}, protocol: *port.Protocol, port: *port.Port})
				}
			}
		}
	}
	return all
}

// readyAddrs are the addresses of the endpoints that Services use.
func readyAddrs(s *discoveryv1.EndpointSlice) (all []netip.Addr) {
	for _, e := range s.Endpoints {
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				all = append(all, a)
			}
		}
	}
	return all
}

// ended reports whether a pod runs no more, so that its address may be another's.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func addrsOf(p *corev1.Pod) []netip.Addr {
	var all []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// endOf is a pod with its address of the family of another; that is not valid if it has none.
func endOf(p *corev1.Pod, other netip.Addr) end {
	for _, a := range addrsOf(p) {
		if a.Is4() == other.Is4() {
			return end{p, a}
		}
	}
	return end{pod: p}
}

// both is the result of policies that must agree.
func both(x, y result) result {
	return result{verdict: min(x.verdict, y.verdict), policies: union(x.policies, y.policies), unknown: union(x.unknown, y.unknown)}
}

// union is sorted, without duplicates, unless there is nothing to add.
func union(x, y []string) []string {
	if len(y) == 0 {
		return x
	}
	return sets.List(sets.New(x...).Insert(y...))
}
