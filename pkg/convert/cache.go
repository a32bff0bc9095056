// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// The longest TTLs that the configuration accepts.
const (
	day         = 24 * time.Hour
	maxTTL      = 7 * day
	maxNegative = day
)

// defaultCapacity is the default size of CoreDNS's cache, in answers.
const defaultCapacity = 9984

// answerSize is a generous size of an answer in the cache, in bytes.
const answerSize = 512

// cache converts the TTL bounds for the zones of a server, and the options of the whole cache.
func (c *corefile) cache(s *server, st *statement) {
	var bounds ttls
	zones := c.cachedZones(s, st, &bounds)
	for _, option := range st.body {
		args := option.args()
		switch option.words[0] {
		case "success":
			c.capacity(&option)
			bounds.max = c.cacheTTL(&option, 1, maxTTL, bounds.max)
			bounds.min = c.cacheTTL(&option, 2, time.Hour, bounds.min)
		case "denial":
			c.capacity(&option)
			bounds.negative = c.cacheTTL(&option, 1, maxNegative, bounds.negative)
			if len(args) > 2 {
				c.option(st, &option, "answers and denials have one shortest TTL", "see cache.minTTL")
			}
		case "prefetch":
			c.prefetch(&option)
		case "serve_stale":
			c.serveStale(&option)
		case "servfail":
			if d, ok := c.span(&option, strings.Join(args, " "), time.Second, 5*time.Minute); ok && c.setKey("cache.failureTTL", &option, d.String()) {
				c.cfg.Cache.FailureTTL = d
			}
		case "disable":
			c.disable(s, &option)
		case "keepttl":
			c.option(st, &option, "TTLs count down while an answer is kept", "")
		case "serve_stale_policy":
			c.option(st, &option, "the latest answer that is known is given, also when it is a denial", "")
		default:
			c.unknown(st, &option)
		}
	}
	c.limitTTLs(zones, st, bounds)
}

// ttls are bounds on TTLs; nil: not set.
type ttls struct{ min, max, negative *time.Duration }

