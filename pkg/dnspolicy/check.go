// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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
	Others          []unstructured.Unstructured // the engine's own policies and sets of addresses: all objects of all its kinds
	DNS             []discoveryv1.EndpointSlice // of the DNS Service
	Agents          []netip.Addr                // where pods send their queries after the switch: the agents' addresses, or those of the Service
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
	Policies  []string // that isolate these pods, with their kinds
	Unknown   []string // that could not be decided: these pods may or may not lose DNS; empty: they lose it
	Fix       string   // the command
}

func (f *Finding) String() string {
	text := fmt.Sprintf("namespace %s: pods %s lose DNS", f.Namespace, strings.Join(f.Pods, ", "))
	if len(f.Unknown) > 0 {
		text = fmt.Sprintf("namespace %s: pods %s may lose DNS: not decided: %s", f.Namespace, strings.Join(f.Pods, ", "), strings.Join(f.Unknown, ", "))
	}
	return text + "; isolated by: " + strings.Join(f.Policies, ", ")
}

// Check names the pods that lose DNS. An error says that the input cannot show it.
func Check(in Input) ([]Finding, error) {
	pods, err := Evaluate(in)
	if err != nil {
		return nil, err
	}
	found := map[[2]string]*Finding{}
	for i := range pods {
		p := &pods[i]
		lost, certain := p.Lost()
		if !lost {
			continue
		}
		if certain {
			p.Unknown = nil
		}
		key := [2]string{p.Namespace, p.fix + strings.Join(p.Unknown, ",")}
		f := found[key]
		if f == nil {
			f = &Finding{Namespace: p.Namespace, Unknown: p.Unknown, Fix: p.fix}
			found[key] = f
		}
		f.Pods = append(f.Pods, p.Name)
		f.Policies = union(f.Policies, p.Policies)
	}
	findings := make([]Finding, 0, len(found))
	for _, f := range found {
		slices.Sort(f.Pods)
		findings = append(findings, *f)
	}
	slices.SortFunc(findings, func(x, y Finding) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), slices.Compare(x.Pods, y.Pods))
	})
	return findings, nil
}

// A flow is a query on its way through policies.
type flow struct {
	from     *corev1.Pod
	to       *corev1.Pod // nil: no pod, or one on the host network
	addr     netip.Addr  // where it goes
	local    bool        // to the node of the pod that asks
	protocol corev1.Protocol
	port     int32
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
		return f.from
	}
	return f.to
}

// other is the other end: a pod, if it is one, and its address.
func (f *flow) other(d direction) (*corev1.Pod, netip.Addr) {
	if d == egress {
		return f.to, f.addr
	}
	return f.from, addrOf(f.from, f.addr.Is4())
}

// A result is what the policies of a direction say.
type result struct {
	verdict  Verdict
	policies []string // that isolate the pod
	unknown  []string // that made the verdict unknown
}

// A cluster is an input that is prepared for many flows.
type cluster struct {
	engine     Engine
	namespaces map[string]labels.Set
	policies   map[string][]networkPolicy // by namespace
	pods       []corev1.Pod
	known      map[netip.Addr]bool // addresses of pods, on the host network too
	others     []policy            // the engine's own, in order
	sets       []addressSet
	tiers      map[string]tier
	strange    []string // objects that are not evaluated
	agents     []netip.Addr
}

// Evaluate says for each pod that uses the cluster's DNS, and that policies apply to, what they say to its queries.
func Evaluate(in Input) ([]Pod, error) {
	if len(in.Agents) == 0 {
		return nil, errors.New("checking policies: no address of the agents")
	}
	c := &cluster{engine: in.Engine, pods: in.Pods, agents: in.Agents}
	endpoints := c.endpoints(in.DNS)
	if len(endpoints) == 0 {
		return nil, errors.New("checking policies: the DNS Service has no endpoints, so no pod has DNS now")
	}
	c.prepare(in)
	var pods []Pod
	for i := range in.Pods {
		if p := &in.Pods[i]; c.concerned(p) {
			pods = append(pods, c.evaluate(p, endpoints))
		}
	}
	return pods, nil
}

