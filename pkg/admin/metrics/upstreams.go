// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// An upstreamSeries is an upstream as the metrics show it.
type upstreamSeries struct {
	zone, name string
	stats      upstream.ServerStats
	servers    [upstream.NumStates]int // number of servers by state: of one server, or of a service's endpoints
}

// An endpointHistory holds the counters of a service's endpoints at the last scrape.
//
// The endpoints of a service change with its pods. A label with their addresses would start new series on
// each rollout, on every node. So all endpoints are one upstream with the service's name. A counter must not
// decrease: the last known counts of removed endpoints stay in the sum.
type endpointHistory struct {
	departed upstream.ServerStats // sum over removed endpoints
	lastSeen map[netip.AddrPort]upstream.ServerStats
}

// upstreams returns the upstreams of the routes, with names that stay the same.
func (c *Collector) upstreams(routes []Route) (list []upstreamSeries) {
	kept := make(map[[2]string]*endpointHistory)
	for i := range routes {
		route := &routes[i]
		if route.Service == "" {
			for _, s := range route.Stats.Servers {
				u := upstreamSeries{zone: route.Zone, name: s.Network + "://" + s.Addr.String(), stats: s}
				u.servers[s.State()]++
				list = append(list, u)
			}
			continue
		}
		key := [2]string{route.Zone, route.Service}
		p := c.history[key]
		if p == nil {
			p = new(endpointHistory)
		}
		kept[key] = p
		u := upstreamSeries{zone: route.Zone, name: route.Service, stats: p.sum(route.Stats.Servers)}
		for i := range route.Stats.Servers {
			u.servers[route.Stats.Servers[i].State()]++
		}
		list = append(list, u)
	}
	c.history = kept
	return list
}

// sum returns the counters of the current and the removed endpoints together.
func (p *endpointHistory) sum(servers []upstream.ServerStats) upstream.ServerStats {
	now := make(map[netip.AddrPort]upstream.ServerStats, len(servers))
	for _, s := range servers {
		now[s.Addr] = s
	}
	for addr, was := range p.lastSeen {
		if is, ok := now[addr]; !ok || is.Requests < was.Requests { // removed, or removed and added again with new counters
			addCounters(&p.departed, &was)
		}
	}
	p.lastSeen = now
	total := p.departed
	for i := range servers {
		s := &servers[i]
		addCounters(&total, s)
		total.Open += s.Open
		total.Sockets += s.Sockets
		total.Outstanding += s.Outstanding
		total.SRTT = shorter(total.SRTT, s.SRTT)
		total.P95 = shorter(total.P95, s.P95)
	}
	return total
}

// shorter returns the shorter of two durations, where 0 is unknown.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// addCounters adds all counters of from to to.
func addCounters(to, from *upstream.ServerStats) {
	to.Requests += from.Requests
	for cause, n := range from.Failures {
		to.Failures[cause] += n
	}
	to.Truncated += from.Truncated
	to.CaseChecks += from.CaseChecks
	for bucket, n := range from.RTTs {
		to.RTTs[bucket] += n
	}
	to.RTTSum += from.RTTSum
	to.Hedged += from.Hedged
	to.Won += from.Won
	to.Explored += from.Explored
	to.Probes += from.Probes
	to.Opened += from.Opened
	to.Resumed += from.Resumed
}

