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

// Config says where the values come from. Each function is called once a scrape,
// maybe by several scrapes at once, and must not wait. A nil function leaves the
// families of its section out.
type Config struct {
	Ready    func() error // as /readyz asks: nil error: ready to serve
	Resolve  func() resolve.Stats
	Cache    func() cache.Stats
	Snapshot func() *snapshot.Stats // nil: there are no snapshots
	Memory   func() Memory
	Upstream func() []Route // zones are distinct
	Cluster  func() Cluster
	Node     func() Node
	Static   func() *static.Stats // nil: nothing is answered from the configuration
	Probes   func() []Probe       // labels are distinct
	Foreign  func() int           // sockets of other processes at the server's addresses
	UDP      func() []server.UDPStats
	TCP      func() []server.TCPStats
	Admin    func() admin.Stats
	Config   func() ConfigState
	Source   func() source.Stats    // of the configuration
	Handover func() *handover.Stats // nil: there is none

	Version string
	Commit  string // empty: not known
}

// A Route is a zone's upstreams.
type Route struct {
	Zone    string
	Service string // "namespace/name": its endpoints are the upstreams, shown as one; empty: they are configured
	Stats   upstream.Stats
}

// ConfigState is what became of the configurations so far.
type ConfigState struct {
	Generation  uint64    // of the one in use
	LastOK      bool      // the last one read is the one in use
	Succeeded   uint64    // put to work
	Failed      uint64    // refused
	LastSuccess time.Time // zero: none was put to work yet
	Panics      uint64    // defects that cut short building what one asks for: each is refused
}

// A Collector reads the Stats on each scrape. It implements
// [prometheus.Collector].
type Collector struct {
	cfg      Config
	families []described
	roll     roll
}

// A described is a family with what Prometheus knows it by.
type described struct {
	family
	desc *prometheus.Desc
}

// New makes a collector.
func New(cfg Config) *Collector {
	c := &Collector{cfg: cfg}
	for _, s := range sections() {
		if !s.present(&cfg) {
			continue
		}
		for _, f := range s.families {
			names := make([]string, len(f.labels))
			for i, l := range f.labels {
				names[i] = l.name
			}
			desc := prometheus.NewDesc(prefix+f.name, f.help, names, nil)
			c.families = append(c.families, described{family: f, desc: desc})
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

// A sample is all Stats at one scrape.
type sample struct {
	unready  error
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
	kept     *snapshot.Stats
	memory   Memory
	cluster  Cluster
	node     Node
	probes   []Probe
	version  string
	commit   string

	upstreams []named // of routes
}

func (c *Collector) sample() *sample {
	cfg := &c.cfg
	s := &sample{
		unready:  call(cfg.Ready),
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
		kept:     call(cfg.Snapshot),
		memory:   call(cfg.Memory),
		cluster:  call(cfg.Cluster),
		node:     call(cfg.Node),
		probes:   call(cfg.Probes),
		version:  cfg.Version,
		commit:   cfg.Commit,
	}
	s.routes, s.upstreams = c.roll.read(cfg.Upstream)
	return s
}

// call is f's value, or nothing if there is no f.
func call[T any](f func() T) (v T) {
	if f != nil {
		v = f()
	}
	return v
}

// A sink takes the series of one family.
type sink struct {
	ch   chan<- prometheus.Metric
	desc *prometheus.Desc
	kind kind
}

// put adds the series with these label values, in the order of the family's
// labels.
func (s *sink) put(value float64, labels ...string) {
	mend(labels)
	as := prometheus.GaugeValue
	if s.kind == counter {
		as = prometheus.CounterValue
	}
	s.ch <- prometheus.MustNewConstMetric(s.desc, as, value, labels...)
}

// count adds a series as put does.
func (s *sink) count(value uint64, labels ...string) { s.put(float64(value), labels...) }

// durations adds a histogram from the counts between the bounds, the last of
// which is of what was longer than all of them. labels is as for put.
func (s *sink) durations(counts []uint64, bounds []time.Duration, total time.Duration, labels ...string) {
	mend(labels)
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

// mend makes text of labels: an upstream's IPv6 zone may be any bytes.
func mend(labels []string) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\ufffd")
	}
}
