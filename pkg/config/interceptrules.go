// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// checkNode reports what contradicts itself in the settings of link and rules.
func checkNode(c *Config, r *report) {
	if c.Interface.Manage && r.clean("interface.manage", "listen.addresses") {
		checkHeld(c, r, "interface.manage")
	}
	checkMode(&c.Intercept, r)
	if !c.Intercept.Manage || !r.clean("intercept", "listen.addresses") {
		return
	}
	checkHeld(c, r, "intercept.manage")
	if c.Intercept.Mode == ModeTransparent {
		checkTransparent(c, r)
	} else {
		checkFallback(c, r)
	}
}

// checkHeld reports listen addresses that no link of the agent can have, and no rule can name.
func checkHeld(c *Config, r *report, path string) {
	const hint = "listen on addresses of the agent's own, like 169.254.20.10"
	for i, a := range c.Listen.Addresses {
		what := ""
		switch {
		case a.IsUnspecified():
			what = "which stands for all addresses"
		case a.IsLoopback():
			what = "a loopback address"
		case a.Zone() != "":
			what = "which is bound to a link"
		default:
			continue
		}
		r.add(Problem{Path: path, What: fmt.Sprintf("true: not with listen.addresses[%d], %s, %s", i, quote(a.String()), what), Hint: hint})
		return
	}
}

// checkMode reports keys that the mode leaves without a meaning.
func checkMode(i *Intercept, r *report) {
	if !r.clean("intercept.mode") {
		return
	}
	reject := func(path, what, hint string, set bool) {
		if set && r.clean(path) {
			r.add(Problem{Path: path, What: what, Hint: hint})
		}
	}
	if i.Mode == ModeLinkLocal {
		reject("intercept.services", "a list: needs intercept.mode: transparent, which is "+i.Mode.String(),
			"with link-local the pods ask listen.addresses: leave it out", len(i.Services) > 0)
		return
	}
	reject("intercept.fallback", "a list: not with intercept.mode: transparent",
		"leave it out: queries that the agent does not take go where they are addressed to", len(i.Fallback.Addresses) > 0)
	reject("intercept.onExit", quote(i.OnExit.String())+": not with intercept.mode: transparent",
		"write remove, or leave it out: without the rules queries go where they are addressed to", i.OnExit == ExitFallback)
}

// checkTransparent reports service addresses that are missing, or of a family without a listen address.
func checkTransparent(c *Config, r *report) {
	if c.Listen.Port != 53 && r.clean("listen.port") {
		r.add(Problem{
			Path: "intercept.mode", What: fmt.Sprintf(`"transparent": needs listen.port 53, which is %d`, c.Listen.Port),
			Hint: "pods ask the service at port 53, and the rules leave the port as it is",
		})
	}
	if len(c.Intercept.Services) == 0 && c.Cluster.Central.Service == (ServiceName{}) && r.clean("cluster.central") {
		r.add(Problem{
			Path: "intercept.mode", What: `"transparent": needs intercept.services or cluster.central.service`,
			Hint: "say whose address the pods ask, like services: [10.96.0.10]",
		})
	}
	for i, s := range c.Intercept.Services {
		p := Problem{Path: fmt.Sprintf("intercept.services[%d]", i)}
		switch {
		case slices.Contains(c.Listen.Addresses, s):
			p.What, p.Hint = quote(s.String())+": a listen address", "listen on an address of the agent's own, like 169.254.20.10"
		case !slices.ContainsFunc(c.Listen.Addresses, func(a netip.Addr) bool { return a.Is4() == s.Is4() }):
			p.What, p.Hint = quote(s.String())+": no listen address is of its family", "add one to listen.addresses"
		default:
			continue
		}
		r.add(p)
	}
}

// checkFallback reports a fallback that is missing, is the agent itself, or is an address that packets of pods
// cannot reach.
func checkFallback(c *Config, r *report) {
	if c.Intercept.Fallback.Central && !c.Cluster.Central.IsSet() && r.clean("cluster.central") {
		r.add(Problem{
			Path: "intercept.fallback", What: "central: needs cluster.central.service or cluster.central.addresses",
			Hint: "name the central resolver there, addresses in a list here, or write none",
		})
	}
	for i, a := range c.Intercept.Fallback.Addresses {
		if a.Addr().IsLoopback() {
			r.add(Problem{
				Path: fmt.Sprintf("intercept.fallback[%d]", i), What: quote(a.String()) + ": a loopback address, which no packet from elsewhere gets to",
				Hint: "name a server by an address that pods could ask it at",
			})
		}
		if slices.Contains(c.Listen.Addresses, a.Addr()) {
			r.add(Problem{
				Path: fmt.Sprintf("intercept.fallback[%d]", i), What: quote(a.String()) + ": a listen address",
				Hint: "name a server that answers when this agent does not",
			})
		}
	}
}

// checkNoNode reports link, rules and hand-over in the plan of a central resolver.
func checkNoNode(c *Config, r *report) {
	standard := Default(Resolver)
	reject := func(key, hint string, same bool) {
		if !same && r.clean(key) {
			r.add(Problem{Path: key, What: "not for node-cache resolver", Hint: hint})
		}
	}
	const hint = "leave it out: the agent of each node has a link and rules"
	reject("interface", hint, c.Interface == standard.Interface)
	reject("handover", "leave it out: a resolver has an address of its own, and others beside it", c.Handover == standard.Handover)
	reject("intercept", hint, reflect.DeepEqual(c.Intercept, standard.Intercept))
}
