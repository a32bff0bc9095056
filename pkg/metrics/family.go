// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/server"
)

// A section is the families of one source.
type section struct {
	title    string
	present  func(*Config) bool
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

// A label is one label of a family.
type label struct {
	name   string
	values []string // nil: from the configuration, or of the program
}

// A kind is what Prometheus calls a type.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// count reads the only series of a counter.
func count(of func(*sample) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(of(s)) }
}

// level reads the only series of a gauge.
func level[N int | int64 | uint64](of func(*sample) N) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.put(float64(of(s))) }
}

// udp reads the only series of a counter as the sum over all UDP listeners.
func udp(of func(*server.UDPStats) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(sum(s.udp, of)) }
}

// tcp reads the only series of a counter as the sum over all TCP listeners.
func tcp(of func(*server.TCPStats) uint64) func(*sample, *sink) {
	return func(s *sample, out *sink) { out.count(sum(s.tcp, of)) }
}

// tcpBy reads a counter whose only label has a value for each of the functions.
func tcpBy(values []string, of ...func(*server.TCPStats) uint64) func(*sample, *sink) {
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
