// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
)

const (
	agentName = "node-cache" // of the agents' DaemonSet
	oldest    = 30           // minor version of Kubernetes, as in the requirements of docs/install.md
	optInFrom = 36           // minor version of Kubernetes with MutatingAdmissionPolicy v1
	largeFrom = 1000         // nodes, and Services: from here on the sizes of overlay large-cluster fit

	linkLocal     = "169.254.20.10"
	linkLocalOVN  = "169.254.200.10" // OVN-Kubernetes uses 169.254.0.0/17
	uniqueLocal   = "fd00::10"
	platformPages = "docs/platforms/"
)

// A checker has what more than one check needs, and collects the findings.
type checker struct {
	*Facts

	platform platform
	plane    dataPlane
	service  *corev1.Service // the fallback; nil: not known
	theirs   *convert.Result // the configuration of the cluster's DNS; nil: not known
	domain   string          // the cluster domain, absolute
	unserved []string        // zones of the cluster's DNS that the agents would send to their default route
	families families

	findings []Finding
}

// families are those of the pods.
type families uint8

const (
	noFamilies families = iota // not known
	onlyFour
	onlySix
	both // pods that ask over IPv6 are to be answered too
)

// Examine judges the facts.
func Examine(f *Facts) Report {
	c := &checker{Facts: f, platform: f.findPlatform(), plane: f.findDataPlane(), service: f.dnsService(), domain: "cluster.local."}
	for _, check := range []func(){
		c.checkUnread, c.checkVersions, c.checkNodes, c.checkPlatform, c.checkDataPlane, c.checkCilium, c.checkService, c.checkKubelets,
		c.checkFamilies, c.checkDomain, c.checkZones, c.checkInstalled, c.checkLocalDNS, c.checkAddresses, c.checkPolicies,
		c.checkPodSecurity, c.checkQuotas,
	} {
		check()
	}
	return Report{Findings: c.findings, Choice: chooser{c}.choose(), NotKnown: []string{
		"the nodes: nftables in the kernel, name servers in /etc/resolv.conf, firewalls, programs that listen on port 53 or 9253: `node-cache doctor`",
		"the API server: admission webhooks, and a Pod Security level or a quota for system-node-critical of its own configuration: " +
			"`kubectl apply --dry-run=server` of the manifests, and `kubectl describe daemonset` after it",
	}}
}

func (c *checker) add(check string, v Verdict, what, hint string) {
	c.findings = append(c.findings, Finding{check, v, what, hint})
}

// counts returns "2 of this, 1 of that", sorted.
func counts(list []string) string {
	n := map[string]int{}
	for _, one := range list {
		n[one]++
	}
	parts := make([]string, 0, len(n))
	for _, one := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%d with %s", n[one], cmp.Or(one, "an unknown one")))
	}
	return strings.Join(parts, ", ")
}

