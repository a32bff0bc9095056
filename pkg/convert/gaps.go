// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"

	"github.com/nodecache/node-cache/pkg/config"
)

// A Gap is what the cluster's DNS does, and an agent with another configuration does not.
type Gap struct {
	What  string   // with the names it is complete: "WHAT: NAME, NAME"
	Names []string // sorted, never empty
	Fix   string
}

// NoGap says that there is none.
const NoGap = "the agent serves what the cluster's DNS serves"

// Gaps compares r, the configuration of the cluster's DNS, with an agent's. The result is never nil.
func (r *Result) Gaps(agent *config.Config) []Gap {
	if slices.Contains(agent.Cluster.Zones, ".") { // the cluster's DNS is asked for all names without a route
		return []Gap{}
	}
	var lines []string
	for _, n := range r.Notes {
		if !n.Kept && !routes(agent, r.blocks[place{n.File, n.Line}]) {
			lines = append(lines, n.What)
		}
	}
	without := func(theirs, ours []string) []string {
		return slices.DeleteFunc(slices.Clone(theirs), func(s string) bool { return slices.Contains(ours, s) })
	}
	gaps := []Gap{
		{"names that the cluster's DNS serves go to the default route", agent.UnservedZones(&r.Config), "list them in cluster.zones, or give them a route"},
		{"names in files of the cluster's DNS go to the default route", without(r.Config.Hosts.Files, agent.Hosts.Files), "mount the files as in docs/migrating.md"},
		{"lines of the Corefile have no counterpart", lines, "where they make answers, list the zones in cluster.zones"},
		{"only the cluster's DNS asks these servers for other names", without(defaultServers(&r.Config), defaultServers(agent)), "set forward in the agent's configuration"},
	}
	for i := range gaps {
		g := &gaps[i]
		slices.Sort(g.Names)
		g.Names = slices.Compact(g.Names)
		g.Fix += "; `node-cache convert` prints a configuration, and says what it leaves out"
	}
	return slices.DeleteFunc(gaps, func(g Gap) bool { return len(g.Names) == 0 })
}

// routes reports whether no name of some zones, of which there are any, goes to the default route.
func routes(agent *config.Config, zones []string) bool {
	var block config.Config
	block.Cluster.Resolver = config.ResolverNone
	for _, zone := range zones {
		block.Forward = append(block.Forward, config.Route{Zone: zone})
	}
	return len(zones) > 0 && !slices.Contains(zones, ".") && len(agent.UnservedZones(&block)) == 0
}

// defaultServers returns the servers of the default route, but those of the node.
func defaultServers(c *config.Config) (list []string) {
	for _, r := range c.Forward {
		for _, to := range r.To {
			if r.Zone == "." && to.Kind != config.ResolvConf && to.Kind != config.None {
				list = append(list, to.String())
			}
		}
	}
	return list
}
