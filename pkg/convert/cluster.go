// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// Placeholders in the manifest of NodeLocal DNSCache. It fills in clusterIP and upstreams itself.
const (
	clusterIP      = "__PILLAR__DNS__SERVER__"       // the address of the DNS service
	centralServers = "__PILLAR__CLUSTER__DNS__"      // the servers behind the DNS service
	upstreams      = "__PILLAR__UPSTREAM__SERVERS__" // those of the kube-dns ConfigMap, or of /etc/resolv.conf
	localDNS       = "__PILLAR__LOCAL__DNS__"
	dnsDomain      = "__PILLAR__DNS__DOMAIN__"
)

// fillPlaceholders replaces the placeholders that have a usual value.
func fillPlaceholders(text string) string {
	return strings.NewReplacer(localDNS, "169.254.20.10", dnsDomain, "cluster.local").Replace(text)
}

// central converts a forward to the central resolver if it is for the cluster domain.
func central(l *line) bool {
	c, to := l.c, l.args()[1:]
	service := slices.IndexFunc(to, isDNSService)
	i := slices.Index(l.s.zones, "cluster.local.")
	if i < 0 && service >= 0 {
		i = slices.IndexFunc(l.s.zones, func(zone string) bool { return zone != "." && !isReverse(zone) })
	}
	if i < 0 {
		return false
	}
	var addresses []netip.AddrPort
	for _, word := range to {
		t, err := config.ParseTarget(word)
		if service < 0 && (err != nil || t.Kind != config.Plain && t.Kind != config.TCP) {
			return false // then it is a route
		}
		addresses = append(addresses, t.Addr)
	}
	c.central, c.clusterZone = to, l.s.zones[i]
	c.cfg.ClusterDomain, c.cfg.Cluster.Resolver = l.s.zones[i], config.ResolverCentral
	l.set("cluster.resolver", "central")
	if service < 0 {
		c.cfg.Cluster.Central.Addresses = slices.Compact(addresses)
		l.differs("the addresses are queried over TCP, and unchanged",
			"where one is that of a Service, name the Service in cluster.central.service instead: its endpoints are watched")
		return true
	}
	c.cfg.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
	c.differs(l.at, to[service], "the endpoints of the Service kube-system/kube-dns are watched through the API, and queried directly",
		"write the name that the Service has in cluster.central.service; no second Service such as kube-dns-upstream is needed")
	if c.cfg.Interface.Manage && !c.cfg.Intercept.Manage {
		c.cfg.Intercept.Manage = true
		c.origins["intercept.manage"] = origin{text: "queries go to the central resolver while the agent does not answer"}
	}
	return true
}

// isDNSService reports whether an argument of forward is a placeholder for the cluster's DNS: its servers, or its address
// in setups without kube-proxy or with IPVS.
func isDNSService(word string) bool { return word == centralServers || word == clusterIP }

// isCentral reports whether a forward is for cluster names and to the central resolver.
func isCentral(c *converter, zone string, to []string) bool {
	return c.central != nil && (zone == c.clusterZone || isReverse(zone)) && slices.Equal(to, c.central)
}

