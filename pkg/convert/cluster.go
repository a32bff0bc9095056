// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// What the placeholders in the manifest of NodeLocal DNSCache stand for. Two of them it fills in itself.
const (
	clusterIP      = "__PILLAR__DNS__SERVER__"       // the address of the DNS service
	centralServers = "__PILLAR__CLUSTER__DNS__"      // the servers behind the DNS service
	upstreams      = "__PILLAR__UPSTREAM__SERVERS__" // those of the ConfigMap of kube-dns, or of /etc/resolv.conf
)

// pillars puts the usual values in place of those placeholders that have one.
func fillPlaceholders(text string) string {
	return strings.NewReplacer(
		"__PILLAR__LOCAL__DNS__", "169.254.20.10",
		"__PILLAR__DNS__DOMAIN__", "cluster.local",
	).Replace(text)
}

// clusterState says who answers the names of the cluster.
type clusterState struct {
	local   bool     // this program, as the plugin kubernetes does
	central bool     // others, which these are:
	to      []string // words of forward
	domain  string
}

// clusterDomain finds out whether names of the cluster are forwarded, as NodeLocal DNSCache does.
func (c *corefile) clusterDomain() {
	for _, s := range c.servers {
		if len(s.all("kubernetes")) > 0 {
			c.cluster.local = true
			return
		}
	}
	for _, s := range c.servers {
		for _, st := range s.all("forward") {
			if len(st.args()) > 1 && c.central(s, &st) {
				return
			}
		}
	}
}

// central takes a forward for that to the central resolver if it is the one of the cluster's domain.
func (c *corefile) central(s *server, st *statement) bool {
	to := st.args()[1:]
	i := slices.IndexFunc(s.zones, func(zone string) bool { return zone == "cluster.local." })
	filled := slices.ContainsFunc(to, isDNSService)
	if i < 0 && filled {
		i = slices.IndexFunc(s.zones, func(zone string) bool { return zone != "." && !isReverse(zone) })
	}
	if i < 0 {
		return false
	}
	var addresses []netip.AddrPort
	if !filled {
		for _, word := range to {
			t, err := config.ParseTarget(word)
			if err != nil || t.Kind == config.ResolvConf || t.Kind == config.TLS || t.Kind == config.HTTPS {
				return false // it is a route, then
			}
			addresses = append(addresses, t.Addr)
		}
	}
	c.cluster = clusterState{central: true, to: to, domain: s.zones[i]}
	c.cfg.ClusterDomain = s.zones[i]
	c.cfg.Cluster.Resolver = config.ResolverCentral
	c.setKey("cluster.resolver", st, "central")
	if filled {
		c.cfg.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
		c.noteDiffers(st.at, to[slices.IndexFunc(to, isDNSService)], "the endpoints of the Service kube-system/kube-dns are followed by the API, and asked directly",
			"write the name that the Service has in cluster.central.service; no second Service such as kube-dns-upstream is needed")
	} else {
		c.cfg.Cluster.Central.Addresses = slices.Compact(addresses)
		c.noteDiffers(st.at, st.text(), "the addresses are asked over TCP, and as they are",
			"where one is that of a Service, name the Service in cluster.central.service instead: its endpoints are followed")
	}
	if c.cfg.Interface.Manage && !c.cfg.Intercept.Manage && filled {
		c.cfg.Intercept.Manage = true
		c.sources["intercept.manage"] = "queries go to the central resolver while the agent does not answer"
	}
	return true
}

// isDNSService reports whether a word of forward is a placeholder for the cluster's DNS: its servers, or its address,
// which those who replace kube-proxy or run it with IPVS write there.
func isDNSService(word string) bool { return word == centralServers || word == clusterIP }

// isCentral reports whether a forward is for names of the cluster and to its central resolver.
func (c *corefile) isCentral(zone string, to []string) bool {
	return c.cluster.central && (zone == c.cluster.domain || isReverse(zone)) && slices.Equal(to, c.cluster.to)
}

