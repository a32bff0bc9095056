// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// checkNames reports further domains and zones of the cluster whose names cannot be answered.
func checkNames(d *decoder, c *Config) {
	checkDomains(d, c)
	checkFallthrough(d, c)
	checkFederations(d, &c.Cluster)
	checkClusterSet(d, c)
	checkExternal(d, c)
}

// UnservedZones returns the zones and names that theirs, the configuration of another server, answers or has routes for, and that c
// sends to its default route; never nil.
func (c *Config) UnservedZones(theirs *Config) []string {
	if slices.Contains(c.Cluster.Zones, ".") { // all names without a route go to the central resolver
		return []string{}
	}
	served := map[string]bool{}
	for _, zone := range append(c.servedZones(), c.Cluster.Zones...) {
		served[zone] = true
	}
	return slices.DeleteFunc(theirs.servedZones(), func(name string) bool {
		return slices.ContainsFunc(dns.Split(name), func(label int) bool { return served[name[label:]] })
	})
}

// servedZones returns the zones and names that do not go to the default route.
func (c *Config) servedZones() []string {
	zones := slices.Sorted(maps.Keys(c.Hosts.Names))
	if c.Cluster.Resolver != ResolverNone {
		zones = append(zones, c.Domains()...)
	}
	for _, r := range c.Forward {
		zones = append(zones, r.Zone)
	}
	for _, t := range c.Templates {
		if _, isHost := c.Hosts.Names[t.Zone]; !isHost {
			zones = append(zones, t.Zone)
		}
	}
	for _, r := range c.Rewrite {
		zones = append(zones, dns.CanonicalName(r.Exact+strings.TrimPrefix(r.Suffix, ".")))
	}
	return slices.DeleteFunc(zones, func(zone string) bool { return zone == "." })
}

// reverseTrees are the zones of reverse names.
func reverseTrees() []string { return []string{"in-addr.arpa.", "ip6.arpa."} }

// checkDomains reports domains without a resolver of the cluster, and domains that overlap.
func checkDomains(d *decoder, c *Config) {
	d.check(len(c.Cluster.Domains) > 0 && c.Cluster.Resolver == ResolverNone, "cluster.domains",
		"a list: needs cluster.resolver: local or central", "", "cluster.resolver")
	taken := append(reverseTrees(), c.Domains()...)
	for i, domain := range c.Cluster.Domains {
		for _, other := range taken[:len(reverseTrees())+1+i] {
			d.check(isBelow(domain, other) || isBelow(other, domain), fmt.Sprintf("cluster.domains[%d]", i),
				quote(domain)+": not apart from "+quote(other), "a name has one domain: leave out one of them", "clusterDomain")
		}
	}
}

// checkFallthrough reports zones in cluster.fallthrough that are outside the cluster's domains, and any such list unless
// cluster.resolver is local.
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

// isBelow reports whether the absolute name is the zone or below it. A name that could not be read is empty, and is neither.
func isBelow(name, zone string) bool { return zone != "" && strings.HasSuffix("."+name, "."+zone) }

// checkClusterSet reports a domain in cluster.clusterSet that this process cannot answer, or that another key has.
func checkClusterSet(d *decoder, c *Config) {
	const key = "cluster.clusterSet"
	set := c.Cluster.ClusterSet
	if set == "" {
		return
	}
	d.check(c.Cluster.Resolver != ResolverLocal, key, quote(set)+": needs cluster.resolver: local, which is "+c.Cluster.Resolver,
		"only a process that watches the cluster's objects knows them", "cluster.resolver")
	for _, domain := range append(reverseTrees(), c.Domains()...) {
		d.check(isBelow(set, domain) || isBelow(domain, set), key,
			quote(set)+": overlaps with "+quote(domain), "write another domain, like clusterset.local", "clusterDomain", "cluster.domains")
	}
	route := slices.IndexFunc(c.Forward, func(r Route) bool { return r.Zone == set })
	d.check(route >= 0, fmt.Sprintf("forward[%d].zone", route), fmt.Sprintf("%s: the domain of the cluster set, which this process answers", quote(set)),
		"leave out the route, or cluster.clusterSet", key)
}