// some returns the first names, and how many more there are.
func some(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// minor returns the second number of a version of Kubernetes 1, or of a kernel with that major version; ok: it is one.
func minor(version, major string) (n int, ok bool) {
	rest, is := strings.CutPrefix(strings.TrimPrefix(version, "v"), major+".")
	digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	n, err := strconv.Atoi(digits)
	return n, is && err == nil
}

// checkUnread names what could not be read.
func (c *checker) checkUnread() {
	for _, p := range slices.Sorted(maps.Keys(c.Unread)) {
		hint := "run it again, or with a user who may " + p
		if c.Unread[p].Denied {
			hint = "you need to " + p
		}
		c.add("not read", Unknown, c.Unread[p].Why, hint)
	}
}

func (c *checker) checkVersions() {
	n, ok := minor(c.Version, "1")
	switch {
	case !ok:
		c.add("API server", Unknown, "version "+c.Version, fmt.Sprintf("1.%d or newer is needed", oldest))
	case n < oldest:
		c.add("API server", Fail, c.Version, fmt.Sprintf("upgrade it: 1.%d or newer is needed", oldest))
	default:
		c.add("API server", OK, c.Version, "")
	}
	var old, kernels []string
	for _, node := range c.Linux() {
		info := &node.Status.NodeInfo
		if n, ok := minor(info.KubeletVersion, "1"); ok && n < oldest {
			old = append(old, node.Name+" ("+info.KubeletVersion+")")
		}
		five, is5 := minor(info.KernelVersion, "5")
		if _, is4 := minor(info.KernelVersion, "4"); is4 || is5 && five < 12 {
			kernels = append(kernels, node.Name+" ("+info.KernelVersion+")")
		}
	}
	if len(old) > 0 {
		c.add("kubelets", Fail, "older than 1.30: "+some(old), "upgrade these nodes")
	}
	if len(kernels) > 0 {
		c.add("kernels", Warn, "older than 5.12: "+some(kernels), "after an agent was killed, the fallback answers there only once the lease of 3 s has ended; nothing older than 6.1 was tested")
	}
}

func (c *checker) checkNodes() {
	if !c.reads(ListNodes) {
		return
	}
	var what, virtual, windows, foreign []string
	for i := range c.Nodes {
		info := &c.Nodes[i].Status.NodeInfo
		switch {
		case isVirtual(&c.Nodes[i]):
			virtual = append(virtual, c.Nodes[i].Name)
			continue
		case info.OperatingSystem == "windows":
			windows = append(windows, c.Nodes[i].Name)
			continue
		case info.Architecture != "amd64" && info.Architecture != "arm64":
			foreign = append(foreign, c.Nodes[i].Name)
		}
		kernel, _, _ := strings.Cut(info.KernelVersion, "-")
		what = append(what, strings.Join(strings.Fields(strings.Join([]string{info.KubeletVersion, info.Architecture, "Linux", kernel, info.OSImage, info.ContainerRuntimeVersion}, " ")), " "))
	}
	if len(what) == 0 {
		c.add("nodes", Fail, "no Linux node", "node-cache runs on Linux nodes only")
	} else {
		c.add("nodes", OK, counts(what), "")
	}
	if len(foreign) > 0 {
		c.add("nodes", Warn, "neither amd64 nor arm64: "+some(foreign), "exclude them by an affinity on kubernetes.io/arch: daemonset/README.md")
	}
	if len(virtual) > 0 {
		c.add("nodes", Warn, "virtual: "+some(virtual), "agents would stay pending there and block rollouts: exclude them by the affinity of daemonset/README.md")
	}
	if len(windows) > 0 {
		c.add("nodes", Warn, "with Windows: "+some(windows), "they get no agent: leave their kubelets as they are")
	}
	if n := int64(len(c.Nodes)); n >= largeFrom || c.ServiceCount >= largeFrom {
		c.add("size", OK, fmt.Sprintf("%d nodes, %d Services: the sizes of overlay large-cluster", n, c.ServiceCount), "")
	}
}

func (c *checker) checkPlatform() {
	page := platformPages + c.platform.page
	switch {
	case !c.reads(ListNodes):
	case c.platform.name == "":
		c.add("platform", Unknown, "none of those that are known", "below it is assumed that you can set the kubelets' clusterDNS: "+page)
	case c.platform.name == gkeAutopilot:
		c.add("platform", Fail, c.platform.name+" refuses pods with the node's network", "not supported: "+page)
	case c.platform.fixed:
		c.add("platform", OK, c.platform.name+": the kubelets' clusterDNS cannot be set", "")
	default:
		c.add("platform", OK, c.platform.name+": the kubelets' clusterDNS can be set", "")
	}
}

func (c *checker) checkDataPlane() {
	p := &c.plane
	var what []string
	if p.proxy != "" {
		what = append(what, "kube-proxy in mode "+p.proxy)
	}
	what = append(what, p.others...)
	if p.cilium != nil {
		what = append(what, strings.TrimSpace("Cilium "+p.cilium.version))
	}
	text := strings.Join(what, ", ")
	if len(p.networks) > 0 {
		text += " (network: " + strings.Join(unique(slices.Clone(p.networks)), ", ") + ")"
	}
	switch {
	case len(what) == 0:
		c.add("data plane", Unknown, "nothing that forwards packets to Services was recognised"+text, "link-local mode works with most; transparent mode is not chosen. After the installation: `kubectl node-cache doctor NODE`")
	case slices.Contains(p.others, "Calico's eBPF data plane"):
		c.add("data plane", Warn, text, "link-local mode was not run with it: check as in docs/platforms/README.md")
	case slices.Contains(p.others, ovnKubernetes):
		c.add("data plane", Warn, text, "it uses 169.254.0.0/17 itself: the agents need another address, as in docs/platforms/openshift.md")
	case p.proxy == "ipvs" && p.usesProxy():
		c.add("data plane", Warn, text, "transparent mode was not run with it; link-local mode is not concerned")
	case p.proxy != "" && !p.proxyRead && p.usesProxy():
		c.add("data plane", Unknown, "kube-proxy, in a mode that was not read, by default iptables", "if it is ipvs: transparent mode was not run with it")
	default:
		c.add("data plane", OK, text, "")
	}
}

// checkCilium checks what pods need to reach an address of the node.
func (c *checker) checkCilium() {
	p := c.plane.cilium
	if p == nil {
		return
	}
	if p.settings["enable-host-firewall"] == "true" {
		c.add("Cilium", Warn, "the host firewall is on", "policies of the host need port 53 from the cluster: docs/platforms/README.md")
	}
	if c.canRedirect() && (c.platform.fixed || p.redirects()) {
		return // the agents are pods, with the addresses of pods
	}
	cure := `set extraConfig: {local-max-addr-scope: "254"} in the values of Cilium's chart, or update to 1.19`
	if c.keepsCilium() {
		cure = c.platform.name + " sets local-max-addr-scope, which must be 254; from 1.19 on it is"
	}
	scope := p.settings["local-max-addr-scope"]
	n, err := strconv.Atoi(scope)
	enough := scope == "host" || err == nil && n >= 254
	switch {
	case p.minor >= 19 || enough:
		c.add("Cilium", OK, "it takes the agents' address for one of the node", "")
	case p.version == "" || !p.configured:
		c.add("Cilium", Unknown, "its version or its settings", "before 1.19: "+cure)
	case p.settings["enable-host-legacy-routing"] == "true" || p.settings["enable-bpf-masquerade"] != "true":
		c.add("Cilium", Warn, "it takes the agents' address for the world: so do policies", cure)
	default:
		c.add("Cilium", Fail, "with BPF host routing it loses queries to the agents' address", cure)
	}
}

func (c *checker) checkService() {
	switch {
	case c.service == nil && !c.reads(ListServices):
		return
	case c.service == nil:
		c.add("DNS Service", Fail, "none found", "the fallback needs one: name it in cluster.central.service")
		return
	}
	name := c.service.Namespace + "/" + c.service.Name
	c.add("DNS Service", OK, name+" at "+strings.Join(c.service.Spec.ClusterIPs, ", "), "")
	if !c.reads(ListSlices) {
		return
	}
	four, six := c.readyEndpoints(c.service)
	switch n := max(four, six); n {
	case 0:
		c.add("fallback", Fail, "the DNS Service has no ready endpoint", "`kubectl -n "+c.service.Namespace+" get endpointslices,pods` shows why")
	case 1:
		c.add("fallback", Warn, "the DNS Service has one ready endpoint", "two or more on different nodes: it answers while an agent does not")
	default:
		c.add("fallback", OK, fmt.Sprintf("%d ready endpoints", n), "")
	}
}

// checkKubelets says what pods ask now.
func (c *checker) checkKubelets() {
	addrs, _ := c.kubeletDNS()
	what := fmt.Sprintf("clusterDNS: %s (%d asked)", some(addrs), len(c.Kubelets))
	isService := func(a string) bool { return c.service != nil && slices.Contains(c.service.Spec.ClusterIPs, a) }
	switch {
	case len(c.Kubelets) == 0:
	case len(addrs) == 0:
		c.add("kubelets", Warn, "no clusterDNS", "pods ask the name servers of their node, and would not ask the agents: set clusterDNS")
	case c.service != nil && !slices.ContainsFunc(addrs, isService):
		c.add("kubelets", Warn, what+": not the DNS Service", "pods ask another server already: docs/migrating.md; transparent mode would not see them")
	default:
		c.add("kubelets", OK, what, "")
	}
}

func (c *checker) checkFamilies() {
	four, only := c.podFamilies()
	addrs, _ := c.kubeletDNS()
	isSix := func(a string) bool { return !isFour(a) }
	serviceSix := c.service != nil && slices.ContainsFunc(c.service.Spec.ClusterIPs, isSix)
	switch {
	case four+only == 0 && !c.reads(ListSystemPods):
		return
	case four+only == 0:
		c.add("IP families", Unknown, "no pod of kube-system with a network of its own runs", "IPv4 is assumed: docs/install.md#ipv6")
		return
	case four == 0:
		c.families = onlySix
	case only > 0 || serviceSix || slices.ContainsFunc(addrs, isSix):
		c.families = both
	default:
		c.families = onlyFour
	}
	what := map[families]string{onlyFour: "pods ask over IPv4", onlySix: "pods have IPv6 only", both: "pods may ask over both"}[c.families]
	c.add("IP families", OK, what, "")
	if c.families == onlyFour || c.service == nil || !c.reads(ListSlices) {
		return
	}
	if _, six := c.readyEndpoints(c.service); six == 0 {
		c.add("fallback", Warn, "no ready endpoint with an IPv6 address: no fallback over IPv6",
			"`kubectl -n "+c.service.Namespace+" patch service "+c.service.Name+` --type merge -p '{"spec": {"ipFamilyPolicy": "PreferDualStack"}}'`+"`")
	}
}

// checkDomain compares what the cluster's DNS and the kubelets call the cluster domain.
func (c *checker) checkDomain() {
	theirs, err := c.readCorefile()
	_, domains := c.kubeletDNS()
	c.theirs = theirs
	if theirs != nil && theirs.Config.Cluster.Resolver != config.ResolverNone {
		domains = unique(append(domains, theirs.Config.ClusterDomain))
	}
	switch {
	case err != nil:
		c.add("Corefile", Unknown, err.Error(), "`node-cache convert --from-cluster` says more")
	case theirs == nil && c.reads(ListConfigMaps):
		c.add("Corefile", Unknown, "no ConfigMap of CoreDNS or kube-dns was found", "other zones of the cluster's DNS need a route or cluster.zones: docs/verify.md#zones-of-the-clusters-dns")
	}
	switch len(domains) {
	case 0:
		c.add("cluster domain", Unknown, "cluster.local is assumed", "if it is another: clusterDomain in the agents' configuration")
	case 1:
		c.domain = domains[0]
		c.add("cluster domain", OK, c.domain, "")
	default:
		c.add("cluster domain", Warn, "kubelets and DNS do not agree: "+strings.Join(domains, ", "), "set clusterDomain in the agents' configuration to the right one")
	}
}

// checkZones finds what the cluster's DNS answers and the agents with their default configuration would not.
func (c *checker) checkZones() {
	if c.theirs == nil {
		return
	}
	agent := config.Default(config.Agent)
	agent.ClusterDomain, agent.Cluster.Resolver = c.domain, config.ResolverLocal
	c.unserved = unique(agent.UnservedZones(&c.theirs.Config))
	gaps := c.theirs.Gaps(&agent)
	for _, g := range gaps {
		c.add("zones", Warn, g.What+": "+some(g.Names), g.Fix)
	}
	if len(gaps) == 0 {
		c.add("zones", OK, convert.NoGap, "")
	}
}

func (c *checker) checkInstalled() {
	for i := range c.DaemonSets {
		if d := &c.DaemonSets[i]; d.Name == agentName {
			c.add("installed", Warn, "DaemonSet "+d.Namespace+"/"+d.Name, "it is here already: `kubectl node-cache status`; upgrades: daemonset/README.md#upgrade")
		}
	}
}

// checkLocalDNS looks for other servers on the nodes.
func (c *checker) checkLocalDNS() {
	list := c.findLocalDNS()
	for _, l := range list {
		what := fmt.Sprintf("%s, on %d nodes", l.name, l.nodes)
		if len(l.addrs) > 0 {
			what += " at " + strings.Join(l.addrs, ", ")
		}
		switch c.platform.name {
		case "AKS", "GKE":
			c.add("node-local DNS", Fail, what, "turn it off first: "+platformPages+c.platform.page)
		default:
			c.add("node-local DNS", Fail, what, "link and address are those of the agents: move node by node, "+c.migration())
		}
	}
	if takers := slices.DeleteFunc(c.portTakers(), func(taker string) bool {
		return slices.ContainsFunc(list, func(l localDNS) bool { return strings.HasSuffix(l.name, taker) })
	}); len(takers) > 0 {
		c.add("ports", Warn, "port 53 or 9253 of the nodes is used by "+some(takers), "an agent needs both at its address: docs/node.md")
	}
	if len(list) == 0 && c.reads(ListDaemonSets) {
		c.add("node-local DNS", OK, "none was recognised", "")
	}
}

// migration returns the part of docs/migrating.md for what pods ask.
func (c *checker) migration() string {
	addrs, _ := c.kubeletDNS()
	switch {
	case len(addrs) == 0:
		return "docs/migrating.md#from-nodelocal-dnscache"
	case c.service != nil && slices.Contains(c.service.Spec.ClusterIPs, addrs[0]):
		return "docs/migrating.md#a-pods-ask-the-dns-service"
	}
	return "docs/migrating.md#b-pods-ask-the-link-local-address"
}

func (c *checker) checkAddresses() {
	for _, text := range c.addresses() {
		if who := c.taken(netip.MustParseAddr(text)); who != "" {
			c.add("address", Fail, text+" of the agents: "+who+" has it", "set others in listen.addresses: daemonset/README.md#settings")
		}
	}
}
