// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// Bounds and sizes of the cache.
const (
	day             = 24 * time.Hour
	maxTTL          = 7 * day
	maxNegative     = day
	defaultCapacity = 9984 // CoreDNS's default capacity, in answers
	answerSize      = 512  // a generous size of an answer, in bytes
)

// ttls are bounds on TTLs; nil: not set.
type ttls struct{ min, max, negative *time.Duration }

// cache converts the TTL bounds for the zones of a server, and the options of the whole cache.
func cache(l *line) {
	cfg, bounds, zones := &l.c.cfg.Cache, ttls{}, l.s.zones
	if l.c.Faithful { // the defaults of CoreDNS
		bounds = ttls{new(5 * time.Second), new(time.Hour), new(30 * time.Minute)}
	}
	hosts := l.args()
	if n, err := strconv.Atoi(l.arg(0, "")); err == nil {
		if d, ok := l.duration(strconv.Itoa(n), time.Second, maxTTL); ok {
			negative := min(d, maxNegative)
			bounds.max, bounds.negative = &d, &negative
		}
		hosts = hosts[1:]
	}
	if len(hosts) > 0 {
		zones = overlap(zones, l.zones(hosts))
	}
	// ttl sets a bound to argument i, if that is given. Argument 0 is the capacity.
	ttl := func(l *line, i int, least, most time.Duration, to **time.Duration) {
		if i < len(l.args()) {
			if d, ok := l.duration(l.args()[i], least, most); ok {
				*to = &d
			}
		}
	}
	l.options(
		directive{names: "success", take: func(l *line) {
			capacity(l)
			ttl(l, 1, time.Second, maxTTL, &bounds.max)
			ttl(l, 2, 0, time.Hour, &bounds.min)
		}},
		directive{names: "denial", take: func(l *line) {
			capacity(l)
			ttl(l, 1, time.Second, maxNegative, &bounds.negative)
			if len(l.args()) > 2 {
				l.lost("answers and denials have one shortest TTL", "see cache.minTTL")
			}
		}},
		directive{names: "prefetch", take: prefetch},
		directive{names: "serve_stale", take: serveStale},
		duration("servfail", "cache.failureTTL", time.Second, 5*time.Minute, &cfg.FailureTTL),
		directive{names: "disable", take: disable},
		lost("keepttl", "TTLs count down while an answer is kept", ""),
		lost("serve_stale_policy", "the latest answer that is known is given, also when it is a denial", ""),
	)
	if bounds.negative == nil && l.c.firstTime("denials") {
		l.differs("denials are cached for 30s at most, for 30m there", "cache.negativeTTL: 30m, or --faithful")
	}
	if bounds != (ttls{}) {
		limitZoneTTLs(l, zones, bounds)
	}
}

// limitZoneTTLs sets the TTL bounds of zones: in section cache for the root, or for a cluster domain that is cached; else in routes.
func limitZoneTTLs(l *line, zones []string, bounds ttls) {
	c := l.c
	for _, zone := range zones {
		isCluster := c.clusterZone == zone || c.central != nil && isReverse(zone)
		switch {
		case zone == "." && c.central == nil: // section cache, from which routes without bounds of their own inherit
			limitCacheTTLs(l, bounds)
		case isCluster && c.servesCluster && c.firstTime("cluster's bounds"):
			l.differs("the names of the cluster come from the API and are not cached", "cluster.ttl sets the TTL for clients")
		case zone == c.clusterZone: // section cache is for names of the cluster; lists sets the bounds of the routes
			limitCacheTTLs(l, bounds)
		case isCluster:
		default:
			l.s.changeRoute(zone, l, func(r *route) { r.ttls = bounds })
		}
	}
}

// limitCacheTTLs sets the bounds of the cache.
func limitCacheTTLs(l *line, b ttls) {
	cache := &l.c.cfg.Cache
	for _, key := range []struct {
		path      string
		to, value *time.Duration
	}{
		{"cache.minTTL", &cache.MinTTL, b.min}, {"cache.maxTTL", &cache.MaxTTL, b.max}, {"cache.negativeTTL", &cache.NegativeTTL, b.negative},
	} {
		if key.value != nil && l.set(key.path, key.value.String()) {
			*key.to = *key.value
		}
	}
	cache.MinTTL = min(cache.MinTTL, cache.MaxTTL)
}

// fill sets the bounds of a route: its own, or those of the route of the root, or those of the cache.
func (t *ttls) fill(r *config.Route, root *ttls, cache *config.Cache) {
	r.MaxTTL, r.NegativeTTL = *cmp.Or(t.max, root.max, &cache.MaxTTL), *cmp.Or(t.negative, root.negative, &cache.NegativeTTL)
	r.MinTTL = min(*cmp.Or(t.min, root.min, &cache.MinTTL), r.MaxTTL)
}

// capacity enlarges the cache if the default is too small for that many answers.
func capacity(l *line) {
	n, err := strconv.ParseInt(l.arg(0, ""), 10, 32)
	if err != nil || n == defaultCapacity {
		return
	}
	size := min(n*answerSize, 1<<40)
	size = (size + 1<<20 - 1) &^ (1<<20 - 1) // whole MiB
	if size > l.c.cfg.Cache.Size {
		l.c.cfg.Cache.Size, l.c.origins["cache.size"] = size, l.origin()
	}
	l.differs("the cache is one for all zones and bounded in bytes", "docs/memory.md says what to choose for cache.size")
}

