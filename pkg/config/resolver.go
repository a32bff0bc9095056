// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"strconv"
)

// checkResolver reports settings with which a central resolver does not know the cluster, or asks another central resolver.
func checkResolver(d *decoder, c *Cluster) {
	d.check(c.Resolver != ResolverLocal, "cluster.resolver",
		quote(c.Resolver)+": not local, the only value for node-cache resolver", "leave it out")
	refuse := func(set bool, key, value string) {
		d.check(set, "cluster.central."+key, value+": not for node-cache resolver",
			"leave it out: the resolver is the central one and asks no other")
	}
	refuse(c.Central.Service != ServiceName{}, "service", quote(c.Central.Service.String()))
	refuse(len(c.Central.Addresses) > 0, "addresses", "a list")
	refuse(c.Central.Headless != ServiceName{}, "headless", quote(c.Central.Headless.String()))
	d.check(len(c.Zones) > 0, "cluster.zones", "a list: not for node-cache resolver", "write a route for each zone in forward")
	standard := Default(Resolver).Cluster.Central
	refuse(c.Central.CentralTLS != standard.CentralTLS, "tls", "a section")
	refuse(c.Central.Connections != standard.Connections, "connections", strconv.Itoa(c.Central.Connections))
}

// checkNoNode reports link, rules and handover in the configuration of a central resolver.
func checkNoNode(d *decoder, c *Config) {
	standard := Default(Resolver)
	const what, hint = "not for node-cache resolver", "leave it out: the agent of each node has a link and rules"
	d.check(c.Interface != standard.Interface, "interface", what, hint)
	d.check(!reflect.DeepEqual(c.Pods, standard.Pods), "pods", what, "leave it out: pods ask the agent of their node")
	d.check(c.Kernel != standard.Kernel, "kernel", what, hint)
	d.check(c.Handover != standard.Handover, "handover", what,
		"leave it out: a resolver has an address of its own, and others beside it")
	d.check(!reflect.DeepEqual(c.Intercept, standard.Intercept), "intercept", what, hint)
}