// checkExternal reports external zones that overlap with other zones of this process, or whose names or route are never used.
func checkExternal(d *decoder, c *Config) {
	d.check(len(c.Cluster.External.Zones) > 0 && c.Cluster.Resolver != ResolverLocal, "cluster.external.zones",
		"a list: needs cluster.resolver: local, which is "+c.Cluster.Resolver, "leave it out, or set it for node-cache resolver", "cluster.resolver")
	d.check((c.Cluster.External.Headless || c.Cluster.External.Fallthrough) && len(c.Cluster.External.Zones) == 0, "cluster.external",
		"a section: needs cluster.external.zones", "name the zones of the names, like zones: [example.org]", "cluster.external.zones")
	taken := append(reverseTrees(), c.Domains()...)
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

// checkContext reports a context that the kubeconfig does not have. A kubeconfig that cannot be read is reported at the start.
func checkContext(d *decoder, c *Cluster) {
	var file struct {
		Contexts []struct{ Name string }
	}
	text, err := filewatch.ReadFile(c.Kubeconfig, maxBytes)
	if err != nil || yaml.Unmarshal(text, &file) != nil {
		return
	}
	names := make([]string, len(file.Contexts))
	for i, context := range file.Contexts {
		names[i] = context.Name
	}
	d.check(!slices.Contains(names, c.Context), "cluster.context", quote(c.Context)+": not a context of "+c.Kubeconfig,
		fmt.Sprintf("it has %q", names), "cluster.kubeconfig")
}

// checkEtcd reports what contradicts itself in the section etcd.
func checkEtcd(d *decoder, c *Config) {
	e, on := &c.Etcd, len(c.Etcd.Endpoints) > 0
	d.check(on && len(e.Zones) == 0, "etcd.endpoints", "a list: needs etcd.zones", "name the zones of the records, like zones: [skydns.local]", "etcd.zones")
	d.check(!on && len(e.Zones) > 0, "etcd.zones", "a list: needs etcd.endpoints", "name the servers, like endpoints: [\"http://127.0.0.1:2379\"]", "etcd.endpoints")
	d.check((e.Cert == "") != (e.Key == ""), "etcd.tls.cert", "one of cert and key", "name both files, or none")
	d.check((e.User == "") != (e.PasswordFile == ""), "etcd.user", "one of user and passwordFile", "name both, or none")
	checkEtcdZones(d, c)
	encrypted := on && strings.HasPrefix(e.Endpoints[0], "https:")
	for i, endpoint := range e.Endpoints {
		d.check(strings.HasPrefix(endpoint, "https:") != encrypted, fmt.Sprintf("etcd.endpoints[%d]", i),
			quote(endpoint)+": not over the protocol of the first", "write all of them with https:// or with http://", "etcd.endpoints[0]")
	}
	d.check(on && !encrypted && e.EtcdTLS != EtcdTLS{}, "etcd.tls", "a section: no server is asked over https", "leave it out, or write https:// in etcd.endpoints", "etcd.endpoints")
}

// checkEtcdZones reports zones without fallthrough that have other names of this process: etcd comes first, and would deny them.
func checkEtcdZones(d *decoder, c *Config) {
	var served []string
	if c.Cluster.Resolver != ResolverNone {
		served = slices.Concat(c.Domains(), c.Cluster.External.Zones, []string{c.Cluster.ClusterSet})
	}
	for i, zone := range c.Etcd.Zones {
		in := slices.IndexFunc(served, func(name string) bool { return name != "" && (zone == "." || isBelow(name, zone)) })
		if in >= 0 && !c.Etcd.Fallthrough {
			d.check(true, fmt.Sprintf("etcd.zones[%d]", i), quote(zone)+": the names of "+quote(served[in])+" are in it, and would be asked of etcd alone",
				"choose a zone of its own, or set etcd.fallthrough: on", "clusterDomain", "cluster")
		}
	}
}
