// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"sync"

	"github.com/nodecache/node-cache/pkg/upstream"
)

// A named is an upstream as the series show it.
type named struct {
	zone, name string
	stats      upstream.ServerStats
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
				list = append(list, named{route.Zone, s.Network + "://" + s.Addr.String(), s})
			}
			continue
		}
		key := [2]string{route.Zone, route.Service}
		p := r.past[key]
		if p == nil {
			p = new(past)
		}
		kept[key] = p
		list = append(list, named{route.Zone, route.Service, p.sum(route.Stats.Servers)})
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
		if s.SRTT > 0 && (total.SRTT == 0 || s.SRTT < total.SRTT) {
			total.SRTT = s.SRTT
		}
	}
	return total
}

// add adds what only grows.
func add(to, from *upstream.ServerStats) {
	to.Requests += from.Requests
	for cause, n := range from.Failures {
		to.Failures[cause] += n
	}
	to.Truncated += from.Truncated
	to.Opened += from.Opened
}

func upstreamFamilies() []family {
	zone, upstream := label{name: "zone"}, label{name: "upstream"}
	return []family{
		{
			"upstream_requests_total", counter, "Tries. The repetition of one over TCP because its answer was cut belongs to it.",
			[]label{zone, upstream},
			readRequests,
		},
		{
			"upstream_failures_total", counter, "What went wrong with tries, by reason. Several may fall to one try, and a try may succeed all the same.",
			[]label{zone, upstream, {"reason", causes()}},
			readFailures,
		},
		{
			"upstream_truncated_total", counter, "UDP answers that were cut and asked for again over TCP.",
			[]label{zone, upstream},
			readTruncated,
		},
		{
			"upstream_latency_seconds", gauge, "Smoothed time of an answer, penalties for failures included; of a service that of its quickest endpoint. " +
				"Absent until the first answer or failure.",
			[]label{zone, upstream},
			readLatency,
		},
		{
			"upstream_connections", gauge, "TCP connections, those being opened included.",
			[]label{zone, upstream},
			readConnections,
		},
		{
			"upstream_connections_opened_total", counter, "TCP connections begun.",
			[]label{zone, upstream},
			readOpened,
		},
	}
}

// causes names what can go wrong with a try.
func causes() []string {
	list := make([]string, upstream.NumCauses)
	for i := range list {
		list[i] = upstream.Cause(i).String()
	}
	return list
}

// each calls f for every upstream of every route, with its labels.
func (s *sample) each(f func(zone, name string, u *upstream.ServerStats)) {
	for i := range s.upstreams {
		u := &s.upstreams[i]
		f(u.zone, u.name, &u.stats)
	}
}

func readRequests(s *sample, out *sink) {
	s.each(func(zone, name string, u *upstream.ServerStats) { out.count(u.Requests, zone, name) })
}

func readFailures(s *sample, out *sink) {
	reasons := causes()
	s.each(func(zone, name string, u *upstream.ServerStats) {
		for i, n := range u.Failures {
			out.count(n, zone, name, reasons[i])
		}
	})
}

func readTruncated(s *sample, out *sink) {
	s.each(func(zone, name string, u *upstream.ServerStats) { out.count(u.Truncated, zone, name) })
}

func readLatency(s *sample, out *sink) {
	s.each(func(zone, name string, u *upstream.ServerStats) {
		if u.SRTT > 0 {
			out.put(u.SRTT.Seconds(), zone, name)
		}
	})
}

func readConnections(s *sample, out *sink) {
	s.each(func(zone, name string, u *upstream.ServerStats) { out.put(float64(u.Open), zone, name) })
}

func readOpened(s *sample, out *sink) {
	s.each(func(zone, name string, u *upstream.ServerStats) { out.count(u.Opened, zone, name) })
}
