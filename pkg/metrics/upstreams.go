// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
)

// A named is an upstream as the series show it.
type named struct {
	zone, name string
	stats      upstream.ServerStats
	servers    [upstream.NumStates]int // by state: one, or the endpoints of a service
}

// A roll turns the Stats of routes into those of upstreams with names that stay.
//
// The endpoints of a service come and go with its pods: a label with their
// addresses would begin new series on each roll-out, on every node. They are one
// upstream by the service's name. A counter must not fall, so what an endpoint had
// counted when it was last seen here stays in the sum after it has left.
type roll struct {
	mu   sync.Mutex          // guards past
	past map[[2]string]*past // by zone and service
}

// A past is what the last scrape saw of a service's endpoints.
type past struct {
	left upstream.ServerStats // the sum of those that have left
	seen map[netip.AddrPort]upstream.ServerStats
}

// read gives the routes of now and lists their upstreams. It reads them while it
// has the lock: of two scrapes at once, the later one must not come first.
func (r *roll) read(of func() []Route) (routes []Route, list []named) {
	r.mu.Lock()
	defer r.mu.Unlock()
	routes = call(of)
	kept := make(map[[2]string]*past)
	for i := range routes {
		route := &routes[i]
		if route.Service == "" {
			for _, s := range route.Stats.Servers {
				u := named{zone: route.Zone, name: s.Network + "://" + s.Addr.String(), stats: s}
				u.servers[s.State()]++
				list = append(list, u)
			}
			continue
		}
		key := [2]string{route.Zone, route.Service}
		p := r.past[key]
		if p == nil {
			p = new(past)
		}
		kept[key] = p
		u := named{zone: route.Zone, name: route.Service, stats: p.sum(route.Stats.Servers)}
		for i := range route.Stats.Servers {
			u.servers[route.Stats.Servers[i].State()]++
		}
		list = append(list, u)
	}
	r.past = kept
	return routes, list
}

// sum adds up the endpoints of now and those that have left.
func (p *past) sum(servers []upstream.ServerStats) upstream.ServerStats {
	now := make(map[netip.AddrPort]upstream.ServerStats, len(servers))
	for _, s := range servers {
		now[s.Addr] = s
	}
	for addr, was := range p.seen {
		if is, ok := now[addr]; !ok || is.Requests < was.Requests { // gone, or gone and back with counters of its own
			add(&p.left, &was)
		}
	}
	p.seen = now
	total := p.left
	for i := range servers {
		s := &servers[i]
		add(&total, s)
		total.Open += s.Open
		total.Sockets += s.Sockets
		total.Outstanding += s.Outstanding
		total.SRTT = quicker(total.SRTT, s.SRTT)
		total.P95 = quicker(total.P95, s.P95)
	}
	return total
}

// quicker is the smaller of two durations, of which 0 is not known.
func quicker(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// add adds what only grows.
func add(to, from *upstream.ServerStats) {
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
		total("upstream_requests_total", "Tries. The repetition of one over TCP because its answer was cut belongs to it.",
			func(u *upstream.ServerStats) uint64 { return u.Requests }),
		{
			"upstream_failures_total", counter, "What went wrong with tries, by reason. Several may fall to one try, and a try may succeed all the same.",
			with("reason", causes()), readFailures,
		},
		{"upstream_request_duration_seconds", histogram, "Time of good answers, from the try's beginning.", each, readTook},
		total("upstream_truncated_total", "UDP answers that were cut and asked for again over TCP.",
			func(u *upstream.ServerStats) uint64 { return u.Truncated }),
		total("upstream_hedges_total", "Tries that were late, so that another upstream was asked beside them.",
			func(u *upstream.ServerStats) uint64 { return u.Hedged }),
		total("upstream_hedges_won_total", "Good answers to tries that were begun because an earlier one was late or had failed.",
			func(u *upstream.ServerStats) uint64 { return u.Won }),
		known("upstream_latency_seconds", "Smoothed time of an answer, penalties for failures included; of a service that of its quickest endpoint. "+
			"Absent until the first answer or failure.",
			func(u *upstream.ServerStats) time.Duration { return u.SRTT }),
		known("upstream_late_seconds", "Time that nearly all recent answers took less than (95 in 100); a try that takes a quarter longer, and 5 ms at least, counts as late. "+
			"Of a service that of its quickest endpoint. Absent until it is known.",
			func(u *upstream.ServerStats) time.Duration { return u.P95 }),
		level("upstream_outstanding", "Tries under way.", func(u *upstream.ServerStats) int { return u.Outstanding }),
		{
			"upstream_servers", gauge, "Servers behind an upstream, one or a service's endpoints, by how they are doing. Each is in the last state that fits: " +
				"its latest tries failed, it gets probes only, or what is sent to it comes back here.",
			with("state", states()), readStates,
		},
		total("upstream_probes_total", "Queries sent only to see whether a failing upstream is back.",
			func(u *upstream.ServerStats) uint64 { return u.Probes }),
		level("upstream_udp_sockets", "UDP sockets open.", func(u *upstream.ServerStats) int { return u.Sockets }),
		level("upstream_connections", "Connections over TCP, TLS and HTTPS, those being opened included.",
			func(u *upstream.ServerStats) int { return u.Open }),
		total("upstream_connections_opened_total", "Connections begun.", func(u *upstream.ServerStats) uint64 { return u.Opened }),
		total("upstream_tls_resumptions_total", "Those of the connections that took up an earlier session of TLS.",
			func(u *upstream.ServerStats) uint64 { return u.Resumed }),
	}
}

// states names how a server can be doing.
func states() []string {
	list := make([]string, upstream.NumStates)
	for i := range list {
		list[i] = upstream.State(i).String()
	}
	return list
}

// causes names what can go wrong with a try.
func causes() []string {
	list := make([]string, upstream.NumCauses)
	for i := range list {
		list[i] = upstream.Cause(i).String()
	}
	return list
}

// readUpstreams reads a family with one series for each upstream that has a value.
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

func readTook(s *sample, out *sink) {
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