func (c *cluster) prepare(in Input) {
	c.namespaces = make(map[string]labels.Set, len(in.Namespaces))
	for i := range in.Namespaces {
		c.namespaces[in.Namespaces[i].Name] = in.Namespaces[i].Labels
	}
	c.known = map[netip.Addr]bool{}
	for i := range in.Pods {
		for _, a := range addrsOf(&in.Pods[i]) {
			c.known[a] = true
		}
	}
	c.policies = map[string][]networkPolicy{}
	for i := range in.NetworkPolicies {
		p := &in.NetworkPolicies[i]
		c.policies[p.Namespace] = append(c.policies[p.Namespace], newNetworkPolicy(p))
	}
	for _, o := range in.Others {
		c.add(o)
	}
	calicoEngine{c}.sort()
}

// concerned reports whether a pod runs, is subject to policies, and sends its queries to the agents after the switch.
func (c *cluster) concerned(p *corev1.Pod) bool {
	if p.Spec.HostNetwork || ended(p) || len(addrsOf(p)) == 0 {
		return false
	}
	switch p.Spec.DNSPolicy {
	case corev1.DNSDefault:
		return false
	case corev1.DNSNone:
		return p.Spec.DNSConfig != nil && slices.ContainsFunc(c.agents, func(a netip.Addr) bool { return slices.Contains(p.Spec.DNSConfig.Nameservers, a.String()) })
	default:
		return true
	}
}

// protocols are those of DNS, in the order of [Pod].
func protocols() [2]corev1.Protocol {
	return [2]corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP}
}

func (c *cluster) evaluate(p *corev1.Pod, endpoints []flow) Pod {
	r := Pod{Namespace: p.Namespace, Name: p.Name}
	for i, protocol := range protocols() {
		before, after := c.before(p, protocol, endpoints), c.after(p, protocol)
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
func (c *cluster) before(p *corev1.Pod, protocol corev1.Protocol, endpoints []flow) (best result) {
	for _, f := range endpoints {
		if f.protocol != protocol || !addrOf(p, f.addr.Is4()).IsValid() {
			continue
		}
		f.from = p
		f.local = f.local || f.addr.String() == p.Status.HostIP
		one := both(c.decide(&f, egress), c.decide(&f, ingress))
		best.verdict, best.unknown = max(best.verdict, one.verdict), union(best.unknown, one.unknown)
	}
	return best
}

// after is the worst of what policies say to queries to the agents: the first address that does not answer costs seconds.
func (c *cluster) after(p *corev1.Pod, protocol corev1.Protocol) result {
	worst := result{verdict: Allowed}
	for _, a := range c.agents {
		if addrOf(p, a.Is4()).IsValid() {
			f := flow{from: p, addr: a, local: true, protocol: protocol, port: 53}
			worst = both(worst, both(c.decide(&f, egress), ciliumEngine{c}.hostPolicies(&f)))
		}
	}
	return worst
}

// decide says what the policies of a direction say to a flow.
func (c *cluster) decide(f *flow, d direction) result {
	if f.selected(d) == nil { // no policies for pods apply
		return result{verdict: Allowed}
	}
	var r result
	switch c.engine {
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
	return r
}

// endpoints are the flows to the DNS Service, without the pod that asks.
func (c *cluster) endpoints(slicesOfDNS []discoveryv1.EndpointSlice) []flow {
	byAddr := map[netip.Addr]*corev1.Pod{}
	for i := range c.pods {
		if p := &c.pods[i]; !ended(p) && !p.Spec.HostNetwork {
			for _, a := range addrsOf(p) {
				byAddr[a] = p
			}
		}
	}
	var all []flow
	for i := range slicesOfDNS {
		s := &slicesOfDNS[i]
		for _, a := range readyAddrs(s) {
			for _, port := range s.Ports {
				if port.Port != nil && port.Protocol != nil {
					all = append(all, flow{to: byAddr[a], addr: a, protocol: *port.Protocol, port: *port.Port})
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

// addrOf is a pod's address of a family, invalid if it has none.
func addrOf(p *corev1.Pod, v4 bool) netip.Addr {
	for _, a := range addrsOf(p) {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// both is the result of policies that must agree.
func both(x, y result) result {
	return result{verdict: min(x.verdict, y.verdict), policies: union(x.policies, y.policies), unknown: union(x.unknown, y.unknown)}
}

// union is sorted, without duplicates.
func union(x, y []string) []string {
	if len(y) == 0 {
		return x
	}
	set := map[string]bool{}
	for _, s := range x {
		set[s] = true
	}
	for _, s := range y {
		set[s] = true
	}
	return slices.Sorted(maps.Keys(set))
}
