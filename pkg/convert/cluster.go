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
	if isThrough(c.clusterZone) {
		c.lost(l.at, "kubernetes: fallthrough", "a name that the domain of the cluster does not have is denied", "names below it may have a route of their own, or be in hosts")
	}
	cluster.Ranges = slices.DeleteFunc(cluster.Ranges, func(p netip.Prefix) bool { return isThrough(config.ReverseZones(p)[0]) })
	switch {
	case !reverse:
		l.differs("the reverse names of the cluster's addresses are answered as well", "")
	case !isThrough("in-addr.arpa.") && len(cluster.Ranges) == 0:
		l.differs("reverse names of addresses that the cluster does not have are forwarded, not denied", "cluster.ranges has the prefixes whose other addresses are denied")
	}
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
		case zone != c.clusterZone:
			c.differs(l.at, zone, "the cluster has one domain, "+c.clusterZone+": the names are rewritten to those in it", "")
			c.domains = append(c.domains, sourced[string]{zone, l.origin()})
		}
		l.s.own = append(l.s.own, zone)
	}
	return reverse
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
			cluster.Kubeconfig = l.arg(0, cluster.Kubeconfig)
			if len(l.args()) > 1 {
				l.lost("the file's current context is used", "write a kubeconfig whose current context it is")
			}
		}},
		{names: "fallthrough", take: func(l *line) {
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
		lost("federation", "federation is not supported", "Kubernetes has dropped them"),
		{names: "resyncperiod upstream"}, // CoreDNS ignores them as well
		{names: "zonal"},                 // always on
	}
}

// clusterSet converts the zones of a cluster set, of which there is one.
func clusterSet(l *line) {
	c := l.c
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
}

// transfer converts the plugin for zone transfers.
func transfer(l *line) {
	for _, st := range l.body {
		if option := l.option(&st); st.words[0] == "to" {
			transferTo(option)
		} else {
			option.lost("NOTIFY is not sent", "")
		}
	}
	if !l.c.servesCluster {
		l.lost("only the cluster's zone can be transferred", "")
	}
}

// transferTo converts the servers of to.
func transferTo(l *line) {
	allowed := &l.c.cfg.Cluster.TransferTo
	for _, word := range l.args() {
		host := word
		if a, err := netip.ParseAddrPort(word); err == nil {
			host = a.Addr().String()
		}
		a, err := netip.ParseAddr(strings.Trim(host, "[]"))
		a = a.Unmap().WithZone("")
		switch {
		case word == "to":
		case word == "*":
			*allowed = appendNew(*allowed, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
			*allowed = appendNew(*allowed, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case err == nil:
			*allowed = appendNew(*allowed, netip.PrefixFrom(a, a.BitLen()))
			l.c.differs(l.at, "transfer: to "+word, "NOTIFY is not sent", "the other server polls by the timers of the SOA record")
		default:
			l.c.lost(l.at, "transfer: to "+word, "not an address", "")
		}
	}
}
