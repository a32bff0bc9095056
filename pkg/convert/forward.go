// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// forward converts a route.
func forward(l *line) {
	c := l.c
	if len(l.args()) < 2 {
		l.lost("the zone or the upstream is missing", "")
		return
	}
	from := l.zones(l.args()[:1])
	routed := overlap(l.s.zones, from)
	if len(from) > 0 && len(routed) == 0 {
		l.lost("it does not apply to any zone of this server", "")
	}
	if len(routed) == 0 {
		return
	}
	options, excepted, to := parseForward(l)
	for _, zone := range routed {
		if isCentral(c, zone, l.args()[1:]) {
			l.s.own = append(l.s.own, zone)
			continue
		}
		if len(to()) == 0 {
			l.lost("no upstream is left, so there is no route for "+zone, "")
			continue
		}
		l.s.own = append(l.s.own, zone)
		r := config.DefaultRoute(zone, to()...)
		r.Policy, r.Method, r.CA = options.Policy, options.Method, options.CA
		c.route(r, l)
	}
	addExcepted(l, excepted)
}

// addExcepted adds the zones that a forward excepts: their names get SERVFAIL, as from CoreDNS.
func addExcepted(l *line, hosts []string) {
	c := l.c
	for _, host := range hosts {
		list, err := zones(fillPlaceholders(host))
		if err != nil {
			c.lost(l.at, "forward: except "+host, oneLine(err), "")
		}
		for _, zone := range list {
			c.excepted = append(c.excepted, sourced[string]{zone, origin{at: l.at, text: "except " + host}})
		}
	}
}

const (
	ownTimers  = "node-cache judges upstreams by their answers and probes failed ones, with its own timers"
	timersHint = "docs/upstreams.md has the times"
)

// proxy converts CoreDNS's predecessor of forward.
func proxy(l *line) {
	as := &line{&statement{at: l.at, words: l.words}, l.c, l.s, ""}
	for _, st := range l.body {
		option := l.option(&st)
		switch text := option.text(); {
		case text == "protocol dns":
		case text == "protocol dns force_tcp":
			as.body = append(as.body, statement{at: st.at, words: []string{"force_tcp"}})
		case st.words[0] == "protocol":
			l.c.lost(l.at, l.what()+", "+text, "upstreams support UDP, TCP, TLS and HTTPS only", "write a route to a server with one of these: {zone: …, to: […]}")
			return
		case st.words[0] == "fail_timeout", st.words[0] == "spray":
			option.differs(ownTimers, timersHint)
		case text == "policy least_conn":
			option.differs("the fastest upstream is used", "")
		default:
			as.body = append(as.body, st)
		}
	}
	forward(as)
}

// route adds a route unless its zone has one.
func (c *converter) route(r config.Route, l *line) {
	if c.clusterZone == r.Zone && !slices.Contains(c.cfg.Cluster.Fallthrough, r.Zone) {
		l.lost("the cluster domain cannot be forwarded", "names below it may have a route of their own")
		return
	}
	if external := &c.cfg.Cluster.External; slices.Contains(external.Zones, r.Zone) && !external.Fallthrough {
		return // as in CoreDNS, it would not be asked
	}
	i := slices.IndexFunc(c.routes, func(other route) bool { return other.Zone == r.Zone })
	switch {
	case i < 0:
		c.routes = append(c.routes, route{Route: r, origin: l.origin()})
	case c.routes[i].early && (r.Zone != "." || slices.Contains(l.args(), upstreams)):
		// NodeLocal DNSCache prefers these servers to those of the Corefile.
		r.To = c.routes[i].To
		c.routes[i].Route, c.routes[i].early = r, false
	case c.routes[i].early:
		c.routes[i] = route{Route: r, origin: l.origin()}
		c.lost(place{file: upstreamNameservers}, "the list", l.at.String()+" has other upstreams for all names", "")
	default:
		l.lost(fmt.Sprintf("%s already has a route, by %s", r.Zone, c.routes[i].at), "a zone has one route: list all upstreams in it, in order and with policy sequential")
	}
}

