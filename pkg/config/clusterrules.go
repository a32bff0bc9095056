// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strconv"
)

// checkCluster reports settings of the cluster that contradict each other, of an agent or a central resolver.
func checkCluster(c *Cluster, r *report) {
	checkOneOf(r, "cluster.kubeconfig", "cluster.manifests", c.Kubeconfig != "", c.Manifests != "",
		"objects come from an API server or from a folder")
	checkOneOf(r, "cluster.namespaces", "cluster.namespaceSelector", len(c.Namespaces) > 0, c.NamespaceSelector != "",
		"list the namespaces or select them")
	checkInvalidate(c, r)
	if c.IgnoreEmptyService && c.Endpoints != EndpointsAll && r.clean("cluster.ignoreEmptyService", "cluster.endpoints") {
		r.add(Problem{
			Path: "cluster.ignoreEmptyService", What: "true: needs cluster.endpoints: all, which is " + c.Endpoints.String(),
			Hint: "only when every endpoint is known can a service be known to have none",
		})
	}
}

// checkInvalidate reports a watch for a cache whose process has a view of the API anyhow, or no central resolver.
func checkInvalidate(c *Cluster, r *report) {
	if !c.Invalidate || c.Resolver == ResolverCentral || !r.clean("cluster.invalidate", "cluster.resolver") {
		return
	}
	hint := "leave it out: what changes in the view that answers here is dropped anyhow"
	if c.Resolver == ResolverNone {
		hint = "set cluster.resolver: central, and name the central resolver in cluster.central"
	}
	r.add(Problem{
		Path: "cluster.invalidate", What: "true: needs cluster.resolver: central, which is " + c.Resolver.String(), Hint: hint,
	})
}

// checkOneOf reports two keys that must not both be set.
func checkOneOf(r *report, first, second string, firstSet, secondSet bool, hint string) {
	if firstSet && secondSet && r.clean(first, second) {
		r.add(Problem{Path: second, What: "set beside " + first, Hint: hint})
	}
}

// checkCentral reports a central resolver that is missing or named twice.
func checkCentral(c *Cluster, r *report) {
	checkOneOf(r, "cluster.central.service", "cluster.central.addresses",
		c.Central.Service != ServiceName{}, len(c.Central.Addresses) > 0,
		"the endpoints of the service are followed: keep the addresses only where there is no service")
	if c.Resolver == ResolverCentral && !c.Central.IsSet() && r.clean("cluster.resolver", "cluster.central") {
		r.add(Problem{
			Path: "cluster.resolver", What: `"central": needs cluster.central.service or cluster.central.addresses`,
			Hint: "say who is asked, like central: {service: kube-system/kube-dns}",
		})
	}
}

// checkResolver reports what leaves a central resolver without its duty, or gives it another one above it.
func checkResolver(c *Cluster, r *report) {
	if c.Resolver != ResolverLocal && r.clean("cluster.resolver") {
		r.add(Problem{
			Path: "cluster.resolver", What: quote(c.Resolver.String()) + ": not local, the only value for node-cache resolver",
			Hint: "leave it out",
		})
	}
	const hint = "leave it out: the resolver is the central one and asks no other"
	reject := func(key, shown string, set bool) {
		if path := "cluster.central." + key; set && r.clean(path) {
			r.add(Problem{Path: path, What: shown + ": not for node-cache resolver", Hint: hint})
		}
	}
	standard := Default(Resolver).Cluster.Central.Connections
	reject("service", quote(c.Central.Service.String()), c.Central.Service != ServiceName{})
	reject("addresses", "a list", len(c.Central.Addresses) > 0)
	reject("connections", strconv.Itoa(c.Central.Connections), c.Central.Connections != standard)
}

// checkClusterRoute reports a route for the whole of a domain that is not forwarded.
// One for a name below it is a stub zone.
func checkClusterRoute(c *Config, role Role, r *report) {
	i := slices.IndexFunc(c.Forward, func(route Route) bool { return route.Zone == c.ClusterDomain })
	if i < 0 || c.Cluster.Resolver == ResolverNone || !r.clean("clusterDomain", "cluster.resolver") {
		return
	}
	hint := "name those who are asked for it in cluster.central"
	if role == Resolver {
		hint = "leave the route out: one for a name below the domain may stay"
	}
	r.add(Problem{
		Path: fmt.Sprintf("forward[%d].zone", i),
		What: fmt.Sprintf("%s: the cluster domain, which cluster.resolver: %s answers", quote(c.ClusterDomain), c.Cluster.Resolver),
		Hint: hint,
	})
}
