// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

// checkExternal reports zones of external names that other names are in, and those of which no name would be answered.
func checkExternal(d *decoder, c *Config) {
	d.check(c.Cluster.Resolver != ResolverLocal, "cluster.external.zones",
		"a list: needs cluster.resolver: local, which is "+c.Cluster.Resolver, "leave it out, or set it for node-cache resolver", "cluster.resolver")
	others := []string{c.ClusterDomain, "in-addr.arpa.", "ip6.arpa."}
	for i, zone := range c.Cluster.External.Zones {
		path := fmt.Sprintf("cluster.external.zones[%d]", i)
		for _, other := range slices.Concat(others, c.Cluster.External.Zones[:i]) {
			d.check(dns.IsSubDomain(other, zone) || dns.IsSubDomain(zone, other), path,
				quote(zone)+": overlaps with "+quote(other), "choose a domain of which no part is served yet", "clusterDomain")
		}
		routed := slices.Contains(c.Cluster.Zones, zone) || slices.ContainsFunc(c.Forward, func(r Route) bool { return r.Zone == zone })
		d.check(routed && !c.Cluster.External.Fallthrough, path, quote(zone)+": has a route, which is never asked",
			"leave the route out, or set cluster.external.fallthrough: true", "cluster.external.fallthrough")
	}
}