// kubernetes converts the plugin that answers the cluster's names.
func kubernetes(l *line) {
	c, cluster := l.c, &l.c.cfg.Cluster
	if c.clusterZone != "" {
		l.unread(l.ownZones(), "only one cluster is served, "+c.clusterZone, "write a route to the other cluster's resolver")
		return
	}
	reverse := clusterZones(l)
	if c.clusterZone == "" {
		l.unread(l.ownZones(), "no zone of it can be the domain of a cluster", routeIt)
		return
	}
	c.cfg.ClusterDomain = c.clusterZone
	l.set("cluster.resolver", "local")
	cluster.Resolver, cluster.Endpoints, cluster.Pods = config.ResolverLocal, config.EndpointsAll, config.PodsDisabled
	c.origins["cluster.endpoints"] = origin{text: "as CoreDNS has it; headless is enough unless endpoints of other services are asked for, and takes less memory"}
	c.origins["cluster.pods"] = origin{text: "as CoreDNS has it where nothing is written"}
	var through []string // zones with fallthrough
	l.options(kubernetesOptions(c, &through)...)
	if cluster.IgnoreEmptyService && cluster.Endpoints == config.EndpointsNone {
		cluster.IgnoreEmptyService = false
		c.lost(c.origins["cluster.ignoreEmptyService"].at, "kubernetes: ignore empty_service", "without endpoints no service is known to have none", "leave out noendpoints")
	}
	if len(cluster.Namespaces) > 0 && cluster.NamespaceSelector != "" {
		c.lost(l.at, "kubernetes: namespace_labels "+cluster.NamespaceSelector, "namespaces are listed or selected, not both", "")
		cluster.NamespaceSelector = ""
	}
	isThrough := func(zone string) bool {
		return slices.ContainsFunc(through, func(t string) bool { return below(zone, t) })
	}
	cluster.Fallthrough = fallthroughIn(c.cfg.Domains(), through)
	cluster.Ranges = slices.DeleteFunc(cluster.Ranges, func(p netip.Prefix) bool { return isThrough(config.ReverseZones(p)[0]) })
	switch {
	case !reverse:
		l.differs("the reverse names of the cluster's addresses are answered as well", "")
	case !isThrough("in-addr.arpa.") && len(cluster.Ranges) == 0:
		l.differs("reverse names of addresses that the cluster does not have are forwarded, not denied", "cluster.ranges has the prefixes whose other addresses are denied")
	}
}

// fallthroughIn returns what of the domains is in the zones with fallthrough.
func fallthroughIn(domains, through []string) (list []string) {
	for _, domain := range domains {
		for _, zone := range through {
			switch {
			case below(domain, zone):
				list = appendNew(list, domain)
			case below(zone, domain):
				list = appendNew(list, zone)
			}
		}
	}
	return list
}

// clusterZones separates the cluster domain from its reverse zones, and reports whether there are reverse zones.
func clusterZones(l *line) (reverse bool) {
	c, hosts := l.c, l.args()
	if len(hosts) == 0 {
		hosts = l.s.zones
	}
	var sets []string // zones of a cluster set, which an option of its own is for
	for _, st := range l.body {
		if st.words[0] == "multicluster" {
			sets = append(sets, l.zonesAmong(st.args())...)
		}
	}
	for _, host := range hosts {
		host = fillPlaceholders(host)
		if p, err := netip.ParsePrefix(host); err == nil {
			reverse = true
			c.cfg.Cluster.Ranges = appendNew(c.cfg.Cluster.Ranges, p.Masked())
			l.s.own = append(l.s.own, config.ReverseZones(p.Masked())...)
			continue
		}
		zone, err := config.ParseZone(host)
		switch {
		case err != nil:
			l.lost(oneLine(err), "")
			continue
		case isReverse(zone):
			if reverse = true; zone != "in-addr.arpa." && zone != "ip6.arpa." {
				c.differs(l.at, zone, "reverse zones are configured as prefixes", "write the zone's prefix into cluster.ranges")
			}
		case slices.Contains(sets, zone), zone == ".":
			continue
		case c.clusterZone == "":
			c.clusterZone = zone
		case zone != c.clusterZone && !c.addDomain(zone):
			l.lost(zone+": not apart from another domain of the cluster", "")
			continue
		}
		l.s.own = append(l.s.own, zone)
	}
	return reverse
}

// addDomain adds a domain of the cluster, unless it overlaps with one.
func (c *converter) addDomain(zone string) bool {
	overlaps := func(other string) bool { return below(zone, other) || below(other, zone) }
	if overlaps(c.clusterZone) || slices.ContainsFunc(c.cfg.Cluster.Domains, overlaps) {
		return false
	}
	c.cfg.Cluster.Domains = append(c.cfg.Cluster.Domains, zone)
	return true
}

