// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"
)

// inherited stands, while a text is read, for a key that is not in it and whose default is the value of another key.
const inherited = -1

// inherit marks what c has from other keys of its own.
func (c *Config) inherit() {
	for i := range c.Forward {
		c.Forward[i].inherit()
	}
}

// inherit marks what r has from the keys of the cache.
func (r *Route) inherit() { r.MinTTL, r.MaxTTL, r.NegativeTTL = inherited, inherited, inherited }

// settle gives every marked key its value, and reports bounds that contradict each other then.
func (c *Config) settle(r *report) {
	for i := range c.Forward {
		route := &c.Forward[i]
		path := fmt.Sprintf("forward[%d].", i)
		low := settleTTL(&route.MinTTL, c.Cache.MinTTL, path, "minTTL")
		high := settleTTL(&route.MaxTTL, c.Cache.MaxTTL, path, "maxTTL")
		settleTTL(&route.NegativeTTL, c.Cache.NegativeTTL, path, "negativeTTL")
		if low != "cache.minTTL" || high != "cache.maxTTL" { // that pair has a rule of its own
			checkTTLs(r, route, low, high, path)
		}
	}
}

// settleTTL gives dst the value of the cache's key if it has none, and returns the key that its value is from.
func settleTTL(dst *time.Duration, cache time.Duration, path, key string) string {
	if *dst != inherited {
		return path + key
	}
	*dst = cache
	return "cache." + key
}

// checkTTLs reports the bounds of a route where the lower is above the upper. The key to blame is one of the route.
func checkTTLs(r *report, route *Route, low, high, path string) {
	if route.MinTTL <= route.MaxTTL || !r.clean(path+"minTTL", path+"maxTTL", "cache.minTTL", "cache.maxTTL") {
		return
	}
	least, most := formatDuration(route.MinTTL), formatDuration(route.MaxTTL)
	p := Problem{Path: low, What: fmt.Sprintf("%s: more than %s, which is %s", least, high, most)}
	switch {
	case low == "cache.minTTL":
		p = Problem{Path: high, What: fmt.Sprintf("%s: less than %s, which is %s", most, low, least), Hint: "set " + path + "minTTL as well"}
	case high == "cache.maxTTL":
		p.Hint = "set " + path + "maxTTL as well"
	}
	r.add(p)
}
