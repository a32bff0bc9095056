// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

const policyPage = "docs/policies.md"

// checkPolicies names the pods that policies would deny DNS at the agents' addresses, and the pods of DNS that would lose the agents.
func (c *checker) checkPolicies() {
	const check = "policies"
	switch {
	case c.Policies == nil:
		c.add(check, Unknown, "they are not looked at", "namespaces that deny egress by default need a rule for the agents: "+policyPage)
		return
	case c.service == nil:
		c.add(check, Unknown, "the DNS Service that pods ask now is not known", policyPage)
		return
	}
	addrs := c.addresses()
	switch (chooser{c}).choose().Variant {
	case transparent: // pods keep their settings
		addrs = c.service.Spec.ClusterIPs
	case ciliumLRP: // policies see the agent's pod
		c.add(check, Unknown, "they are not looked at with "+ciliumLRP, "pods with an egress policy need port 53 of the agents: docs/platforms/cilium.md")
		return
	}
	in := *c.Policies
	in.Engine = c.engine()
	for _, s := range c.slicesOf(c.service) {
		s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p discoveryv1.EndpointPort) bool { // the Service of kube-dns has metrics too
			return !slices.ContainsFunc(c.service.Spec.Ports, func(of corev1.ServicePort) bool { return of.Port == 53 && of.Name == ptr.Deref(p.Name, "") })
		})
		in.DNS = append(in.DNS, s)
	}
	in.Agents = parseAddrs(addrs)
	if c.reads(ListNodes) {
		in.Nodes = map[string][]netip.Addr{}
		for _, n := range c.Linux() {
			in.Nodes[n.Name] = parseAddrs(internalIPs(n))
		}
	}
	findings, err := dnspolicy.Check(in)
	switch {
	case err != nil:
		c.add(check, Unknown, err.Error(), policyPage)
	case len(findings) == 0 && in.Nodes == nil:
		c.add(check, OK, "they deny no pod DNS at "+strings.Join(addrs, ", "), "")
	case len(findings) == 0:
		c.add(check, OK, "they deny no pod DNS at "+strings.Join(addrs, ", ")+", and no agent the DNS Service", "")
	}
	for i := range findings {
		f := &findings[i]
		v, what := Warn, f.String()
		if len(f.Unknown) > 0 {
			v = Unknown
		}
		if !f.Serve {
			what = "at " + strings.Join(addrs, ", ") + ", " + what
		}
		c.add(check, v, what, cmp.Or(f.Fix, policyPage))
	}
}

func internalIPs(n *corev1.Node) (list []string) {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			list = append(list, a.Address)
		}
	}
	return list
}

// parseAddrs returns those that are addresses.
func parseAddrs(texts []string) (list []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// engine returns what applies the policies: what was seen on the nodes, else what has policies.
func (c *checker) engine() dnspolicy.Engine {
	has := func(engine dnspolicy.Engine) bool {
		return slices.ContainsFunc(c.Policies.Others, func(o unstructured.Unstructured) bool { return dnspolicy.EngineOf(&o) == engine })
	}
	calico := slices.Contains(c.plane.networks, "Calico")
	switch {
	case c.plane.cilium != nil, !calico && has(dnspolicy.Cilium):
		return dnspolicy.Cilium
	case calico, has(dnspolicy.Calico):
		return dnspolicy.Calico
	default:
		return dnspolicy.Addresses
	}
}
