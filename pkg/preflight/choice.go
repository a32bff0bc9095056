// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"slices"
	"strings"
)

// The variants, which are folders of daemonset.
const (
	base        = "base"
	transparent = "overlays/transparent"
	ciliumLRP   = "overlays/cilium"
	ipv6        = "overlays/ipv6"
	dualStack   = "overlays/dual-stack"
	large       = "overlays/large-cluster"
)

// addresses returns those of the agents.
func (c *checker) addresses() []string {
	first := linkLocal
	if slices.Contains(c.plane.others, ovnKubernetes) {
		first = linkLocalOVN
	}
	switch c.families {
	case onlySix:
		return []string{uniqueLocal}
	case both:
		return []string{first, uniqueLocal}
	case noFamilies, onlyFour:
	}
	return []string{first}
}

// A chooser chooses the variant once all checks are done.
type chooser struct{ *checker }

// choose returns the choice.
func (c chooser) choose() Choice {
	p, lrp := &c.plane, c.canRedirect()
	switch {
	case c.platform.name == gkeAutopilot:
		return Choice{Why: "no way was found for " + gkeAutopilot, Commands: []string{}}
	case lrp && p.cilium.redirects():
		return c.commands(ciliumLRP, false, "Cilium in place of kube-proxy redirects queries to the DNS Service, and pods keep their settings; "+
			"base with the kubelets' clusterDNS also works, and loses no query when an agent is killed")
	case !c.platform.fixed:
		why := "the kubelets' clusterDNS names the agents' address"
		if !c.reads(ListNodes) {
			why = "nothing is known of the nodes, and where the kubelets' clusterDNS can be set this is right"
		}
		if p.usesProxy() && p.proxy != "ipvs" {
			why += "; " + transparent + " also works, without a change of the kubelets"
		}
		return c.commands(c.linkLocal(), false, why)
	case p.usesProxy() && c.platform.name != eksAutoMode: // its nodes have no kube-proxy, though others of the cluster may
		return c.commands(transparent, false, c.platform.name+" does not let you set the kubelets, and kube-proxy forwards the DNS Service")
	case lrp:
		return c.commands(ciliumLRP, false, c.platform.name+" does not let you set the kubelets, and Cilium can redirect queries to the DNS Service")
	}
	what := "neither the kubelets nor the DNS Service can be used on " + c.platform.name
	if p.unknown() {
		what = "the kubelets of " + c.platform.name + " cannot be set, and the data plane is not known"
	}
	if n, ok := minor(c.Version, "1"); ok && n < optInFrom {
		return c.commands(c.linkLocal(), false, what+": pods that are to use the agents need a dnsConfig as in examples/try.yaml; from Kubernetes 1.36 on whole namespaces can opt in")
	}
	return c.commands(c.linkLocal(), true, what+": namespaces opt in")
}

// canRedirect reports whether Cilium's Local Redirect Policy can be used: GKE and AKS keep Cilium's settings to themselves.
func (c *checker) canRedirect() bool {
	return c.plane.cilium != nil && c.plane.cilium.replacesProxy() && !c.keepsCilium()
}

func (c *checker) keepsCilium() bool { return c.platform.name == "GKE" || c.platform.name == "AKS" }

// linkLocal returns the variant of link-local mode.
func (c chooser) linkLocal() string {
	switch {
	case c.families == onlySix:
		return ipv6
	case c.families == both:
		return dualStack
	case c.isLarge():
		return large
	}
	return base
}

func (c *checker) isLarge() bool { return len(c.Nodes) >= largeFrom || c.ServiceCount >= largeFrom }

// commands returns the choice of a variant, with the commands that install it.
func (c chooser) commands(variant string, optIn bool, why string) Choice {
	choice := Choice{Variant: variant, OptIn: optIn, Why: why, Commands: []string{}}
	say := func(lines ...string) { choice.Commands = append(choice.Commands, lines...) }
	if slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Verdict == Fail }) {
		say("# first: the checks that failed")
	}
	if variant == ciliumLRP && !c.plane.cilium.redirects() {
		say("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set localRedirectPolicies.enabled=true")
	}
	if c.platform.name == openShift {
		say("oc apply -f daemonset/openshift/scc.yaml")
	}
	say(c.install(variant, optIn), "kubectl -n "+c.Namespace+" rollout status daemonset/node-cache")
	if variant != ciliumLRP {
		say("kubectl node-cache" + c.namespaceFlag() + " doctor NODE")
	}
	switch {
	case optIn:
		say("kubectl label namespace NAMESPACE node-cache.io/dns=on", "# and recreate its pods: docs/opt-in.md")
	case variant != transparent && variant != ciliumLRP && !c.platform.fixed:
		say("# then, node by node, clusterDNS: [" + strings.Join(c.addresses(), ", ") + "]: " + platformPages + c.platform.page)
	}
	return choice
}

// install returns the command that installs a variant: with kustomize where one folder has all that is needed, else with the chart.
func (c chooser) install(variant string, optIn bool) string {
	presets, settings := c.presets(variant), c.settings()
	if optIn {
		settings = append(settings, "optIn=true")
	}
	if len(settings) == 0 && len(presets) <= 1 && c.Namespace == "kube-system" {
		return "kubectl apply -k daemonset/" + variant
	}
	words := []string{"helm install node-cache daemonset/chart -n", c.Namespace}
	for _, p := range presets {
		words = append(words, "-f daemonset/chart/presets/"+p+".yaml")
	}
	for _, s := range settings {
		words = append(words, "--set '"+s+"'")
	}
	return strings.Join(words, " ")
}

// presets returns those of the chart that a variant needs.
func (c chooser) presets(variant string) (list []string) {
	if name, is := strings.CutPrefix(variant, "overlays/"); is {
		list = append(list, name)
	}
	if c.isLarge() && variant != large {
		list = append(list, "large-cluster")
	}
	if variant == transparent && c.families >= onlySix { // each address of the Service needs a listen address of its family
		list = append(list, map[families]string{onlySix: "ipv6", both: "dual-stack"}[c.families])
	}
	return list
}

// settings returns the values of the chart that differ from its defaults on this cluster.
func (c chooser) settings() (list []string) {
	if slices.Contains(c.plane.others, ovnKubernetes) && c.families != onlySix {
		list = append(list, "config.agent.listen.addresses={"+strings.Join(c.addresses(), ",")+"}", "config.agent.admin.address="+linkLocalOVN+":9253")
	}
	if c.service != nil && c.service.Namespace+"/"+c.service.Name != "kube-system/kube-dns" {
		list = append(list, "config.agent.cluster.central.service="+c.service.Namespace+"/"+c.service.Name)
	}
	if c.domain != "cluster.local." {
		list = append(list, "config.agent.clusterDomain="+strings.TrimSuffix(c.domain, "."))
	}
	if n := len(c.unserved); n > 0 && n <= mostZones {
		list = append(list, "config.agent.cluster.zones={"+strings.Join(c.unserved, ",")+"}")
	}
	// A name that a shell or Helm would take for something else stays out of the commands. A finding names it.
	return slices.DeleteFunc(list, func(s string) bool { return strings.Trim(s, settingCharacters) != "" })
}

// mostZones bounds the zones in a command. More of them are names, or belong into a file.
const mostZones = 20

const settingCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:={,}"

func (c chooser) namespaceFlag() string {
	if c.Namespace == "kube-system" {
		return ""
	}
	return " -n " + c.Namespace
}