// kubernetes takes the plugin that answers the names of a cluster.
func (c *corefile) kubernetes(s *server, st *statement) {
	if c.cluster.domain != "" {
		c.noteLost(st.at, st.text(), "one cluster is served, which is "+c.cluster.domain, "leave the other one to its own resolver, and write a route for it")
		return
	}
	reverse := c.clusterZones(s, st)
	if c.cluster.domain == "" {
		c.noteLost(st.at, st.text(), "no zone of it can be the domain of a cluster", "")
		return
	}
	c.cfg.ClusterDomain = c.cluster.domain
	c.setKey("cluster.resolver", st, "local")
	cluster := &c.cfg.Cluster
	cluster.Resolver, cluster.Endpoints, cluster.Pods = config.ResolverLocal, config.EndpointsAll, config.PodsDisabled
	c.sources["cluster.endpoints"] = "as CoreDNS has it; headless is enough unless endpoints of other services are asked for, and takes less memory"
	c.sources["cluster.pods"] = "as CoreDNS has it where nothing is written"
	var through []string // zones whose denials are handed on
	for _, option := range st.body {
		if option.words[0] == "fallthrough" {
			through = append(through, c.fallthroughZones(s, &option)...)
			continue
		}
		c.kubernetesOption(st, &option)
	}
	if cluster.IgnoreEmptyService && cluster.Endpoints == config.EndpointsNone {
		cluster.IgnoreEmptyService = false
		c.noteLost(c.keys["cluster.ignoreEmptyService"].at, "kubernetes: ignore empty_service", "without endpoints no service is known to have none", "leave out noendpoints")
	}
	if len(cluster.Namespaces) > 0 && cluster.NamespaceSelector != "" {
		c.noteLost(st.at, "kubernetes: namespace_labels "+cluster.NamespaceSelector, "namespaces are listed or selected, not both", "")
		cluster.NamespaceSelector = ""
	}
	c.noteDenials(st, reverse, through)
}

// clusterZones tells the domain of the cluster from its reverse zones, and reports whether there are any of these.
func (c *corefile) clusterZones(s *server, st *statement) (reverse bool) {
	hosts := st.args()
	if len(hosts) == 0 {
		hosts = s.zones
	}
	for _, host := range hosts {
		host = fillPlaceholders(host)
		if p, err := netip.ParsePrefix(host); err == nil {
			reverse = true
			if !slices.Contains(c.cfg.Cluster.Ranges, p.Masked()) {
				c.cfg.Cluster.Ranges = append(c.cfg.Cluster.Ranges, p.Masked())
			}
			s.own = append(s.own, reverseZones(p.Masked())...)
			continue
		}
		zone, err := config.ParseZone(host)
		switch {
		case err != nil:
			c.noteLost(st.at, st.text(), oneLine(err), "")
			continue
		case isReverse(zone):
			reverse = true
			if zone != "in-addr.arpa." && zone != "ip6.arpa." {
				c.noteDiffers(st.at, zone, "reverse names are the cluster's by prefix", "write the prefix that the zone is of into cluster.ranges")
			}
		case c.cluster.domain == "":
			c.cluster.domain = zone
		case zone != c.cluster.domain:
			c.noteLost(st.at, zone, "the cluster has one domain, which is "+c.cluster.domain, "rewrite the names: {suffix: ."+strings.TrimSuffix(zone, ".")+
				", to: ."+strings.TrimSuffix(c.cluster.domain, ".")+"}")
			continue
		}
		s.own = append(s.own, zone)
	}
	return reverse
}

// fallthroughZones are the zones of fallthrough, those of the server when it names none.
func (c *corefile) fallthroughZones(s *server, option *statement) []string {
	if len(option.args()) == 0 {
		return append([]string{"in-addr.arpa.", "ip6.arpa."}, s.zones...)
	}
	var list []string
	for _, host := range option.args() {
		if zones, err := zones(fillPlaceholders(host)); err == nil {
			list = append(list, zones...)
		}
	}
	return list
}

// denials notes where names that the cluster does not have are answered otherwise.
func (c *corefile) noteDenials(st *statement, reverse bool, through []string) {
	handedOn := func(zone string) bool {
		return slices.ContainsFunc(through, func(t string) bool { return below(zone, t) })
	}
	if handedOn(c.cluster.domain) {
		c.noteLost(st.at, st.words[0]+": fallthrough", "a name that the domain of the cluster does not have is denied", "names below it may have a route of their own, or be in hosts")
	}
	switch {
	case !reverse:
		c.noteDiffers(st.at, st.text(), "the reverse names of the cluster's addresses are answered as well", "")
	case !handedOn("in-addr.arpa.") && len(c.cfg.Cluster.Ranges) == 0:
		c.noteDiffers(st.at, st.text(), "reverse names of addresses that the cluster does not have are forwarded, not denied", "cluster.ranges has the prefixes whose other addresses are denied")
	}
}