func prefetch(l *line) {
	args, to := l.args(), &l.c.cfg.Cache.Prefetch
	if len(args) == 0 {
		l.lost("the number is missing", "")
		return
	}
	hits, err := strconv.Atoi(args[0])
	if err != nil || hits < 0 || hits > 1_000_000 {
		l.lost("not a number of lookups between 0 and 1000000", "")
		return
	}
	if l.set("cache.prefetch.hits", args[0]) {
		to.Hits = hits
	}
	if len(args) > 1 {
		l.differs("lookups count while the answer is held, with gaps or without", "")
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(l.arg(2, ""), "%"))
	if err == nil && percent >= 1 && percent <= 90 && l.set("cache.prefetch.remaining", args[2]) {
		to.Remaining = float64(percent) / 100
	}
}

// serveStale converts how long stale answers are served. In node-cache, upstreams always have the time cache.serveStale.after first.
func serveStale(l *line) {
	stale := &l.c.cfg.Cache.ServeStale
	set := func(i int, path string, least, most time.Duration, to *time.Duration) {
		if i < len(l.args()) {
			l.setDuration(l.args()[i], path, least, most, to)
		}
	}
	l.setDuration(l.arg(0, "1h"), "cache.serveStale.for", 0, 3*day, &stale.For)
	ttl := 2
	if l.arg(1, "") != "verify" {
		l.differs("upstreams have a moment to answer before a stale answer is given", "cache.serveStale.after is that time")
	} else if ttl = 3; l.arg(2, "0") != "0" {
		set(2, "cache.serveStale.after", 10*time.Millisecond, 3*time.Second, &stale.After)
	}
	set(ttl, "cache.serveStale.ttl", time.Second, 5*time.Minute, &stale.TTL)
	stale.For, stale.TTL = stale.For.Truncate(time.Second), stale.TTL.Truncate(time.Second)
}

// disable converts the option that keeps zones out of the cache. A route can keep out only answers and denials together.
func disable(l *line) {
	args := l.args()
	if len(args) == 0 {
		l.lost("it says neither success nor denial", "")
		return
	}
	zones := slices.Sorted(slices.Values(args[1:]))
	isPair := func(other statement) bool {
		return other.words[0] == "disable" && len(other.words) == len(l.words) && other.words[1] != args[0] &&
			slices.Equal(slices.Sorted(slices.Values(other.words[2:])), zones)
	}
	both := false
	for _, st := range l.s.all("cache") {
		both = both || slices.ContainsFunc(st.body, isPair)
	}
	named := l.zones(zones)
	if len(args) == 1 {
		named = l.s.zones
	}
	for _, zone := range overlap(l.s.zones, named) {
		l.s.changeRoute(zone, l, func(r *route) {
			if r.NoCache = both; !both && l.c.firstTime(l.at.String()) {
				l.lost("answers and denials of a zone are kept, or neither", "cache: off in the route of the zone keeps neither; negativeTTL bounds denials")
			}
		})
	}
}

// changeRoute changes the route of a zone of the block. A zone without a route gets a copy of the route of its closest
// parent. Zones of the cluster have no route.
func (s *server) changeRoute(zone string, l *line, how func(*route)) {
	c, best := l.c, -1
	if c.clusterZone != "" && below(zone, c.clusterZone) {
		if !c.servesCluster { // names that the agent answers itself are not cached
			l.lost("the names of the cluster are cached like all others", "cluster.invalidate removes names that change in the cluster")
		}
		return
	}
	for i, r := range s.routes {
		if below(zone, r.Zone) && (best < 0 || len(r.Zone) > len(s.routes[best].Zone)) {
			best = i
		}
	}
	if best < 0 {
		return // no route contains the zone, so no server is asked for its names
	}
	if s.routes[best].Zone != zone {
		r := s.routes[best]
		r.Zone, r.origin, r.early, r.To = zone, l.origin(), false, slices.Clone(r.To)
		s.routes = append(s.routes, r)
		best = len(s.routes) - 1
	}
	how(&s.routes[best])
}

// clientTTLs returns the bounds of the TTLs that clients of a block get for answers and for denials, which are those of the plugin cache.
// isCached is false if the block has no such bounds for all of its names.
func clientTTLs(s *server) (answers, denials [2]time.Duration, isCached bool) {
	answers, denials = [2]time.Duration{5 * time.Second, time.Hour}, [2]time.Duration{5 * time.Second, 30 * time.Minute}
	all := s.all("cache")
	if len(all) != 1 {
		return answers, denials, false
	}
	args := all[0].args()
	if d, ok := parseDuration(cmp.Or(append(slices.Clone(args), "")...)); ok && len(args) > 0 {
		answers[1], denials[1], args = d, d, args[1:]
	}
	if len(args) > 0 { // the plugin cache has zones as arguments, and may leave out names of the block
		return answers, denials, false
	}
	for _, st := range all[0].body {
		to := map[string]*[2]time.Duration{"success": &answers, "denial": &denials}[st.words[0]]
		if st.words[0] == "disable" && len(st.words) == 2 {
			return answers, denials, false
		}
		for i, word := range st.args() {
			if d, ok := parseDuration(word); ok && to != nil && (i == 1 || i == 2) {
				to[2-i] = d
			}
		}
	}
	return answers, denials, true
}
