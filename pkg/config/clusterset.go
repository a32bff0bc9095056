// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

// parseClusterSet is parseDomain for a domain that may be missing.
func parseClusterSet(text string) (string, *Problem) {
	switch text {
	case "":
		return "", nil
	case ".":
		return "", problem("not the name of a domain", "write the domain of the cluster set, like clusterset.local")
	}
	return parseDomain(text)
}

// checkClusterSet reports the domain of a cluster set that this process cannot answer, or that another key has.
func checkClusterSet(d *decoder, c *Config) {
	set := c.Cluster.ClusterSet
	if set == "" {
		return
	}
	const key = "cluster.clusterSet"
	within := func(a, b string) bool { return strings.HasSuffix("."+a, "."+b) }
	d.check(c.Cluster.Resolver != ResolverLocal, key, quote(set)+": needs cluster.resolver: local, which is "+c.Cluster.Resolver,
		"only a process that watches the cluster's objects knows them", "cluster.resolver")
	d.check(within(set, c.ClusterDomain) || within(c.ClusterDomain, set), key,
		fmt.Sprintf("%s: overlaps the cluster domain, %s", quote(set), c.ClusterDomain), "write another domain, like clusterset.local", "clusterDomain")
	route := slices.IndexFunc(c.Forward, func(r Route) bool { return r.Zone == set })
	d.check(route >= 0, fmt.Sprintf("forward[%d].zone", route), fmt.Sprintf("%s: the domain of the cluster set, which this process answers", quote(set)),
		"leave out the route, or cluster.clusterSet", key)
}
