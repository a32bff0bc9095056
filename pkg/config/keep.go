// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"

	"github.com/miekg/dns"
)

// maxKept bounds cache.keep.names; the cache has room for as many.
const maxKept = 64

// checkKeep reports names of cache.keep that cannot be kept.
func checkKeep(d *decoder, c *Config) {
	names := c.Cache.Keep.Names
	d.check(len(names) > maxKept, "cache.keep.names", fmt.Sprintf("%d names: at most %d", len(names), maxKept),
		"list the names without which nodes cannot heal, such as the registry and the identity provider")
	for i, name := range names {
		path := fmt.Sprintf("cache.keep.names[%d]", i)
		best := -1
		for r := range c.Forward {
			zone := c.Forward[r].Zone
			if dns.IsSubDomain(zone, name) && (best < 0 || len(zone) > len(c.Forward[best].Zone)) {
				best = r
			}
		}
		d.check(best >= 0 && c.Forward[best].NoCache, path, quote(name)+": its route has cache: off", "leave out one of them", fmt.Sprintf("forward[%d].cache", max(best, 0)))
	}
}