// parseForward parses the options of a forward: keys of its routes, and the zones that it excepts. upstreams returns its
// upstreams, with notes about the others.
func parseForward(l *line) (r config.Route, except []string, upstreams func() []config.Target) {
	tcp, serverName := false, ""
	r.Policy, r.Method = config.PolicyFastest, config.MethodPost
	l.options(
		directive{names: "except", take: func(l *line) { except = append(except, l.args()...) }},
		flag("force_tcp", &tcp),
		directive{names: "prefer_udp"}, // the default
		text("tls_servername", &serverName),
		directive{names: "doh_method", take: func(l *line) {
			if strings.EqualFold(l.all(), "get") {
				r.Method = config.MethodGet
			}
		}},
		directive{names: "policy", take: func(l *line) { r.Policy = policy(l) }},
		directive{names: "tls", take: func(l *line) { r.CA = certificates(l) }},
		directive{names: "max_concurrent", take: maxConcurrent},
		directive{names: "failover", take: func(l *line) {
			isOther := func(code string) bool {
				return !slices.Contains([]string{"SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"}, strings.ToUpper(code))
			}
			if i := slices.IndexFunc(l.args(), isOther); i >= 0 {
				l.lost("no failover for answers with "+l.args()[i], "SERVFAIL, REFUSED and missing answers cause a failover to the next upstream")
			}
		}},
		differs("max_fails health_check failfast_all_unhealthy_upstreams", ownTimers, timersHint),
		differs("expire max_idle_conns max_age", "node-cache keeps and renews connections with its own timers",
			"forward[].connections says how many there are"),
		differs("max_connect_attempts read_timeout", "the timeout depends on the upstream's usual response time",
			"limits.deadline bounds each query"),
		lost("next next_on_nodata", "the content of an answer does not cause a failover",
			"SERVFAIL and REFUSED cause a failover to the next upstream"),
		lost("source_address", "the kernel chooses the address that upstreams see",
			"set a route with a source address: ip route add … src …"),
		lost("resolver", "upstreams have addresses", ""),
	)
	return r, except, sync.OnceValue(func() []config.Target { return targets(l, tcp, serverName) })
}

func policy(l *line) string {
	switch l.all() {
	case "sequential":
		return config.PolicySequential
	case "round_robin":
		l.differs("upstreams are drawn, each as often as the others, and do not take turns", "")
		return config.PolicyRandom
	case "random":
		return config.PolicyRandom
	}
	l.unknown()
	return config.PolicyFastest
}

// certificates converts the arguments of tls: none, the CA, the client's certificate, or both.
func certificates(l *line) string {
	args := l.args()
	if len(args) >= 2 {
		l.lost("client certificates are not supported", "let the upstream identify this client by its address")
	}
	if len(args) != 1 && len(args) != 3 {
		return ""
	}
	l.differs("the file is read where the agent runs, and the configuration is refused where it is not there",
		"mount a Secret with it into the agents' pods, and write its path there into tls.ca")
	return args[len(args)-1]
}

// maxConcurrent bounds the in-flight queries of all upstreams together.
func maxConcurrent(l *line) {
	n, err := strconv.Atoi(l.all())
	if err != nil || n < 0 {
		l.lost("not a number", "")
		return
	}
	n = min(n, 1<<20)
	if limits := &l.c.cfg.Limits; n > 0 && l.set("limits.inflight", strconv.Itoa(n)) { // 0: no limit
		limits.Inflight, limits.Waiting = n, max(limits.Waiting, n)
		l.differs("the bound is on all upstreams together, and identical queries count once", "see limits.inflight")
	}
}

// targets returns the upstreams with an address, without duplicates.
func targets(l *line, tcp bool, serverName string) []config.Target {
	var to []config.Target
	for _, word := range l.args()[1:] {
		for _, t := range wordTargets(l, word, serverName) {
			if tcp && t.Kind == config.Plain {
				t.Kind = config.TCP
			}
			to = appendNew(to, t)
		}
	}
	if tcp && slices.ContainsFunc(to, func(t config.Target) bool { return t.Kind == config.ResolvConf }) {
		l.c.differs(l.at, l.words[0]+": force_tcp", "the servers of a resolv.conf are queried over UDP, and over TCP after truncation",
			"write tcp:// and their addresses in place of the file where UDP must not be used")
	}
	return to
}

// wordTargets returns the upstreams of one argument of a forward.
func wordTargets(l *line, word, serverName string) []config.Target {
	switch {
	case word == upstreams && len(l.c.upstreams) == 0:
		return []config.Target{{Kind: config.ResolvConf, Path: "/etc/resolv.conf"}}
	case word == upstreams:
		return l.c.upstreams
	case isDNSService(word):
		l.c.lost(l.at, word, "the endpoints of the DNS service are used for cluster names only", "write the addresses of a server that knows the zone")
		return nil
	}
	t, err := target(word, serverName)
	switch {
	case err != nil && placeholder(placeholders(), word) != "": // noted before
		return nil
	case err != nil:
		l.c.lost(l.at, l.words[0]+": "+word, oneLine(err), "")
		return nil
	}
	if to, ok := l.c.otherPortUpstreams(l, t); ok {
		return to
	}
	return []config.Target{t}
}

