// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A ciliumSpec is one rule of a CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy. A field that is not here makes the policy unknown.
type ciliumSpec struct {
	EndpointSelector  *metav1.LabelSelector `json:"endpointSelector"`
	NodeSelector      *metav1.LabelSelector `json:"nodeSelector"`
	Egress            []ciliumRule          `json:"egress"`
	EgressDeny        []ciliumRule          `json:"egressDeny"`
	Ingress           []ciliumRule          `json:"ingress"`
	IngressDeny       []ciliumRule          `json:"ingressDeny"`
	EnableDefaultDeny struct {
		Egress  *bool `json:"egress"`
		Ingress *bool `json:"ingress"`
	} `json:"enableDefaultDeny"`
	Description string `json:"description"`
	Labels      any    `json:"labels"`
	Log         any    `json:"log"`
}

// A ciliumRule has the peers of both directions. A list that is there and empty selects nothing.
type ciliumRule struct {
	ToEndpoints   *[]metav1.LabelSelector `json:"toEndpoints"`
	FromEndpoints *[]metav1.LabelSelector `json:"fromEndpoints"`
	ToEntities    *[]string               `json:"toEntities"`
	FromEntities  *[]string               `json:"fromEntities"`
	ToServices    []ciliumService         `json:"toServices"`

	// What matches addresses outside of the cluster, so neither a pod nor a node.
	ToCIDR      *[]any `json:"toCIDR"`
	ToCIDRSet   *[]any `json:"toCIDRSet"`
	ToFQDNs     *[]any `json:"toFQDNs"`
	FromCIDR    *[]any `json:"fromCIDR"`
	FromCIDRSet *[]any `json:"fromCIDRSet"`

	ToPorts []ciliumPorts `json:"toPorts"`
	ICMPs   []any         `json:"icmps"`
}

type ciliumService struct {
	K8sService struct {
		ServiceName string `json:"serviceName"`
		Namespace   string `json:"namespace"`
	} `json:"k8sService"`
	K8sServiceSelector any `json:"k8sServiceSelector"`
}

type ciliumPorts struct {
	Ports []struct {
		Port     string `json:"port"`
		EndPort  int32  `json:"endPort"`
		Protocol string `json:"protocol"`
	} `json:"ports"`
	Rules struct {
		DNS []struct {
			MatchPattern string `json:"matchPattern"`
			MatchName    string `json:"matchName"`
		} `json:"dns"`
	} `json:"rules"`
}

// A ciliumEngine evaluates as Cilium does.
type ciliumEngine struct{ *cluster }

// decide evaluates Cilium's policies and NetworkPolicies: a pod that one isolates may do what any of both kinds allows and none denies.
func (c ciliumEngine) decide(f *flow, d direction) result {
	r := c.decideAddresses(f, d)
	isolated := verdict(len(r.policies) > 0)
	allowed, denied := min(r.verdict, isolated), Denied
	for i := range c.others {
		p := &c.others[i]
		says := c.policySays(p, f, d)
		if says.allows == Unknown || says.denies == Unknown || says.isolates == Unknown {
			r.unknown = append(r.unknown, p.name)
		}
		if says.denies != Denied || says.isolates != Denied {
			r.policies = append(r.policies, p.name)
		}
		allowed, denied, isolated = max(allowed, says.allows), max(denied, says.denies), max(isolated, says.isolates)
	}
	// Not isolated allows; a rule that denies is stronger than what allows. The verdicts that are unknown stay so.
	r.verdict = min(max(allowed, not(isolated)), not(denied))
	return r
}

// A says is what a policy says: whether it allows, denies and isolates. Allowed is yes.
type says struct{ allows, denies, isolates Verdict }

// and adds what another policy says, to what it selects.
func (s says) and(other says, selected Verdict) says {
	return says{
		max(s.allows, min(selected, other.allows)), max(s.denies, min(selected, other.denies)), max(s.isolates, min(selected, other.isolates)),
	}
}

// policySays is what a policy says to a flow of a pod.
func (c ciliumEngine) policySays(p *policy, f *flow, d direction) (all says) {
	if p.namespace != "" && p.namespace != f.selected(d).Namespace {
		return says{}
	}
	if p.broken && !p.forNodes() {
		return says{Unknown, Unknown, Unknown}
	}
	for j := range p.cilium {
		s := &p.cilium[j]
		if s.EndpointSelector == nil {
			continue
		}
		if selected := matchCilium(s.EndpointSelector, c.podLabels(f.selected(d))); selected != Denied {
			all = all.and(c.ruleSays(p, s, f, d), selected)
		}
	}
	return all
}

