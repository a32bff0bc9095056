// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// Placeholders in the manifest of NodeLocal DNSCache. Its pods fill in centralServers and upstreams themselves.
const (
	clusterIP      = "__PILLAR__DNS__SERVER__"       // the address of the DNS service
	centralServers = "__PILLAR__CLUSTER__DNS__"      // the servers behind the DNS service
	upstreams      = "__PILLAR__UPSTREAM__SERVERS__" // the servers of the kube-dns ConfigMap, or of /etc/resolv.conf
	localDNS       = "__PILLAR__LOCAL__DNS__"
	dnsDomain      = "__PILLAR__DNS__DOMAIN__"
)

// fillPlaceholders replaces the placeholders that have a usual value.
func fillPlaceholders(text string) string {
	return strings.NewReplacer(localDNS, "169.254.20.10", dnsDomain, "cluster.local").Replace(text)
}

// central converts a forward to the central resolver if it is for the cluster domain, and reports whether it did.
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
			return false // not a server that central can have: forward makes a route
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
	c.cfg.Cluster.Central.Service = c.service()
	c.differs(l.at, to[service], "the endpoints of the Service "+c.service().String()+" are watched through the API, and queried directly",
		"write the name that the Service has in cluster.central.service; no second Service such as kube-dns-upstream is needed")
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
		l.leave(l.ownZones(), "only one cluster is served, "+c.clusterZone, "write a route to the other cluster's resolver")
		return
	}
	reverse := clusterZones(l)
	if c.clusterZone == "" {
		l.leave(l.ownZones(), "no zone of it can be the domain of a cluster", routeIt)
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
	isThrough := func(zone string) bool {
		return slices.ContainsFunc(through, func(t string) bool { return below(zone, t) })
	}
	cluster.Fallthrough = fallthroughIn(c.cfg.Domains(), through)
	if len(cluster.Fallthrough) > 0 && len(l.s.all("forward"))+len(l.s.all("proxy")) == 0 {
		l.leave(nil, "unknown names fail where no server is asked for them", "leave out fallthrough")
	}
	closeReverse(l, reverse, isThrough)
}

// closeReverse adds the reverse zones without fallthrough to cluster.ranges, where unknown names are denied. It leaves the
// block unless it has all reverse zones, because node-cache answers the reverse names of all the cluster's addresses.
func closeReverse(l *line, reverse []netip.Prefix, isThrough func(zone string) bool) {
	cluster := &l.c.cfg.Cluster
	every := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	if slices.ContainsFunc(every, func(all netip.Prefix) bool { return !slices.Contains(reverse, all) }) {
		l.leave(nil, "reverse names of all the cluster's addresses are answered", "")
	}
	for _, p := range reverse {
		if !isThrough(config.ReverseZones(p)[0]) {
			cluster.Ranges = appendNew(cluster.Ranges, p)
			l.c.origins["cluster.ranges"] = l.origin()
		}
	}
}

// fallthroughIn returns the domains, or zones below them, that are in the zones with fallthrough.
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

// clusterZones sets the cluster domain and further domains of the cluster, and returns its reverse zones as prefixes.
func clusterZones(l *line) (reverse []netip.Prefix) {
	c, hosts := l.c, l.args()
	if len(hosts) == 0 {
		hosts = l.s.zones
	}
	var sets []string // zones of a cluster set
	for _, st := range l.body {
		if st.words[0] == "multicluster" {
			sets = append(sets, l.zonesAmong(st.args())...)
		}
	}
	for _, host := range hosts {
		host = fillPlaceholders(host)
		if p, err := netip.ParsePrefix(host); err == nil {
			reverse = append(reverse, p.Masked())
			l.s.own = append(l.s.own, config.ReverseZones(p.Masked())...)
			continue
		}
		zone, err := config.ParseZone(host)
		switch {
		case err != nil:
			l.lost(oneLine(err), "")
			continue
		case zone == "in-addr.arpa.":
			reverse = append(reverse, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		case zone == "ip6.arpa.":
			reverse = append(reverse, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case isReverse(zone): // the zone has only some of the reverse names: closeReverse leaves the block
		case slices.Contains(sets, zone), zone == ".":
			continue
		case c.clusterZone == "":
			c.clusterZone = zone
		case zone != c.clusterZone && !c.addDomain(zone):
			l.leave([]string{zone}, "not apart from another domain of the cluster", routeIt)
			continue
		}
		l.s.own = append(l.s.own, zone)
	}
	return reverse
}

// addDomain adds a domain of the cluster, unless it overlaps with a domain that the cluster has already. It reports whether it did.
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

// kubernetesOptions returns what becomes of each option of kubernetes. Zones with fallthrough are appended to through.
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
		textOption("labels", &cluster.ServiceSelector),
		textOption("namespace_labels", &cluster.NamespaceSelector),
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
		lost("transfer", "zones are not transferred through a node cache", "ask the old server for them, or see cluster.transferTo"),
		left("endpoint tls", "the API server's address is in a kubeconfig",
			"write one, and name it in cluster.kubeconfig; in a pod the service account is enough"),
		differs("apiserver_qps apiserver_burst apiserver_max_inflight", "the request rate cannot be set",
			"objects are watched, so there are few"),
		differs("startup_timeout", "the start and /readyz wait for the cluster's objects without a timeout",
			"a snapshot makes the start immediate: see snapshot.folder"),
		{names: "multicluster", take: func(l *line) {
			l.leave(l.zonesAmong(l.args()), "its zones are not converted", "cluster.clusterSet serves such names: docs/multi-cluster.md")
		}},
		{names: "federation", take: func(l *line) { c.federation(l.origin(), l.arg(0, "")+"="+l.arg(1, "")) }},
		{names: "resyncperiod upstream"}, // CoreDNS ignores these options as well
		{names: "zonal"},                 // node-cache always prefers endpoints in the node's zone
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
	cluster.Federations = append(cluster.Federations, f) // a later federation of the same name replaces an earlier one
	c.origins["cluster.federations"] = from
}

// checkFederations drops the federations unless the resolver is local and has all endpoints, which they need.
func (c *converter) checkFederations() {
	cluster := &c.cfg.Cluster
	if len(cluster.Federations) > 0 && (cluster.Resolver != config.ResolverLocal || cluster.Endpoints != config.EndpointsAll) {
		c.lost(c.origins["cluster.federations"].at, "federations", "the resolver with all names and endpoints of the cluster has them",
			"write them into its cluster.federations")
		cluster.Federations = nil
	}
}
