// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
)

// An upstreamSeries is an upstream as the metrics show it.
type upstreamSeries struct {
	zone, name string
	stats      upstream.ServerStats
	servers    [upstream.NumStates]int // by state: one server, or a service's endpoints
}

// A counterHistory turns the Stats of routes into upstreams with stable names.
//
// The endpoints of a service change with its pods. A label with their addresses would start new series on
// each rollout, on every node. So all endpoints are one upstream with the service's name. A counter must not
// decrease: the last known counts of removed endpoints stay in the sum.
type counterHistory struct {
	mu        sync.Mutex                     // guards endpoints
	endpoints map[[2]string]*endpointHistory // by zone and service
}

// An endpointHistory holds the counters of a service's endpoints at the last scrape.
type endpointHistory struct {
	departed upstream.ServerStats // sum over removed endpoints
	lastSeen map[netip.AddrPort]upstream.ServerStats
}

// read returns the current routes and their upstreams. It reads the routes under the lock, so that of two
// concurrent scrapes the later one sees later counters.
func (r *counterHistory) read(of func() []Route) (routes []Route, list []upstreamSeries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	routes = call(of)
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
		p := r.endpoints[key]
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
	r.endpoints = kept
	return routes, list
}

// sum adds up the current and the removed endpoints.
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
	for bucket, n := range from.RTTs {
		to.RTTs[bucket] += n
	}
	to.RTTSum += from.RTTSum
	to.Hedged += from.Hedged
	to.Won += from.Won
	to.Probes += from.Probes
	to.Opened += from.Opened
	to.Resumed += from.Resumed
}

func upstreamFamilies() []family {
	each := []label{{name: "zone"}, {name: "upstream"}}
	with := func(name string, values []string) []label { return append(slices.Clone(each), label{name, values}) }
	total := func(name, help string, of func(*upstream.ServerStats) uint64) family {
		return family{name, counter, help, each, readUpstreams(func(u *upstream.ServerStats) (float64, bool) { return float64(of(u)), true })}
	}
	level := func(name, help string, of func(*upstream.ServerStats) int) family {
		return family{name, gauge, help, each, readUpstreams(func(u *upstream.ServerStats) (float64, bool) { return float64(of(u)), true })}
	}
	known := func(name, help string, of func(*upstream.ServerStats) time.Duration) family {
		return family{name, gauge, help, each, readUpstreams(func(u *upstream.ServerStats) (float64, bool) { return of(u).Seconds(), of(u) > 0 })}
	}
	return []family{
		total("upstream_requests_total", "Exchanges with the upstream. A retry over TCP after a truncated answer belongs to its exchange.",
			func(u *upstream.ServerStats) uint64 { return u.Requests }),
		{
			"upstream_failures_total", counter, "Failures of exchanges, by reason. One exchange may have several, and may still succeed.",
			with("reason", causes()), readFailures,
		},
		{"upstream_request_duration_seconds", histogram, "Time from the start of an exchange to its good answer.", each, readRTTs},
		total("upstream_truncated_total", "Truncated UDP answers, retried over TCP.",
			func(u *upstream.ServerStats) uint64 { return u.Truncated }),
		total("upstream_hedges_total", "Slow exchanges for which another upstream was asked as well.",
			func(u *upstream.ServerStats) uint64 { return u.Hedged }),
		total("upstream_hedges_won_total", "Good answers to exchanges started because an earlier one was slow or had failed.",
			func(u *upstream.ServerStats) uint64 { return u.Won }),
		known("upstream_latency_seconds", "Smoothed response time, including penalties for failures; for a service, that of its fastest endpoint. "+
			"Absent until the first answer or failure.",
			func(u *upstream.ServerStats) time.Duration { return u.SRTT }),
		known("upstream_late_seconds", "95th percentile of recent response times. An exchange that takes 25 % longer, and at least 5 ms longer, is hedged. "+
			"For a service, that of its fastest endpoint. Absent until it is known.",
			func(u *upstream.ServerStats) time.Duration { return u.P95 }),
		level("upstream_outstanding", "Exchanges in flight.", func(u *upstream.ServerStats) int { return u.Outstanding }),
		{
			"upstream_servers", gauge, "Servers of an upstream (one, or a service's endpoints), by state. Each is in the last state that applies: " +
				"recent failures (failing), probes only (down), or it forwards queries back to this agent (looped).",
			with("state", states()), readStates,
		},
		total("upstream_probes_total", "Queries sent only to check whether a failing upstream has recovered.",
			func(u *upstream.ServerStats) uint64 { return u.Probes }),
		level("upstream_udp_sockets", "UDP sockets open.", func(u *upstream.ServerStats) int { return u.Sockets }),
		level("upstream_connections", "Connections over TCP, TLS, and HTTPS, including those being opened.",
			func(u *upstream.ServerStats) int { return u.Open }),
		total("upstream_connections_opened_total", "Connections opened.", func(u *upstream.ServerStats) uint64 { return u.Opened }),
		total("upstream_tls_resumptions_total", "Connections that resumed a TLS session.",
			func(u *upstream.ServerStats) uint64 { return u.Resumed }),
	}
}

// states returns the names of the server states.
func states() []string {
	list := make([]string, upstream.NumStates)
	for i := range list {
		list[i] = upstream.State(i).String()
	}
	return list
}

// causes returns the names of the failure causes.
func causes() []string {
	list := make([]string, upstream.NumCauses)
	for i := range list {
		list[i] = upstream.Cause(i).String()
	}
	return list
}

// readUpstreams reads a family with a series for each upstream that has a value.
func readUpstreams(of func(*upstream.ServerStats) (value float64, ok bool)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		for i := range s.upstreams {
			u := &s.upstreams[i]
			if value, ok := of(&u.stats); ok {
				out.put(value, u.zone, u.name)
			}
		}
	}
}

func readFailures(s *sample, out *sink) {
	reasons := causes()
	for i := range s.upstreams {
		u := &s.upstreams[i]
		for cause, n := range u.stats.Failures {
			out.count(n, u.zone, u.name, reasons[cause])
		}
	}
}

func readRTTs(s *sample, out *sink) {
	bounds := upstream.RTTBounds()
	for i := range s.upstreams {
		u := &s.upstreams[i]
		out.durations(u.stats.RTTs[:], bounds, u.stats.RTTSum, u.zone, u.name)
	}
}

func readStates(s *sample, out *sink) {
	for i := range s.upstreams {
		u := &s.upstreams[i]
		for state, name := range states() {
			out.put(float64(u.servers[state]), u.zone, u.name, name)
		}
	}
}