func (t *table) addUpstreams(list []upstreamSeries) {
	t.section = "Upstreams"
	zone, name := label{name: "zone"}, label{name: "upstream"}
	each := func(k kind, family, help string, of func(*upstream.ServerStats) float64) {
		s := t.add(k, family, help, zone, name)
		for i := range list {
			s.put(of(&list[i].stats), list[i].zone, list[i].name)
		}
	}
	total := func(family, help string, of func(*upstream.ServerStats) uint64) {
		each(counter, family, help, func(u *upstream.ServerStats) float64 { return float64(of(u)) })
	}
	level := func(family, help string, of func(*upstream.ServerStats) int) {
		each(gauge, family, help, func(u *upstream.ServerStats) float64 { return float64(of(u)) })
	}
	causes, states := names[upstream.Cause](int(upstream.NumCauses)), names[upstream.State](int(upstream.NumStates))

	total("upstream_requests_total", "Exchanges with the upstream, with their retries over TCP.",
		func(u *upstream.ServerStats) uint64 { return u.Requests })
	failures := t.add(counter, "upstream_failures_total", "Failures of exchanges. One exchange may have several, and may still succeed.",
		zone, name, label{"reason", causes})
	rtts := t.add(histogram, "upstream_request_duration_seconds", "Time from the start of an exchange to its good answer.", zone, name)
	total("upstream_case_checks_total", "Answers to names in random case that were asked for again in lower case.",
		func(u *upstream.ServerStats) uint64 { return u.CaseChecks })
	total("upstream_truncated_total", "Truncated UDP answers, retried over TCP.", func(u *upstream.ServerStats) uint64 { return u.Truncated })
	total("upstream_hedges_total", "Slow exchanges for which another upstream was asked too.", func(u *upstream.ServerStats) uint64 { return u.Hedged })
	total("upstream_hedges_won_total", "Good answers of exchanges that began because an earlier one was slow or failed.",
		func(u *upstream.ServerStats) uint64 { return u.Won })
	total("upstream_explorations_total", "Exchanges that only measure the upstream.",
		func(u *upstream.ServerStats) uint64 { return u.Explored })
	latency := t.add(gauge, "upstream_latency_seconds", "Smoothed time of good answers; of a service's fastest endpoint.", zone, name)
	late := t.add(gauge, "upstream_late_seconds", "p95 of recent response times; of a service's fastest endpoint. Longer exchanges are hedged.", zone, name)
	level("upstream_outstanding", "Exchanges in flight.", func(u *upstream.ServerStats) int { return u.Outstanding })
	servers := t.add(gauge, "upstream_servers", "Servers of an upstream. errors: its latest answers are errors; failing: asked last; down: only probed; looped: leads back to this agent.", zone, name, label{"state", states})
	total("upstream_probes_total", "Queries that check whether a failing upstream has recovered.", func(u *upstream.ServerStats) uint64 { return u.Probes })
	level("upstream_udp_sockets", "UDP sockets open.", func(u *upstream.ServerStats) int { return u.Sockets })
	level("upstream_connections", "Connections over TCP, TLS, and HTTPS.", func(u *upstream.ServerStats) int { return u.Open })
	total("upstream_connections_opened_total", "Connections opened.", func(u *upstream.ServerStats) uint64 { return u.Opened })
	total("upstream_tls_resumptions_total", "Connections that resumed a TLS session.", func(u *upstream.ServerStats) uint64 { return u.Resumed })

	for i := range list {
		u := &list[i]
		for cause, n := range u.stats.Failures {
			failures.put(float64(n), u.zone, u.name, causes[cause])
		}
		rtts.durations(u.stats.RTTs[:], upstream.RTTBounds(), u.stats.RTTSum, u.zone, u.name)
		if u.stats.SRTT > 0 {
			latency.put(u.stats.SRTT.Seconds(), u.zone, u.name)
		}
		if u.stats.P95 > 0 {
			late.put(u.stats.P95.Seconds(), u.zone, u.name)
		}
		for state, n := range u.servers {
			servers.put(float64(n), u.zone, u.name, states[state])
		}
	}
}

// names returns the texts of the first n values of an enumeration.
func names[E interface {
	~int | ~uint8
	String() string
}](n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = E(i).String()
	}
	return list
}

// addCentral adds the families of the central resolver's service. known is whether its endpoints were found since the start.
func (t *table) addCentral(known bool, routes []Route) {
	t.section = "Central resolver"
	synced := t.add(gauge, "central_synced",
		"1 once the endpoints of the central resolver's service are synced.")
	endpoints := t.add(gauge, "central_endpoints", "Servers of that service. far: in another topology zone; last_resort: a cluster IP.", label{"state", []string{"ready", "far", "last_resort"}})
	i := slices.IndexFunc(routes, func(r Route) bool { return r.Service != "" })
	if i < 0 {
		return
	}
	var ready, far, last float64
	for _, s := range routes[i].Stats.Servers {
		switch {
		case s.LastResort:
			last++
		case s.Far:
			far++
			ready++
		default:
			ready++
		}
	}
	synced.put(boolValue(known))
	endpoints.put(ready, "ready")
	endpoints.put(far, "far")
	endpoints.put(last, "last_resort")
}

// addSubscribe adds the families of the session with the central resolver.
func (t *table) addSubscribe(s *subscribe.Stats) {
	t.section = "Push from the central resolver"
	t.truth("subscribe_session", "1 while a server of the central resolver reports changes of names.", s.Server != "")
	t.truth("subscribe_idle", "1 while there is no session because no name is asked for.", s.Idle)
	t.value("subscribe_names", "Names whose changes it reports.", float64(s.Names))
	t.total("subscribe_sessions_total", "Sessions that began.", s.Sessions)
	t.total("subscribe_questions_total", "Queries on a session.", s.Asked)
	t.total("subscribe_kept_total", "Answers that are kept until a change is reported.", s.Kept)
	t.total("subscribe_changes_total", "Reported changes of names.", s.Events)
	t.total("subscribe_repeated_total", "Queries repeated because of a change meanwhile.", s.Repeated)
	t.total("subscribe_late_total", "Queries that another server got after 200 ms.", s.Late)
	t.total("subscribe_full_total", "Queries of names beyond the bounds of a session; their answers live by their TTL.", s.Full)
	t.total("subscribe_refused_total", "Refused subscriptions.", s.Refused)
}
