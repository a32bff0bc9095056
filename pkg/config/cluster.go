// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Cluster is the section cluster.
type Cluster struct {
	// `none`: cluster names are forwarded like others. `local`: this process answers them from its watch of the API.
	// `central`: the resolver in cluster.central answers them. With `local` and `central` the domain must not have a
	// route; a name below it may.
	Resolver string `yaml:"resolver" words:"none,local,central"`
	// A kubeconfig file, read once; files that it names are watched. Empty: the service account of the pod.
	Kubeconfig string `yaml:"kubeconfig" format:"path"` // absolute unless Parse has read a relative path
	// The context in the kubeconfig. Empty: its current context.
	Context string `yaml:"context" format:"text"`
	// A folder of YAML objects instead of an API server. Excludes kubeconfig.
	Manifests string `yaml:"manifests" format:"path"` // likewise
	// A resolver with access to the API, asked over TCP: with `local` for names that this node cannot know, with
	// `central` for all cluster names.
	Central Central `yaml:"central"`
	// Other zones that the central resolver answers, such as those of CoreDNS's other server blocks. They must not have a
	// route.
	Zones []string `yaml:"zones" format:"zone"` // lower-case and absolute
	// The domain of multi-cluster names, such as `clusterset.local`: those of ServiceImports, with `local`. The central
	// resolver is asked for them only if zones lists the domain. Empty: none.
	ClusterSet string `yaml:"clusterSet" format:"clusterSet"` // lower-case and absolute
	// Other domains with the names of clusterDomain, such as `corp.k8s`, treated like it. Reverse names are those in
	// clusterDomain.
	Domains []string `yaml:"domains" format:"domain"` // lower-case and absolute
	// Zones within the domains, such as `cluster.local`, whose names are looked up by their route where the view has none of
	// them, instead of denied. With `local`. The domain may then have a route, unless there is a central resolver.
	Fallthrough []string `yaml:"fallthrough" format:"zone"` // lower-case and absolute
	// `true`: a change of a Service drops its cached answers, denials included. Only with resolver `central`. Needs an
	// API server or manifests.
	Invalidate bool `yaml:"invalidate"`
	// The endpoints in the zone: those of `headless` Services, `all` or `none`.
	Endpoints string `yaml:"endpoints" words:"headless,all,none"`
	// The name of an endpoint without a hostname: its `address` or its `pod`.
	PodNames bool `yaml:"endpointNames" words:"address,pod"`
	// The names of pods by address, such as `10-0-0-1.shop.pod.cluster.local`: `disabled` (none exist), `insecure` (all
	// exist) or `verified` (those of existing pods).
	Pods string `yaml:"pods" words:"disabled,insecure,verified"`
	// The namespaces that are served. Empty: all.
	Namespaces []string `yaml:"namespaces" format:"namespace"`
	// A label selector for Services, such as `app=web, tier!=cache`. Empty: all.
	ServiceSelector string `yaml:"serviceSelector" format:"selector"`
	// A label selector for namespaces. Empty: all. Excludes namespaces.
	NamespaceSelector string `yaml:"namespaceSelector" format:"selector"`
	// `true`: the name of a Service without a ready endpoint does not exist. Needs endpoints: all.
	IgnoreEmptyService bool `yaml:"ignoreEmptyService"`
	// The TTL of cluster answers, 0s to 1h.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// A zone not confirmed fresh for this time denies no name, 5s to 1h.
	StaleAfter time.Duration `yaml:"staleAfter" min:"5s" max:"1h"`
	// The prefixes of Services and pods, such as `10.96.0.0/12`. Their reverse names are cluster names: with `local`
	// those of unknown addresses are denied and others in their reverse zones are empty, with `central` they go to the
	// central resolver. Empty: with `local` no address is denied, with `central` all reverse names without a route go there.
	Ranges []netip.Prefix `yaml:"ranges" format:"prefix"`
	// The topology zone of this node. Its endpoints come first in headless answers and among those of central.service.
	// `auto`: the environment variable NODE_ZONE, else the zone of the Node named by NODE_NAME. Empty: no preference.
	NodeZone string `yaml:"nodeZone" format:"topologyZone"`
	// Federations as kube-dns has them, such as `myfed=example.com`: `web.shop.myfed.svc.cluster.local` is the Service here or,
	// without an endpoint here, an alias of `web.shop.myfed.svc.ZONE.REGION.example.com`, with the topology labels of this Node,
	// or NODE_ZONE and NODE_REGION. Needs resolver `local` and endpoints `all`.
	Federations []Federation `yaml:"federations" format:"federation"`
	// IP addresses and prefixes of clients that may transfer the zones (AXFR and IXFR over TCP), with `local`. An address
	// with or without a port, such as `192.0.2.53` or `192.0.2.54:5353`, is a secondary server and gets NOTIFY, to port 53
	// by default.
	TransferTo []TransferClient `yaml:"transferTo" format:"client"`
	// A file of keys in the format of BIND, as of `tsig-keygen`. Queries for transfers must be signed with one of them (TSIG),
	// and NOTIFY is signed with the first. Empty: no signatures.
	TransferKeys string `yaml:"transferKeys" format:"path"` // absolute unless Parse has read a relative path
	// Names of Services by their external addresses, with `local`.
	External External `yaml:"external"`
}

// External is the section cluster.external.
type External struct {
	// Zones with the name `service.namespace.ZONE` of each Service that has an address from its load balancer or in
	// spec.externalIPs. Reverse names of these addresses give the name in the first zone. Empty: off.
	Zones []string `yaml:"zones" format:"domain"` // lower-case and absolute
	// The TTL of the answers, 0s to 1h.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// `true`: the names of headless Services without external addresses, and of their endpoints, too.
	Headless bool `yaml:"headless"`
	// `true`: a name that does not exist in the zones is asked of its route, in place of NXDOMAIN.
	Fallthrough bool `yaml:"fallthrough"`
}