// appendNew appends a value unless the list has it.
func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// kubernetesOptions returns what becomes of each option of kubernetes. through gets the zones with fallthrough.
func kubernetesOptions(c *converter, through *[]string) []directive {
	cluster := &c.cfg.Cluster
	return []directive{
		{names: "pods", take: func(l *line) {
			if !slices.Contains([]string{config.PodsDisabled, config.PodsInsecure, config.PodsVerified}, l.all()) {
				l.unknown()
				return
			}
			cluster.Pods, c.origins["cluster.pods"] = l.all(), l.origin()
		}},
		duration("ttl", "cluster.ttl", 0, time.Hour, &cluster.TTL),
		{names: "namespaces", take: func(l *line) {
			for _, name := range l.args() {
				cluster.Namespaces = appendNew(cluster.Namespaces, name)
			}
		}},
		text("labels", &cluster.ServiceSelector),
		text("namespace_labels", &cluster.NamespaceSelector),
		flag("endpoint_pod_names", &cluster.PodNames),
		{names: "noendpoints", take: func(l *line) {
			cluster.Endpoints, c.origins["cluster.endpoints"] = config.EndpointsNone, l.origin()
		}},
		{names: "ignore", take: func(l *line) {
			cluster.IgnoreEmptyService, c.origins["cluster.ignoreEmptyService"] = true, origin{at: l.at}
		}},
		{names: "kubeconfig", take: func(l *line) {
			cluster.Kubeconfig, cluster.Context = l.arg(0, cluster.Kubeconfig), l.arg(1, "")
		}},
		{names: "fallthrough", take: func(l *line) {
			c.origins["cluster.fallthrough"] = l.origin()
			if len(l.args()) == 0 {
				*through = append(append(*through, "in-addr.arpa.", "ip6.arpa."), l.s.zones...)
			}
			*through = append(*through, l.zones(l.args())...)
		}},
		{names: "transfer", take: transferTo},
		lost("endpoint tls", "the API server's address is in a kubeconfig",
			"write one, and name it in cluster.kubeconfig; in a pod the service account is enough"),
		lost("apiserver_qps apiserver_burst apiserver_max_inflight", "the request rate cannot be set",
			"objects are watched, so there are few"),
		lost("startup_timeout", "the start and /readyz wait for the cluster's objects without a timeout",
			"a snapshot makes the start immediate: see snapshot.folder"),
		{names: "multicluster", take: clusterSet},
		{names: "federation", take: func(l *line) { c.federation(l.origin(), l.arg(0, "")+"="+l.arg(1, "")) }},
		{names: "resyncperiod upstream"}, // CoreDNS ignores them as well
		{names: "zonal"},                 // always on
	}
}

// federation adds a federation, written as NAME=DOMAIN.
func (c *converter) federation(from origin, text string) {
	f, err := config.ParseFederation(text)
	if err != nil {
		c.lost(from.at, "federation "+text, oneLine(err), "")
		return
	}
	cluster := &c.cfg.Cluster
	cluster.Federations = slices.DeleteFunc(cluster.Federations, func(other config.Federation) bool { return other.Name == f.Name })
	cluster.Federations = append(cluster.Federations, f) // the last one of a name is in effect
	c.origins["cluster.federations"] = from
}

// checkFederations drops the federations where the configuration cannot have them.
func (c *converter) checkFederations() {
	cluster := &c.cfg.Cluster
	if len(cluster.Federations) > 0 && (cluster.Resolver != config.ResolverLocal || cluster.Endpoints != config.EndpointsAll) {
		c.lost(c.origins["cluster.federations"].at, "federations", "the resolver with all names and endpoints of the cluster has them",
			"write them into its cluster.federations")
		cluster.Federations = nil
	}
}

