// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	strict "sigs.k8s.io/json"
)

// A policy is one of Cilium's or Calico's.
type policy struct {
	name      string // with its kind
	namespace string // empty: of the cluster
	broken    bool   // it has what is not evaluated here
	cilium    []ciliumSpec
	calico    calicoSpec
}

// An addressSet is what a selector of Calico's matches besides pods.
type addressSet struct {
	labels labels.Set
	nets   []netip.Prefix
}

// EngineOf returns the engine whose own policy, or set of addresses, an object is; empty: of none that is known.
func EngineOf(o *unstructured.Unstructured) Engine {
	switch group, _, _ := strings.Cut(o.GetAPIVersion(), "/"); group {
	case "cilium.io":
		return Cilium
	case "crd.projectcalico.org", "projectcalico.org":
		return Calico
	default:
		return ""
	}
}

// add reads one object. A kind that is not known makes every verdict unknown; what another engine has left does not count.
func (c *cluster) add(o *unstructured.Unstructured) {
	p := policy{name: o.GetKind() + " " + o.GetName(), namespace: o.GetNamespace()}
	if p.namespace != "" {
		p.name = o.GetKind() + " " + p.namespace + "/" + o.GetName()
	}
	switch own := EngineOf(o); {
	case own == "" || c.Engine == Addresses:
		c.strange = append(c.strange, p.name)
	case own != c.Engine:
	case own == Cilium:
		p.broken = !p.readCilium(o)
		c.others = append(c.others, p)
	default:
		c.addCalico(p, o)
	}
}

func (c *cluster) addCalico(p policy, o *unstructured.Unstructured) {
	switch o.GetKind() {
	case "NetworkPolicy", "GlobalNetworkPolicy":
		p.name = "Calico's " + p.name
		p.broken = !decode(o.Object["spec"], &p.calico)
		c.others = append(c.others, p)
	case "NetworkSet", "GlobalNetworkSet", "HostEndpoint":
		c.sets = append(c.sets, newAddressSet(o))
	case "Tier":
		c.addTier(o)
	} // else a staged policy, or no policy
}

// readCilium reads one rule or several.
func (p *policy) readCilium(o *unstructured.Unstructured) bool {
	ok := true
	if spec, found := o.Object["spec"]; found {
		var one ciliumSpec
		ok = decode(spec, &one)
		p.cilium = append(p.cilium, one)
	}
	if specs, found := o.Object["specs"]; found {
		var more []ciliumSpec
		ok = decode(specs, &more) && ok
		p.cilium = append(p.cilium, more...)
	}
	return ok
}

// decode reports whether a value has only the fields of a type.
func decode(from, to any) bool {
	text, err := json.Marshal(from)
	if err != nil {
		return false
	}
	unknown, err := strict.UnmarshalStrict(text, to)
	return err == nil && len(unknown) == 0
}

func newAddressSet(o *unstructured.Unstructured) addressSet {
	s := addressSet{labels: o.GetLabels()}
	nets, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "nets") // none: it matches nothing
	hosts, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "expectedIPs")
	for _, text := range append(nets, hosts...) {
		if p, ok := prefix(text); ok {
			s.nets = append(s.nets, p)
		}
	}
	return s
}

// prefix is a prefix, or an address as one.
func prefix(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, true
	}
	a, err := netip.ParseAddr(text)
	return netip.PrefixFrom(a, a.BitLen()), err == nil
}

// A tier is a group of Calico's policies.
type tier struct {
	order float64
	pass  bool // what it does with pods that a policy of it selects and no rule matches: false denies
}

func (c *cluster) addTier(o *unstructured.Unstructured) {
	var spec struct {
		Order         *float64 `json:"order"`
		DefaultAction string   `json:"defaultAction"`
	}
	if !decode(o.Object["spec"], &spec) {
		return // its policies are unknown
	}
	t := tier{order: math.Inf(1), pass: spec.DefaultAction == "Pass"}
	if spec.Order != nil {
		t.order = *spec.Order
	}
	c.tiers[o.GetName()] = t
}

// templates is where the project has its policies.
const templates = "kubectl apply -f daemonset/network-policies/"

// fix is the command that gives a pod of a namespace DNS, which policies isolate; empty if their names are not for a shell.
func (c *cluster) fix(namespace string, policies []string) string {
	var first string // NetworkPolicy
	own := false     // whether there are policies of the engine's own
	for _, p := range policies {
		name, ok := strings.CutPrefix(p, "NetworkPolicy "+namespace+"/")
		own = own || !ok
		if ok && first == "" {
			first = name
		}
	}
	switch {
	case c.Engine == Cilium && c.guardsNodes(policies):
		return templates + "cilium-host-firewall.yaml"
	case c.Engine == Cilium:
		return templates + "cilium.yaml"
	case c.Engine == Calico && own:
		return templates + "calico.yaml"
	case len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Subdomain(first)) > 0:
		return ""
	default:
		return fmt.Sprintf("kubectl -n %s patch networkpolicy %s --type=json -p '%s'", namespace, first, c.patch(namespace, first))
	}
}

// serverFix is the command that lets agents query the pods of DNS, which policies isolate; empty: no NetworkPolicy alone can.
func (c *cluster) serverFix(namespace string, policies []string) string {
	own := slices.ContainsFunc(policies, func(name string) bool { return !strings.HasPrefix(name, "NetworkPolicy ") })
	switch {
	case c.Engine == Cilium:
		return templates + "cilium-kube-dns.yaml"
	case own, len(policies) == 0, len(validation.IsDNS1123Label(namespace)) > 0:
		return ""
	default:
		return "sed s/NAMESPACE/" + namespace + "/ daemonset/network-policies/kube-dns.yaml | kubectl apply -f -"
	}
}

// guardsNodes reports whether policies are named, all for nodes.
func (c *cluster) guardsNodes(policies []string) bool {
	return len(policies) > 0 && !slices.ContainsFunc(policies, func(name string) bool {
		return !slices.ContainsFunc(c.others, func(p policy) bool { return p.name == name && p.forNodes() })
	})
}

// patch adds a rule to a NetworkPolicy. A policy of its own would isolate the pods that none isolates.
func (c *cluster) patch(namespace, name string) string {
	var rule networkingv1.NetworkPolicyEgressRule
	for _, a := range c.Agents {
		rule.To = append(rule.To, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a, a.BitLen()).String()}})
	}
	for _, protocol := range protocols() {
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: new(intstr.FromInt32(53))})
	}
	path, value := "/spec/egress/-", any(rule)
	for _, p := range c.policies[namespace] {
		if p.Name == name && len(p.Spec.Egress) == 0 {
			path, value = "/spec/egress", []any{rule}
		}
	}
	text, _ := json.Marshal([]map[string]any{{"op": "add", "path": path, "value": value}}) // of strings and numbers
	return string(text)
}
