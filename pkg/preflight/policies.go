// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

const policyPage = "docs/policies.md"

// checkPolicies names the pods that policies would deny DNS at the agents' addresses.
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
	in.Others = slices.DeleteFunc(slices.Clone(in.Others), func(o unstructured.Unstructured) bool { // what another engine has left
		engine := engineOf(&o)
		return engine != in.Engine && engine != ""
	})
	for _, s := range c.Slices {
		if s.Namespace == c.service.Namespace && s.Labels[discoveryv1.LabelServiceName] == c.service.Name {
			in.DNS = append(in.DNS, s)
		}
	}
	for _, a := range addrs {
		if addr, err := netip.ParseAddr(a); err == nil {
			in.Agents = append(in.Agents, addr)
		}
	}
	findings, err := dnspolicy.Check(in)
	switch {
	case err != nil:
		c.add(check, Unknown, err.Error(), policyPage)
	case len(findings) == 0:
		c.add(check, OK, "they deny no pod DNS at "+strings.Join(addrs, ", "), "")
	}
	for i := range findings {
		f := &findings[i]
		v, hint := Warn, f.Fix
		if len(f.Unknown) > 0 {
			v = Unknown
		}
		if hint == "" {
			hint = policyPage
		}
		c.add(check, v, "at "+strings.Join(addrs, ", ")+", "+f.String(), hint)
	}
}

// engine returns what applies the policies: what was seen on the nodes, else what has policies.
func (c *checker) engine() dnspolicy.Engine {
	has := func(engine dnspolicy.Engine) bool {
		return slices.ContainsFunc(c.Policies.Others, func(o unstructured.Unstructured) bool { return engineOf(&o) == engine })
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

// engineOf returns the engine whose own policy an object is; empty: it is of no engine.
func engineOf(o *unstructured.Unstructured) dnspolicy.Engine {
	switch group, _, _ := strings.Cut(o.GetAPIVersion(), "/"); group {
	case "cilium.io":
		return dnspolicy.Cilium
	case "crd.projectcalico.org", "projectcalico.org":
		return dnspolicy.Calico
	default:
		return ""
	}
}