// external converts the plugin that answers the external names of the cluster's services.
func external(l *line) {
	to := &l.c.cfg.Cluster.External
	if l.c.cfg.Cluster.Resolver != config.ResolverLocal || len(l.s.all("kubernetes")) == 0 {
		l.unread(l.ownZones(), "it needs the plugin kubernetes", routeIt)
		return
	}
	for _, zone := range l.ownZones() {
		switch {
		case isReverse(zone): // reverse names of external addresses are answered anyway
		case l.c.serverFor(zone) != l.s:
			l.lost("the names of "+zone+" belong to another server block", "")
		case slices.ContainsFunc(slices.Concat(l.c.cfg.Domains(), to.Zones), func(other string) bool { return below(zone, other) || below(other, zone) }):
			l.lost(zone+" overlaps with the domain of the cluster, or with another zone", "")
		default:
			to.Zones = append(to.Zones, zone)
			l.c.origins["cluster.external.zones"] = l.origin()
		}
		l.s.own = append(l.s.own, zone)
	}
	l.options(
		duration("ttl", "cluster.external.ttl", 0, time.Hour, &to.TTL),
		flag("headless", &to.Headless),
		directive{names: "fallthrough", take: func(l *line) {
			if to.Fallthrough = true; len(l.args()) > 0 {
				l.differs("it is for all external zones", "")
			}
		}},
		directive{names: "apex", take: func(l *line) {
			if l.all() != "dns" {
				l.lost("the name server of a zone is ns1.dns in it", "write that name into the zone above, which delegates it")
			}
		}})
}

// clusterSet converts the zones of a cluster set, of which there is one: an option of kubernetes, or a plugin beside it.
func clusterSet(l *line) {
	c := l.c
	if c.cfg.Cluster.Resolver != config.ResolverLocal {
		l.unread(l.ownZones(), "it needs the plugin kubernetes", routeIt)
		return
	}
	list := slices.DeleteFunc(slices.Clone(l.ownZones()), func(zone string) bool { return zone == "." || below(zone, c.clusterZone) || below(c.clusterZone, zone) })
	if len(list) == 0 {
		l.lost("no zone of it can be the domain of a cluster set", "")
		return
	}
	c.cfg.Cluster.ClusterSet, c.origins["cluster.clusterSet"] = list[0], l.origin()
	l.s.own = append(l.s.own, list[0])
	l.differs("the endpoints of a ClusterSetIP have no names, as the specification demands, and reverse names are answered", "")
	if len(list) > 1 {
		l.unread(list[1:], "only one cluster set is served, "+list[0], routeIt)
	}
	l.options(
		differs("kubeconfig noendpoints", "those of the plugin kubernetes are for both", ""),
		lost("fallthrough", "names that do not exist are denied", ""))
}

// transfer converts the plugin for zone transfers.
func transfer(l *line) {
	for _, st := range l.body {
		if option := l.option(&st); st.words[0] == "to" {
			transferTo(option)
		} else {
			option.lost("the source address of NOTIFY is that of the route", "")
		}
	}
	if !l.c.servesCluster {
		l.lost("only zones of the cluster can be transferred", "")
	}
}

// tsig converts the keys of transfers.
func tsig(l *line) {
	cluster := &l.c.cfg.Cluster
	if len(cluster.TransferTo) == 0 {
		l.lost("only zone transfers and NOTIFY are signed", "")
		return
	}
	l.options(
		directive{names: "secrets", take: func(l *line) {
			if file := l.arg(0, ""); l.set("cluster.transferKeys", file) {
				cluster.TransferKeys = file
				l.differs("the file is read where node-cache runs", "mount its Secret there")
			}
		}},
		directive{names: "secret", take: func(l *line) { // not with the secret itself
			l.c.lost(l.at, "tsig: secret "+l.arg(0, ""), "no key is in the configuration",
				"write the keys to a file, as tsig-keygen does, and name it in cluster.transferKeys")
		}},
		differs("require", "transfers must be signed, other queries need not be", ""))
}

// transferTo converts the servers of to.
func transferTo(l *line) {
	allowed := &l.c.cfg.Cluster.TransferTo
	for _, word := range l.args() {
		to, err := netip.ParseAddrPort(word)
		if err != nil {
			var a netip.Addr
			a, err = netip.ParseAddr(strings.Trim(word, "[]"))
			to = netip.AddrPortFrom(a, 53)
		}
		a := to.Addr().Unmap().WithZone("")
		switch {
		case word == "to":
		case word == "*":
			for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				*allowed = appendNew(*allowed, config.TransferClient{Prefix: netip.PrefixFrom(all, 0)})
			}
		case err == nil:
			*allowed = appendNew(*allowed, config.TransferClient{Prefix: netip.PrefixFrom(a, a.BitLen()), Port: to.Port()})
		default:
			l.c.lost(l.at, "transfer: to "+word, "not an address", "")
		}
	}
}