// target parses an upstream with the server name of its certificate.
func target(word, serverName string) (config.Target, error) {
	scheme, rest, _ := strings.Cut(word, "://")
	switch scheme {
	case "dns":
		return config.ParseTarget(rest)
	case "tls", "https":
	default:
		return config.ParseTarget(word)
	}
	path := ""
	if i := strings.IndexByte(rest, '/'); i >= 0 && scheme == "https" {
		rest, path = rest[:i], rest[i:]
	}
	if host, name, found := strings.Cut(rest, "%"); found && !strings.HasPrefix(rest, "[fe80") {
		name, port, hasPort := strings.Cut(name, ":")
		rest, serverName = host, name
		if hasPort {
			rest += ":" + port
		}
	}
	if serverName != "" {
		path += "#" + serverName
	}
	return config.ParseTarget(scheme + "://" + rest + path)
}

// Bounds and sizes of the cache.
const (
	day             = 24 * time.Hour
	maxTTL          = 7 * day
	maxNegative     = day
	defaultCapacity = 9984 // of CoreDNS, in answers
	answerSize      = 512  // a generous size of an answer, in bytes
)

// ttls are bounds on TTLs; nil: not set.
type ttls struct{ min, max, negative *time.Duration }

// cache converts the TTL bounds for the zones of a server, and the options of the whole cache.
func cache(l *line) {
	cfg, bounds, zones := &l.c.cfg.Cache, ttls{}, l.s.zones
	if l.c.Faithful { // what CoreDNS has where nothing is written
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
	// ttl sets a bound to an argument after the capacity.
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

// limitZoneTTLs sets the bounds of zones: the root's are those of the cache, the others' those of a route.
func limitZoneTTLs(l *line, zones []string, bounds ttls) {
	c := l.c
	for _, zone := range zones {
		isCluster := c.clusterZone == zone || c.central != nil && isReverse(zone)
		switch {
		case zone == "." && c.central == nil: // the cache itself; routes without own bounds inherit them
			limitCacheTTLs(l, bounds)
		case isCluster && c.servesCluster && c.firstTime("cluster's bounds"):
			l.differs("the names of the cluster come from the API and are not cached", "cluster.ttl sets the TTL for clients")
		case zone == c.clusterZone: // these have the bounds of the cache, and the others those of the root's route
			limitCacheTTLs(l, bounds)
		case isCluster:
		default:
			c.changeRoute(zone, l, func(r *route) { r.ttls = bounds })
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

// serveStale converts how long stale answers are given. They are always refreshed first, for a moment.
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

// disable keeps zones out of the cache. This is possible only for answers and denials together.
func disable(l *line) {
	c, args := l.c, l.args()
	if len(args) == 0 {
		l.lost("it says neither success nor denial", "")
		return
	}
	key := strings.Join(append([]string{l.s.zones[0]}, args[1:]...), " ")
	isOther := func(h sourced[string]) bool { return h.origin.value == key && h.value != args[0] }
	if !slices.ContainsFunc(c.halfDisabled, isOther) {
		c.halfDisabled = append(c.halfDisabled, sourced[string]{args[0], origin{at: l.at, text: l.what(), value: key}})
		return
	}
	c.halfDisabled = slices.DeleteFunc(c.halfDisabled, func(h sourced[string]) bool { return h.origin.value == key })
	zones := l.zones(args[1:])
	if len(args) == 1 {
		zones = l.s.zones
	}
	for _, zone := range zones {
		c.changeRoute(zone, l, func(r *route) { r.NoCache = true })
	}
}

// changeRoute changes the route of a zone. A zone without a route gets a copy of the one that its names use.
func (c *converter) changeRoute(zone string, l *line, how func(*route)) {
	if c.clusterZone != "" && below(zone, c.clusterZone) {
		if !c.servesCluster { // otherwise nothing of it is cached
			l.lost("the names of the cluster are cached like all others", "cluster.invalidate removes names that change in the cluster")
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
		l.lost("there is no route for "+zone, "")
		return
	}
	if c.routes[best].Zone != zone {
		r := c.routes[best]
		r.Zone, r.origin, r.early, r.To = zone, l.origin(), false, slices.Clone(r.To)
		c.routes = append(c.routes, r)
		best = len(c.routes) - 1
	}
	how(&c.routes[best])
}