// cachedZones parses the arguments of cache: a TTL for all, and zones that replace those of the server.
func (c *corefile) cachedZones(s *server, st *statement, bounds *ttls) []string {
	args := st.args()
	if len(args) > 0 {
		if n, err := strconv.Atoi(args[0]); err == nil {
			if d, ok := c.span(st, strconv.Itoa(n), time.Second, maxTTL); ok {
				bounds.max = &d
				negative := min(d, maxNegative)
				bounds.negative = &negative
			}
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return s.zones
	}
	var list []string
	for _, host := range args {
		named, err := zones(fillPlaceholders(host))
		if err != nil {
			c.noteLost(st.at, st.text(), oneLine(err), "")
			continue
		}
		list = append(list, named...)
	}
	return overlap(s.zones, list)
}

// cacheTTL parses an optional TTL argument after the capacity.
func (c *corefile) cacheTTL(option *statement, i int, most time.Duration, before *time.Duration) *time.Duration {
	if len(option.args()) <= i {
		return before
	}
	least := time.Second
	if i == 2 {
		least = 0
	}
	d, ok := c.span(option, option.args()[i], least, most)
	if !ok {
		return before
	}
	return &d
}

// capacity enlarges the cache if the default is too small for that many answers.
func (c *corefile) capacity(option *statement) {
	if len(option.args()) == 0 {
		return
	}
	n, err := strconv.ParseInt(option.args()[0], 10, 32)
	if err != nil || n == defaultCapacity {
		return
	}
	size := min(n*answerSize, 1<<40)
	size = (size + 1<<20 - 1) &^ (1<<20 - 1) // whole MiB
	if size > c.cfg.Cache.Size {
		c.cfg.Cache.Size = size
		c.sources["cache.size"] = option.at.String() + ": " + option.text()
		c.keys["cache.size"] = keySet{at: option.at}
	}
	c.noteDiffers(option.at, "cache: "+option.text(), "the cache is one for all zones and bounded in bytes", "docs/memory.md says what to choose for cache.size")
}

func (c *corefile) prefetch(option *statement) {
	args := option.args()
	if len(args) == 0 {
		c.noteLost(option.at, "cache: prefetch", "the number is missing", "")
		return
	}
	hits, err := strconv.Atoi(args[0])
	if err != nil || hits < 0 || hits > 1_000_000 {
		c.noteLost(option.at, "cache: "+option.text(), "not a number of lookups between 0 and 1000000", "")
		return
	}
	if c.setKey("cache.prefetch.hits", option, args[0]) {
		c.cfg.Cache.Prefetch.Hits = hits
	}
	if len(args) > 1 {
		c.noteDiffers(option.at, "cache: "+option.text(), "lookups count while the answer is held, with gaps or without", "")
	}
	if len(args) > 2 {
		percent, err := strconv.Atoi(strings.TrimSuffix(args[2], "%"))
		if err == nil && percent >= 1 && percent <= 90 && c.setKey("cache.prefetch.remaining", option, args[2]) {
			c.cfg.Cache.Prefetch.Remaining = float64(percent) / 100
		}
	}
}

// serveStale converts how long stale answers are given. They are always refreshed first, for a moment.
func (c *corefile) serveStale(option *statement) {
	args := option.args()
	stale := &c.cfg.Cache.ServeStale
	take := func(i int, path string, least, most time.Duration, dst *time.Duration) {
		if len(args) <= i {
			return
		}
		if d, ok := c.span(option, args[i], least, most); ok && c.setKey(path, option, d.String()) {
			*dst = d
		}
	}
	take(0, "cache.serveStale.for", 0, 3*day, &stale.For)
	ttl := 2
	if len(args) > 1 && args[1] == "verify" {
		ttl = 3
		if len(args) > 2 && args[2] != "0" {
			take(2, "cache.serveStale.after", 10*time.Millisecond, 3*time.Second, &stale.After)
		}
	} else {
		c.noteDiffers(option.at, "cache: "+option.text(), "upstreams have a moment to answer before a stale answer is given", "cache.serveStale.after is that time")
	}
	take(ttl, "cache.serveStale.ttl", time.Second, 5*time.Minute, &stale.TTL)
	stale.For, stale.TTL = stale.For.Truncate(time.Second), stale.TTL.Truncate(time.Second)
}

// disable keeps zones out of the cache. This is possible only for answers and denials together.
func (c *corefile) disable(s *server, option *statement) {
	args := option.args()
	if len(args) == 0 {
		c.noteLost(option.at, "cache: disable", "it says neither success nor denial", "")
		return
	}
	key := strings.Join(append([]string{s.zones[0]}, args[1:]...), " ")
	if c.disabled == nil {
		c.disabled = map[string]string{}
	}
	before := c.disabled[key]
	c.disabled[key] = args[0]
	if before == "" || before == args[0] {
		c.halfDisabled = append(c.halfDisabled, sourced[string]{key, option.at, "cache: " + option.text()})
		return
	}
	c.halfDisabled = slices.DeleteFunc(c.halfDisabled, func(h sourced[string]) bool { return h.value == key })
	hosts := args[1:]
	if len(hosts) == 0 {
		hosts = s.zones
	}
	for _, host := range hosts {
		list, err := zones(fillPlaceholders(host))
		if err != nil {
			c.noteLost(option.at, "cache: "+option.text(), oneLine(err), "")
			continue
		}
		for _, zone := range list {
			c.changeRoute(zone, option, func(r *route) { r.NoCache = true })
		}
	}
}

// noteHalfDisabled notes zones whose answers or denials alone were kept out of the cache.
func (c *corefile) noteHalfDisabled() {
	for _, h := range c.halfDisabled {
		c.noteLost(h.at, h.text, "answers and denials of a zone are kept, or neither", "cache: off in the route of the zone keeps neither; negativeTTL bounds denials")
	}
}

// limitTTLs sets the bounds on TTLs: for the root zone in the cache itself, for others in their routes.
func (c *corefile) limitTTLs(zones []string, st *statement, b ttls) {
	if b == (ttls{}) {
		return
	}
	for _, zone := range zones {
		if zone == "." {
			c.limitCacheTTLs(st, b)
			continue
		}
		isCluster := c.cluster.domain == zone || c.cluster.central && isReverse(zone)
		if isCluster {
			if c.firstTime("cluster's bounds") {
				c.clusterBounds(st)
			}
			continue
		}
		c.changeRoute(zone, st, func(r *route) { r.ttls = b })
	}
}

// clusterBounds notes how long cluster names are cached.
func (c *corefile) clusterBounds(st *statement) {
	if c.cluster.local {
		c.noteDiffers(st.at, st.text(), "the names of the cluster come from the API and are not cached", "cluster.ttl sets the TTL for clients")
		return
	}
	c.noteDiffers(st.at, st.text(), "the names of the cluster have the bounds of the whole cache", "cluster.invalidate removes names that change in the cluster")
}

// limitCacheTTLs sets the bounds of the cache, which routes without own bounds inherit.
func (c *corefile) limitCacheTTLs(st *statement, b ttls) {
	cache := &c.cfg.Cache
	for _, key := range []struct {
		path       string
		dst, value *time.Duration
	}{
		{"cache.minTTL", &cache.MinTTL, b.min}, {"cache.maxTTL", &cache.MaxTTL, b.max}, {"cache.negativeTTL", &cache.NegativeTTL, b.negative},
	} {
		if key.value != nil && c.setKey(key.path, st, key.value.String()) {
			*key.dst = *key.value
		}
	}
	cache.MinTTL = min(cache.MinTTL, cache.MaxTTL)
}

// fill sets the bounds that a route does not have itself.
func (t *ttls) fill(r *config.Route, cache *config.Cache) {
	r.MinTTL, r.MaxTTL, r.NegativeTTL = cache.MinTTL, cache.MaxTTL, cache.NegativeTTL
	for _, b := range []struct{ dst, value *time.Duration }{{&r.MinTTL, t.min}, {&r.MaxTTL, t.max}, {&r.NegativeTTL, t.negative}} {
		if b.value != nil {
			*b.dst = *b.value
		}
	}
	r.MinTTL = min(r.MinTTL, r.MaxTTL)
}

// changeRoute changes the route of a zone. A zone without a route gets a copy of the one that its names use.
func (c *corefile) changeRoute(zone string, st *statement, how func(*route)) {
	if c.cluster.domain != "" && below(zone, c.cluster.domain) {
		if !c.cluster.local { // otherwise nothing of it is cached
			c.noteLost(st.at, st.text(), "the names of the cluster are cached like all others", "cluster.invalidate removes names that change in the cluster")
		}
		return
	}
	best := -1
	for i, r := range c.routes {
		if below(zone, r.Zone) && (best < 0 || len(r.Zone) > len(c.routes[best].Zone)) {
			best = i
		}
	}
	if best < 0 {
		c.noteLost(st.at, st.text(), "there is no route for "+zone, "")
		return
	}
	if c.routes[best].Zone != zone {
		r := c.routes[best]
		r.Zone, r.at, r.text, r.early = zone, st.at, st.text(), false
		r.To = slices.Clone(r.To)
		c.routes = append(c.routes, r)
		best = len(c.routes) - 1
	}
	how(&c.routes[best])
}