// ruleSays is what a rule says to a pod, or a node, that it selects.
func (c ciliumEngine) ruleSays(p *policy, s *ciliumSpec, f *flow, d direction) (r says) {
	rules, denying, byDefault := s.Egress, s.EgressDeny, s.EnableDefaultDeny.Egress
	if d == ingress {
		rules, denying, byDefault = s.Ingress, s.IngressDeny, s.EnableDefaultDeny.Ingress
	}
	for i := range rules {
		r.allows = max(r.allows, c.matches(p, &rules[i], f, d))
	}
	for i := range denying {
		r.denies = max(r.denies, c.matches(p, &denying[i], f, d))
	}
	r.isolates = verdict(len(rules)+len(denying) > 0 && (byDefault == nil || *byDefault))
	return r
}

// forNodes reports whether a policy is for nodes only.
func (p *policy) forNodes() bool {
	return len(p.cilium) > 0 && !slices.ContainsFunc(p.cilium, func(s ciliumSpec) bool { return s.NodeSelector == nil })
}

// hostPolicies says what Cilium's policies for nodes say to a query to the node. They count only with the host firewall, which is off by
// default, and for nodes with some labels, which are not known here. So they never deny for certain.
func (c ciliumEngine) hostPolicies(f *flow) result {
	var all says
	var names []string
	for i := range c.others {
		p := &c.others[i]
		for j := range p.cilium {
			if s := &p.cilium[j]; s.NodeSelector != nil {
				one := c.ruleSays(p, s, f, ingress)
				if p.broken {
					one = says{Unknown, Unknown, Unknown}
				}
				if one.isolates != Denied || one.denies != Denied {
					names = append(names, p.name)
				}
				all = all.and(one, Allowed)
			}
		}
	}
	if all.denies == Denied && (all.isolates == Denied || all.allows == Allowed) {
		return result{verdict: Allowed}
	}
	return result{verdict: Unknown, policies: names, unknown: names}
}

func (c ciliumEngine) matches(p *policy, r *ciliumRule, f *flow, d direction) Verdict {
	endpoints, entities := r.ToEndpoints, r.ToEntities
	if d == ingress {
		endpoints, entities = r.FromEndpoints, r.FromEntities
	}
	anywhere := endpoints == nil && entities == nil && len(r.ToServices) == 0 && r.ToCIDR == nil && r.ToCIDRSet == nil && r.ToFQDNs == nil && r.FromCIDR == nil && r.FromCIDRSet == nil
	v := verdict(anywhere && len(r.ToPorts) > 0) // an empty rule selects nothing
	if endpoints != nil {
		for i := range *endpoints {
			v = max(v, c.endpointMatches(p, &(*endpoints)[i], f, d))
		}
	}
	if entities != nil {
		for _, e := range *entities {
			v = max(v, c.entityMatches(e, f, d))
		}
	}
	if len(r.ToServices) > 0 && f.to.pod != nil {
		v = max(v, Unknown) // which Services it takes depends on the version
	}
	if len(r.ICMPs) > 0 {
		return Denied
	}
	return min(v, c.listsMatch(r.ToPorts, f, d))
}

// entityMatches says whether an entity is the other end of a flow.
func (c ciliumEngine) entityMatches(entity string, f *flow, d direction) Verdict {
	other := f.other(d)
	isPod, known := other.pod != nil, c.known.Has(other.addr)
	switch entity {
	case "all":
		return Allowed
	case "cluster", "cluster-mesh":
		return verdict(isPod || f.local || known)
	case "host":
		return verdict(!isPod && f.local)
	case "remote-node":
		return verdict(!isPod && !f.local && known)
	case "world", "world-ipv4", "world-ipv6":
		return verdict(!isPod && !f.local && !known)
	case "kube-apiserver":
		if !isPod && (!f.local || c.runsAPIServer(f.from.pod.Spec.NodeName)) {
			return Unknown
		}
		return Denied
	case "init", "ingress", "unmanaged", "health", "none":
		return Denied
	default:
		return Unknown
	}
}

// runsAPIServer reports whether a node seems to run the API server, so that it is that entity too.
func (c ciliumEngine) runsAPIServer(node string) bool {
	return slices.ContainsFunc(c.Pods, func(p corev1.Pod) bool {
		return p.Spec.HostNetwork && p.Spec.NodeName == node && p.Labels["component"] == "kube-apiserver"
	})
}