// kubernetesOption takes one line of the block.
func (c *corefile) kubernetesOption(st, option *statement) {
	cluster, args := &c.cfg.Cluster, option.args()
	switch option.words[0] {
	case "pods":
		modes := map[string]config.PodMode{"disabled": config.PodsDisabled, "insecure": config.PodsInsecure, "verified": config.PodsVerified}
		mode, known := modes[strings.Join(args, " ")]
		if !known {
			c.unknown(st, option)
			return
		}
		cluster.Pods = mode
		c.sources["cluster.pods"] = option.at.String() + ": " + option.text()
	case "ttl":
		if d, ok := c.span(option, strings.Join(args, " "), 0, time.Hour); ok && c.setKey("cluster.ttl", option, d.String()) {
			cluster.TTL = d
		}
	case "namespaces":
		for _, name := range args {
			if !slices.Contains(cluster.Namespaces, name) {
				cluster.Namespaces = append(cluster.Namespaces, name)
			}
		}
	case "labels":
		cluster.ServiceSelector = strings.Join(args, " ")
	case "namespace_labels":
		cluster.NamespaceSelector = strings.Join(args, " ")
	case "endpoint_pod_names":
		cluster.PodNames = true
	case "noendpoints":
		cluster.Endpoints = config.EndpointsNone
		c.sources["cluster.endpoints"] = option.at.String() + ": " + option.text()
	case "ignore":
		cluster.IgnoreEmptyService = true
		c.keys["cluster.ignoreEmptyService"] = keySet{at: option.at}
	case "kubeconfig":
		if len(args) > 0 {
			cluster.Kubeconfig = args[0]
		}
		if len(args) > 1 {
			c.option(st, option, "the current context of the file is taken", "write a kubeconfig whose current context it is")
		}
	default:
		c.kubernetesNone(st, option)
	}
}

// kubernetesNone notes a line of the block that has no counterpart.
func (c *corefile) kubernetesNone(st, option *statement) {
	switch option.words[0] {
	case "endpoint", "tls":
		c.option(st, option, "the way to the API server is in a kubeconfig", "write one, and name it in cluster.kubeconfig; in a pod the service account is enough")
	case "apiserver_qps", "apiserver_burst", "apiserver_max_inflight":
		c.option(st, option, "the rate of requests is not to be set", "objects are watched, so there are few")
	case "startup_timeout":
		c.option(st, option, "a start waits for the view of the cluster as long as it takes, and /readyz with it", "with a snapshot there is one at once: see snapshot.folder")
	case "multicluster":
		why, hint := unsupported("multicluster")
		c.option(st, option, why, hint)
	case "zonal":
		c.option(st, option, "names of endpoints by zone are not made up", "cluster.nodeZone puts the endpoints of the node's own zone first")
	case "federation":
		why, hint := unsupported("federation")
		c.option(st, option, why, hint)
	case "resyncperiod", "upstream": // CoreDNS passes over them as well
	case "transfer":
		c.transferTo(option)
	default:
		c.unknown(st, option)
	}
}

// transfer takes the plugin that says who may have the zones.
func (c *corefile) transfer(_ *server, st *statement) {
	for _, option := range st.body {
		if option.words[0] != "to" {
			c.option(st, &option, "nobody is told of changes", "")
			continue
		}
		c.transferTo(&option)
	}
	if !c.cluster.local {
		c.noteLost(st.at, st.text(), "only the zone of the cluster can be had", "")
	}
}

// transferTo reads what follows to.
func (c *corefile) transferTo(option *statement) {
	for _, word := range option.args() {
		switch a, err := netip.ParseAddr(strings.Trim(hostOf(word), "[]")); {
		case word == "to":
		case word == "*":
			c.allowTransfer(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
			c.allowTransfer(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case err == nil:
			c.allowTransfer(netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen()))
			c.noteDiffers(option.at, "transfer: to "+word, "nobody is told of changes", "the other server looks for itself, by the times in the SOA record")
		default:
			c.noteLost(option.at, "transfer: to "+word, "not an address", "")
		}
	}
}

func (c *corefile) allowTransfer(p netip.Prefix) {
	if !slices.Contains(c.cfg.Cluster.TransferTo, p) {
		c.cfg.Cluster.TransferTo = append(c.cfg.Cluster.TransferTo, p)
	}
}

// hostOf cuts the port from an address.
func hostOf(text string) string {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.Addr().String()
	}
	return text
}

// kubeDNS takes the routes of a ConfigMap of kube-dns, as NodeLocal DNSCache does.
func (c *corefile) kubeDNS(data map[string]string) error {
	if data == nil {
		return nil
	}
	routes, notes, err := KubeDNS(data)
	if err != nil {
		return err
	}
	c.notes = append(c.notes, notes...)
	for _, r := range routes {
		if r.Zone == "." {
			c.upstreams = r.To
		}
		key := stubDomains
		if r.Zone == "." {
			key = upstreamNameservers
		}
		c.routes = append(c.routes, route{Route: r, at: place{file: "kube-dns"}, text: key, early: true})
	}
	return nil
}