// Central is the section cluster.central.
type Central struct {
	// A Service as namespace/name, whose ready endpoints are asked.
	Service ServiceName `yaml:"service" format:"service"`
	// Servers. Excludes service.
	Addresses []netip.AddrPort `yaml:"addresses" format:"server"`
	// TCP connections to each server, 1 to 16.
	Connections int `yaml:"connections" min:"1" max:"16"`
}

// checkNames reports further names of the cluster that cannot be answered.
func checkNames(d *decoder, c *Config) {
	checkDomains(d, c)
	checkFallthrough(d, c)
	checkFederations(d, &c.Cluster)
	checkClusterSet(d, c)
	checkExternal(d, c)
}

// checkDomains reports domains without a cluster, and those that are not disjoint.
func checkDomains(d *decoder, c *Config) {
	d.check(len(c.Cluster.Domains) > 0 && c.Cluster.Resolver == ResolverNone, "cluster.domains",
		"a list: needs cluster.resolver: local or central", "", "cluster.resolver")
	all := c.Domains()
	for i, domain := range c.Cluster.Domains {
		for _, other := range all[:i+1] {
			d.check(isBelow(domain, other) || isBelow(other, domain), fmt.Sprintf("cluster.domains[%d]", i),
				quote(domain)+": not apart from "+quote(other), "a name has one domain: leave out one of them", "clusterDomain")
		}
	}
}

// checkFallthrough reports zones that this process does not answer.
func checkFallthrough(d *decoder, c *Config) {
	d.check(len(c.Cluster.Fallthrough) > 0 && c.Cluster.Resolver != ResolverLocal, "cluster.fallthrough",
		"a list: needs cluster.resolver: local, which is "+c.Cluster.Resolver, "", "cluster.resolver")
	for i, zone := range c.Cluster.Fallthrough {
		within := func(domain string) bool { return isBelow(zone, domain) }
		d.check(!slices.ContainsFunc(c.Domains(), within), fmt.Sprintf("cluster.fallthrough[%d]", i),
			quote(zone)+": not in a domain of the cluster", "", "clusterDomain", "cluster.domains")
	}
}

// checkFederations reports federations whose names cannot be answered, and names that are not unique.
func checkFederations(d *decoder, c *Cluster) {
	d.check(len(c.Federations) > 0 && (c.Resolver != ResolverLocal || c.Endpoints != EndpointsAll), "cluster.federations",
		"a list: needs cluster.resolver: local and cluster.endpoints: all", "only when every endpoint is known can a service be known to have none",
		"cluster.resolver", "cluster.endpoints")
	seen := map[string]string{}
	for i, f := range c.Federations {
		path := fmt.Sprintf("cluster.federations[%d]", i)
		d.check(seen[f.Name] != "", path, quote(f.Name)+": already at "+seen[f.Name], "")
		seen[f.Name] = path
	}
}

// isBelow reports whether the absolute name is the zone or below it.
func isBelow(name, zone string) bool { return strings.HasSuffix("."+name, "."+zone) }

// checkClusterSet reports the domain of a cluster set that this process cannot answer, or that another key has.
func checkClusterSet(d *decoder, c *Config) {
	const key = "cluster.clusterSet"
	set := c.Cluster.ClusterSet
	if set == "" {
		return
	}
	d.check(c.Cluster.Resolver != ResolverLocal, key, quote(set)+": needs cluster.resolver: local, which is "+c.Cluster.Resolver,
		"only a process that watches the cluster's objects knows them", "cluster.resolver")
	for _, domain := range c.Domains() {
		d.check(isBelow(set, domain) || isBelow(domain, set), key,
			quote(set)+": overlaps with "+quote(domain), "write another domain, like clusterset.local", "clusterDomain", "cluster.domains")
	}
	route := slices.IndexFunc(c.Forward, func(r Route) bool { return r.Zone == set })
	d.check(route >= 0, fmt.Sprintf("forward[%d].zone", route), fmt.Sprintf("%s: the domain of the cluster set, which this process answers", quote(set)),
		"leave out the route, or cluster.clusterSet", key)
}

// checkExternal reports zones of external names that other names are in, and those of which no name would be answered.
func checkExternal(d *decoder, c *Config) {
	d.check(len(c.Cluster.External.Zones) > 0 && c.Cluster.Resolver != ResolverLocal, "cluster.external.zones",
		"a list: needs cluster.resolver: local, which is "+c.Cluster.Resolver, "leave it out, or set it for node-cache resolver", "cluster.resolver")
	taken := append(c.Domains(), "in-addr.arpa.", "ip6.arpa.")
	if c.Cluster.ClusterSet != "" {
		taken = append(taken, c.Cluster.ClusterSet)
	}
	for i, zone := range c.Cluster.External.Zones {
		path := fmt.Sprintf("cluster.external.zones[%d]", i)
		for _, other := range taken {
			d.check(isBelow(zone, other) || isBelow(other, zone), path,
				quote(zone)+": overlaps with "+quote(other), "choose a domain of which no part is served yet", "clusterDomain", "cluster.domains")
		}
		taken = append(taken, zone)
		routed := slices.Contains(c.Cluster.Zones, zone) || slices.ContainsFunc(c.Forward, func(r Route) bool { return r.Zone == zone })
		d.check(routed && !c.Cluster.External.Fallthrough, path, quote(zone)+": has a route, which is never asked",
			"leave the route out, or set cluster.external.fallthrough: true", "cluster.external.fallthrough")
	}
}