func (c ciliumEngine) listsMatch(lists []ciliumPorts, f *flow, d direction) (v Verdict) {
	if len(lists) == 0 {
		return Allowed
	}
	for i := range lists {
		l := &lists[i]
		one := verdict(len(l.Ports) == 0)
		for _, p := range l.Ports {
			if p.Protocol != "" && p.Protocol != "ANY" && p.Protocol != string(f.protocol) {
				continue
			}
			number, err := strconv.ParseInt(p.Port, 10, 32)
			switch {
			case p.Port == "" || p.Port == "0":
				one = Allowed
			case err != nil:
				one = max(one, c.namedPortMatches(p.Port, f, d == ingress))
			default:
				one = max(one, verdict(int32(number) <= f.port && f.port <= max(int32(number), p.EndPort)))
			}
		}
		v = max(v, min(one, l.names(f)))
	}
	return v
}

// names says whether rules for names allow each. Before the switch some names are enough: to have lost them is to have lost DNS.
func (l *ciliumPorts) names(f *flow) Verdict {
	if len(l.Rules.DNS) == 0 || f.to.pod != nil {
		return Allowed
	}
	for _, r := range l.Rules.DNS {
		if r.MatchPattern == "*" {
			return Allowed
		}
	}
	return Unknown
}

// endpointMatches says whether a selector matches the other end. Without a namespace it is for that of the policy.
func (c ciliumEngine) endpointMatches(p *policy, selector *metav1.LabelSelector, f *flow, d direction) Verdict {
	pod := f.other(d).pod
	if pod == nil { // the node has the label reserved:host
		if !mentions(selector, "reserved:") {
			return Denied
		}
		return matchCilium(selector, labels.Set{map[bool]string{true: "reserved.host", false: "reserved.remote-node"}[f.local]: ""})
	}
	if p.namespace != "" && p.namespace != pod.Namespace && !mentions(selector, podNamespace) && !mentions(selector, namespaceLabels) {
		return Denied
	}
	return matchCilium(selector, c.podLabels(pod))
}

// Labels that Cilium adds to those of a pod.
const (
	podNamespace    = "io.kubernetes.pod.namespace"
	namespaceLabels = "io.cilium.k8s.namespace.labels."
	serviceAccount  = "io.cilium.k8s.policy.serviceaccount"
	clusterName     = "io.cilium.k8s.policy.cluster" // which only Cilium's configuration has
)

func (c ciliumEngine) podLabels(p *corev1.Pod) labels.Set {
	set := labels.Set{podNamespace: p.Namespace, serviceAccount: "default"}
	if p.Spec.ServiceAccountName != "" {
		set[serviceAccount] = p.Spec.ServiceAccountName
	}
	maps.Copy(set, p.Labels)
	for k, v := range c.namespaces[p.Namespace] {
		set[namespaceLabels+k] = v
	}
	return set
}

// matchCilium says whether a selector matches. Its keys may begin with a source of labels: k8s, any, or reserved.
func matchCilium(s *metav1.LabelSelector, set labels.Set) Verdict {
	plain := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for k, v := range s.MatchLabels {
		key, ok := ciliumKey(k)
		if !ok {
			return Unknown
		}
		plain.MatchLabels[key] = v
	}
	for _, e := range s.MatchExpressions {
		key, ok := ciliumKey(e.Key)
		if !ok {
			return Unknown
		}
		plain.MatchExpressions = append(plain.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: e.Operator, Values: e.Values})
	}
	selector, err := metav1.LabelSelectorAsSelector(plain)
	if err != nil {
		return Unknown
	}
	return verdict(selector.Matches(set))
}

// ciliumKey is a key without its source.
func ciliumKey(key string) (string, bool) {
	source, rest, ok := strings.Cut(key, ":")
	switch {
	case strings.HasSuffix(key, clusterName):
		return "", false
	case !ok:
		return key, !strings.HasPrefix(key, "reserved.")
	case source == "k8s" || source == "any":
		return rest, true
	default:
		return "reserved." + rest, source == "reserved"
	}
}

// mentions reports whether a key of a selector has a part.
func mentions(s *metav1.LabelSelector, part string) bool {
	for k := range s.MatchLabels {
		if strings.Contains(k, part) {
			return true
		}
	}
	return slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return strings.Contains(e.Key, part) })
}
