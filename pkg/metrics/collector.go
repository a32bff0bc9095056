// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// Config holds the functions that read the values. Each is called once per scrape, maybe by concurrent
// scrapes, and must not block. A nil function removes the families of its section.
type Config struct {
	Ready    func() error // as for /readyz; a nil error means ready
	Resolve  func() resolve.Stats
	Cache    func() cache.Stats
	Snapshot func() *snapshot.Stats // nil result: snapshots are off
	Memory   func() Memory
	Upstream func() []Route // zones are distinct
	Cluster  func() Cluster
	Node     func() Node
	Static   func() *static.Stats // nil result: no hosts and no templates
	Probes   func() []Probe       // labels are distinct
	Foreign  func() int           // sockets of other processes at the server's addresses
	UDP      func() []server.UDPStats
	TCP      func() []server.TCPStats
	Admin    func() admin.Stats
	Config   func() ConfigState
	Source   func() source.Stats    // of the configuration
	Handover func() *handover.Stats // nil result: handover is off

	Version string
	Commit  string // empty: unknown
}

// A Route holds the upstreams of one zone.
type Route struct {
	Zone    string
	Service string // "namespace/name" of the endpoints, exported as one upstream; empty: configured upstreams
	Stats   upstream.Stats
}

// ConfigState describes the configurations so far.
type ConfigState struct { // of the one in use
	Generation  uint64    // of the one in use
	LastOK      bool      // the configuration read last is in use
	Succeeded   uint64    // applied
	Failed      uint64    // refused
	LastSuccess time.Time // zero: none was applied yet
	Panics      uint64    // recovered panics while building a configuration, which is then refused
}

// A Collector reads all Stats on each scrape. It implements [prometheus.Collector].
type Collector struct {
	cfg      Config
	families []describedFamily
	history  counterHistory
}

// A describedFamily is a family with its Prometheus description.
type describedFamily struct {
	family
	desc *prometheus.Desc
}

// New returns a collector.
func New(cfg Config) *Collector {
	c := &Collector{cfg: cfg}
	for _, s := range sections() {
		if !s.enabled(&cfg) {
			continue
		}
		for _, f := range s.families {
			names := make([]string, len(f.labels))
			for i, l := range f.labels {
				names[i] = l.name
			}
			desc := prometheus.NewDesc(prefix+f.name, f.help, names, nil)
			c.families = append(c.families, describedFamily{family: f, desc: desc})
		}
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.sample()
	for _, f := range c.families {
		f.read(s, &sink{ch: ch, desc: f.desc, kind: f.kind})
	}
}

// A sample holds all Stats of one scrape.
type sample struct {
	notReady error
	resolve  resolve.Stats
	cache    cache.Stats
	routes   []Route
	foreign  int
	udp      []server.UDPStats
	tcp      []server.TCPStats
	admin    admin.Stats
	config   ConfigState
	source   source.Stats
	static   *static.Stats
	handover *handover.Stats
	snapshot *snapshot.Stats
	memory   Memory
	cluster  Cluster
	node     Node
	probes   []Probe
	version  string
	commit   string

	upstreams []upstreamSeries // of routes
}

func (c *Collector) sample() *sample {
	cfg := &c.cfg
	s := &sample{
		notReady: call(cfg.Ready),
		resolve:  call(cfg.Resolve),
		cache:    call(cfg.Cache),
		foreign:  call(cfg.Foreign),
		udp:      call(cfg.UDP),
		tcp:      call(cfg.TCP),
		admin:    call(cfg.Admin),
		config:   call(cfg.Config),
		source:   call(cfg.Source),
		static:   call(cfg.Static),
		handover: call(cfg.Handover),
		snapshot: call(cfg.Snapshot),
		memory:   call(cfg.Memory),
		cluster:  call(cfg.Cluster),
		node:     call(cfg.Node),
		probes:   call(cfg.Probes),
		version:  cfg.Version,
		commit:   cfg.Commit,
	}
	s.routes, s.upstreams = c.history.read(cfg.Upstream)
	return s
}

// call returns f's value, or the zero value if f is nil.
func call[T any](f func() T) (v T) {
	if f != nil {
		v = f()
	}
	return v
}

// A sink emits the series of one family.
type sink struct {
	ch   chan<- prometheus.Metric
	desc *prometheus.Desc
	kind kind
}

// put emits a series with these label values, in the order of the family's labels.
func (s *sink) put(value float64, labels ...string) {
	fixUTF8(labels)
	as := prometheus.GaugeValue
	if s.kind == counter {
		as = prometheus.CounterValue
	}
	s.ch <- prometheus.MustNewConstMetric(s.desc, as, value, labels...)
}

// count emits a series as put does.
func (s *sink) count(value uint64, labels ...string) { s.put(float64(value), labels...) }

// durations emits a histogram from the counts between the bounds; the last count is for longer durations.
// labels is as for put.
func (s *sink) durations(counts []uint64, bounds []time.Duration, total time.Duration, labels ...string) {
	fixUTF8(labels)
	var sum uint64
	buckets := make(map[float64]uint64, len(bounds))
	for i, n := range counts {
		sum += n
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = sum
		}
	}
	s.ch <- prometheus.MustNewConstHistogram(s.desc, sum, total.Seconds(), buckets, labels...)
}

// fixUTF8 makes labels valid UTF-8: the IPv6 zone of an upstream's address may be any bytes.
func fixUTF8(labels []string) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\ufffd")
	}
}
