// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// Placeholders in the manifest of NodeLocal DNSCache. It fills in two of them itself.
const (
	clusterIP      = "__PILLAR__DNS__SERVER__"       // the address of the DNS service
	centralServers = "__PILLAR__CLUSTER__DNS__"      // the servers behind the DNS service
	upstreams      = "__PILLAR__UPSTREAM__SERVERS__" // those of the kube-dns ConfigMap, or of /etc/resolv.conf
)

// fillPlaceholders replaces the placeholders that have a usual value.
func fillPlaceholders(text string) string {
	return strings.NewReplacer(
		"__PILLAR__LOCAL__DNS__", "169.254.20.10",
		"__PILLAR__DNS__DOMAIN__", "cluster.local",
	).Replace(text)
}

// clusterState says which servers answer the cluster's names.
type clusterState struct {
	local   bool     // this program, like the plugin kubernetes
	central bool     // other servers, which are in to
	to      []string // arguments of forward
	domain  string
}

// clusterDomain finds out whether the cluster's names are forwarded, as in NodeLocal DNSCache.
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

// central converts a forward to the central resolver if it is for the cluster domain.
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
				return false // then it is a route
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
		c.noteDiffers(st.at, to[slices.IndexFunc(to, isDNSService)], "the endpoints of the Service kube-system/kube-dns are watched through the API, and queried directly",
			"write the name that the Service has in cluster.central.service; no second Service such as kube-dns-upstream is needed")
	} else {
		c.cfg.Cluster.Central.Addresses = slices.Compact(addresses)
		c.noteDiffers(st.at, st.text(), "the addresses are queried over TCP, and unchanged",
			"where one is that of a Service, name the Service in cluster.central.service instead: its endpoints are watched")
	}
	if c.cfg.Interface.Manage && !c.cfg.Intercept.Manage && filled {
		c.cfg.Intercept.Manage = true
		c.sources["intercept.manage"] = "queries go to the central resolver while the agent does not answer"
	}
	return true
}

// isDNSService reports whether an argument of forward is a placeholder for the cluster's DNS: its servers, or its address
// in setups without kube-proxy or with IPVS.
func isDNSService(word string) bool { return word == centralServers || word == clusterIP }

// isCentral reports whether a forward is for cluster names and to the central resolver.
func (c *corefile) isCentral(zone string, to []string) bool {
	return c.cluster.central && (zone == c.cluster.domain || isReverse(zone)) && slices.Equal(to, c.cluster.to)
}

// kubernetes converts the plugin that answers the cluster's names.
func (c *corefile) kubernetes(s *server, st *statement) {
	if c.cluster.domain != "" {
		c.noteLost(st.at, st.text(), "only one cluster is served: "+c.cluster.domain, "write a route to the other cluster's resolver")
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
	var through []string // zones with fallthrough
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

// clusterZones separates the cluster domain from its reverse zones, and reports whether there are reverse zones.
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
				c.noteDiffers(st.at, zone, "reverse zones are configured as prefixes", "write the zone's prefix into cluster.ranges")
			}
		case c.cluster.domain == "":
			c.cluster.domain = zone
		case zone != c.cluster.domain:
			c.noteLost(st.at, zone, "the cluster has only one domain: "+c.cluster.domain, "rewrite the names: {suffix: ."+strings.TrimSuffix(zone, ".")+
				", to: ."+strings.TrimSuffix(c.cluster.domain, ".")+"}")
			continue
		}
		s.own = append(s.own, zone)
	}
	return reverse
}

// fallthroughZones returns the zones of fallthrough, or those of the server if it names none.
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

// noteDenials notes differences for names that the cluster does not have.
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

// kubernetesOption converts one line of the block.
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
			c.option(st, option, "the file's current context is used", "write a kubeconfig whose current context it is")
		}
	default:
		c.kubernetesNone(st, option)
	}
}

// kubernetesNone notes an unsupported line of the block.
func (c *corefile) kubernetesNone(st, option *statement) {
	switch option.words[0] {
	case "endpoint", "tls":
		c.option(st, option, "the API server's address is in a kubeconfig", "write one, and name it in cluster.kubeconfig; in a pod the service account is enough")
	case "apiserver_qps", "apiserver_burst", "apiserver_max_inflight":
		c.option(st, option, "the request rate cannot be set", "objects are watched, so there are few")
	case "startup_timeout":
		c.option(st, option, "the start and /readyz wait for the cluster's objects without a timeout", "a snapshot makes the start immediate: see snapshot.folder")
	case "multicluster":
		why, hint := unsupported("multicluster")
		c.option(st, option, why, hint)
	case "zonal":
		c.option(st, option, "names of endpoints by zone are not supported", "cluster.nodeZone puts the endpoints of the node's own zone first")
	case "federation":
		why, hint := unsupported("federation")
		c.option(st, option, why, hint)
	case "resyncperiod", "upstream": // CoreDNS ignores them as well
	case "transfer":
		c.transferTo(option)
	default:
		c.unknown(st, option)
	}
}

// transfer converts the plugin for zone transfers.
func (c *corefile) transfer(_ *server, st *statement) {
	for _, option := range st.body {
		if option.words[0] != "to" {
			c.option(st, &option, "NOTIFY is not sent", "")
			continue
		}
		c.transferTo(&option)
	}
	if !c.cluster.local {
		c.noteLost(st.at, st.text(), "only the cluster's zone can be transferred", "")
	}
}

// transferTo parses the arguments of to.
func (c *corefile) transferTo(option *statement) {
	for _, word := range option.args() {
		switch a, err := netip.ParseAddr(strings.Trim(hostOf(word), "[]")); {
		case word == "to":
		case word == "*":
			c.allowTransfer(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
			c.allowTransfer(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case err == nil:
			c.allowTransfer(netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen()))
			c.noteDiffers(option.at, "transfer: to "+word, "NOTIFY is not sent", "the other server polls by the timers of the SOA record")
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

// hostOf removes the port from an address.
func hostOf(text string) string {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.Addr().String()
	}
	return text
}

// kubeDNS converts the routes of a kube-dns ConfigMap, as NodeLocal DNSCache does.
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
