// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
)

// A section groups the families of one source.
type section struct {
	title    string
	enabled  func(*Config) bool
	families []family
}

// A family is a metric: all series of one name.
type family struct {
	name   string // without the prefix
	kind   kind
	help   string
	labels []label
	read   func(*sample, *sink)
}

// A label is a label of a family.
type label struct {
	name   string
	values []string // nil: from the configuration or the build
}

// A kind is a Prometheus metric type.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// counterOf reads the only series of a counter.
func counterOf(of func(*sample) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(of(s)) }
}

// gaugeOf reads the only series of a gauge.
func gaugeOf[N int | int64 | uint64](of func(*sample) N) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.put(float64(of(s))) }
}

// udpCounter reads a counter as the sum over all UDP listeners.
func udpCounter(of func(*server.UDPStats) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(sum(s.udp, of)) }
}

// tcpCounter reads a counter as the sum over all TCP listeners.
func tcpCounter(of func(*server.TCPStats) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(sum(s.tcp, of)) }
}

// tcpCounterBy reads a counter whose label has one value per function.
func tcpCounterBy(values []string, of ...func(*server.TCPStats) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		for i, value := range values {
			out.count(sum(s.tcp, of[i]), value)
		}
	}
}

func sum[S any](list []S, of func(*S) uint64) (n uint64) {
	for i := range list {
		n += of(&list[i])
	}
	return n
}

func readQueries(s *sample, out *sink) {
	types := resolve.TypeClasses()
	for proto, families := range s.resolve.Queries {
		for family, counts := range families {
			for class, n := range counts {
				out.count(n, protos()[proto], ipFamilies()[family], types[class])
			}
		}
	}
}

func readResponses(s *sample, out *sink) {
	sources, rcodes := resolve.Sources(), resolve.Rcodes()
	for source, counts := range s.resolve.Responses {
		for rcode, n := range counts {
			out.count(n, sources[source], rcodes[rcode])
		}
	}
}

func readDurations(s *sample, out *sink) {
	bounds := resolve.Buckets()
	out.durations(s.resolve.Durations[:], bounds[:], s.resolve.Total)
}

func readShed(s *sample, out *sink) {
	for i, reason := range resolve.Sheds() {
		out.count(s.resolve.Shed[i], reason)
	}
}

func readSessions(s *sample, out *sink) {
	open := 0
	for i := range s.tcp {
		open += s.tcp[i].Open
	}
	out.put(float64(open))
}

func readLastOK(s *sample, out *sink) {
	out.put(boolValue(s.config.LastOK))
}

func readLastSuccess(s *sample, out *sink) {
	if t := s.config.LastSuccess; !t.IsZero() {
		out.put(float64(t.UnixMicro()) / 1e6) // a float64 cannot hold ns exactly
	}
}

func readPanics(s *sample, out *sink) {
	out.count(s.resolve.Panics, "resolve")
	out.count(sum(s.udp, func(u *server.UDPStats) uint64 { return u.Panics }), "udp")
	out.count(sum(s.tcp, func(t *server.TCPStats) uint64 { return t.Panics }), "tcp")
	out.count(sum(s.routes, func(r *Route) uint64 { return r.Stats.Panics }), "upstream")
	if w := s.cluster.Source; w != nil {
		out.count(w.Panics, "watch")
	} else {
		out.count(0, "watch")
	}
	if i := s.node.Intercept; i != nil {
		out.count(i.Panics, "intercept")
	} else {
		out.count(0, "intercept")
	}
	out.count(sum(s.probes, func(p *Probe) uint64 { return p.Stats.Panics }), "probe")
	out.count(s.source.Panics, "source")
	out.count(s.config.Panics, "config")
	if h := s.static; h != nil {
		out.count(h.Panics, "static")
	} else {
		out.count(0, "static")
	}
	if h := s.handover; h != nil {
		out.count(h.Panics, "handover")
	} else {
		out.count(0, "handover")
	}
	if k := s.snapshot; k != nil {
		out.count(k.Panics, "snapshot")
	} else {
		out.count(0, "snapshot")
	}
	out.count(s.admin.Panics, "admin")
}

func readBuild(s *sample, out *sink) {
	out.put(1, s.version, s.commit, runtime.Version())
}
