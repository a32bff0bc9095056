// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/secure"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// prefix starts the name of every family.
const prefix = "nodecache_"

// A Sample holds what one scrape shows. A part that is nil is not configured and has no series.
type Sample struct {
	Version, Commit string                // Commit is empty if unknown
	Node, Cluster   string                // their names; Cluster is empty if not configured
	Problems        map[status.Reason]int // problems that last
	NotReady        error                 // why /readyz fails; nil: ready
	Resolve         resolve.Stats
	Cache           cache.Stats
	Keep            []refresh.Answer // nil: cache.keep has no names
	Static          *localdata.Stats // hosts and templates
	Block           *blocklist.Stats // nil: there are no block lists
	Etcd            *etcd.Stats
	Snapshot        *snapshot.Stats
	Dnstap          *dnstap.Stats // messages for the collector
	Notify          *notify.Stats // messages for secondary servers
	Push            *push.Stats   // subscriptions; nil: push.clients is not set
	Memory          status.Memory
	Routes          []Route                 // zones are distinct
	Zone            *zone.Stats             // the names of the cluster
	Discovery       *discovery.Stats        // of the central resolver's endpoints by DNS; nil: off. Its series are those of Watch
	Subscribe       *subscribe.Stats        // session with the central resolver that reports changes; nil: off
	Watch           *watch.Stats            // watches of objects and of the central resolver's endpoints
	Link            *netif.Stats            // the link of the listen addresses
	Intercept       *intercept.Stats        // lease and rules
	Mode            string                  // mode of the interception, as configured
	Pods            map[string]*pods.Counts // counts of the node's pods, by namespace
	Probes          []healthcheck.Stats     // labels are distinct
	Foreign         int                     // sockets of other processes at the server's addresses
	UDP             []server.UDPStats
	TCP             []server.TCPStats
	Config          Config
	Source          configsource.Status // source of the configuration
	Handover        *handover.Stats
	Kernel          *status.Kernel // hits answered in the kernel
	Admin           admin.Stats
	Reviews         *secure.Stats // checks of tokens; nil: there is no admin.tls
}

// A Route holds the upstreams of one zone.
type Route struct {
	Zone    string
	Service string // "namespace/name" of the endpoints, exported as one upstream; empty: configured upstreams
	Stats   upstream.Stats
}

// Config describes the configurations so far.
type Config struct {
	Generation  uint64    // generation of the configuration in use
	LastOK      bool      // the configuration read last is in use
	NeedRestart bool      // changed keys are not in use before a restart
	Succeeded   uint64    // configurations applied
	Failed      uint64    // configurations refused
	LastSuccess time.Time // time of the latest reload that was applied; zero: none yet
	Panics      uint64    // recovered panics while building a configuration, which is then refused
}

// A Collector reads a sample on each scrape. It implements [prometheus.Collector].
type Collector struct {
	descs map[string]*prometheus.Desc // descriptions by family name, without the prefix

	mu      sync.Mutex // guards history, and serializes calls of read: a later scrape has later counters
	read    func() Sample
	history map[[2]string]*endpointHistory // counters of services, by zone and service
}

// New returns a collector. It calls read once per scrape; read must not block.
func New(read func() Sample) *Collector {
	c := &Collector{read: read, descs: map[string]*prometheus.Desc{}}
	for _, f := range families() {
		names := make([]string, len(f.labels))
		for i, l := range f.labels {
			names[i] = l.name
		}
		c.descs[f.name] = prometheus.NewDesc(prefix+f.name, f.help, names, nil)
	}
	return c
}

// families lists all families, in the order of docs/metrics.md.
func families() []family {
	t := &table{}
	t.addAll(&Sample{
		Keep: []refresh.Answer{}, Static: &localdata.Stats{}, Block: &blocklist.Stats{}, Etcd: &etcd.Stats{}, Dnstap: &dnstap.Stats{}, Notify: &notify.Stats{}, Push: &push.Stats{}, Reviews: &secure.Stats{}, Snapshot: &snapshot.Stats{}, Zone: &zone.Stats{}, Watch: &watch.Stats{}, Subscribe: &subscribe.Stats{},
		Link: &netif.Stats{}, Intercept: &intercept.Stats{}, Pods: map[string]*pods.Counts{}, Handover: &handover.Stats{}, Kernel: &status.Kernel{},
	}, nil)
	return t.families
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s, upstreams := c.sample()
	t := &table{ch: ch, descs: c.descs}
	t.addAll(&s, upstreams)
}

func (c *Collector) sample() (Sample, []upstreamSeries) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.read()
	return s, c.upstreams(s.Routes)
}

// A kind is a Prometheus metric type.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// A label is a label of a family.
type label struct {
	name   string
	values []string // all possible values; nil: they come from the configuration or the build
}

// A family is a metric: all series of one name.
type family struct {
	section string // its heading in docs/metrics.md
	name    string // name without the prefix
	kind    kind
	help    string
	labels  []label
}

// A table writes the series of one scrape, family by family. Without a channel it lists the families.
type table struct {
	section  string
	families []family
	ch       chan<- prometheus.Metric // nil: only families is filled
	descs    map[string]*prometheus.Desc
}

// A series writes the series of one family. Label values are in the order of the family's labels.
type series struct {
	ch   chan<- prometheus.Metric // nil: the series are left out
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// add begins a family.
func (t *table) add(k kind, name, help string, labels ...label) series {
	if t.ch == nil {
		t.families = append(t.families, family{t.section, name, k, help, labels})
		return series{}
	}
	value := prometheus.GaugeValue
	if k == counter {
		value = prometheus.CounterValue
	}
	return series{ch: t.ch, desc: t.descs[name], kind: value}
}

func (s series) put(value float64, labels ...string) {
	if s.ch != nil {
		s.ch <- prometheus.MustNewConstMetric(s.desc, s.kind, value, validUTF8(labels)...)
	}
}

// durations writes a histogram from the counts between the bounds; the last count is for longer durations.
func (s series) durations(counts []uint64, bounds []time.Duration, total time.Duration, labels ...string) {
	if s.ch == nil {
		return
	}
	var sum uint64
	buckets := make(map[float64]uint64, len(bounds))
	for i, n := range counts {
		sum += n
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = sum
		}
	}
	s.ch <- prometheus.MustNewConstHistogram(s.desc, sum, total.Seconds(), buckets, validUTF8(labels)...)
}

// validUTF8 makes labels valid UTF-8: the IPv6 zone of an upstream's address may be any bytes.
func validUTF8(labels []string) []string {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\ufffd")
	}
	return labels
}

// total adds a counter with one series.
func (t *table) total(name, help string, n uint64) { t.add(counter, name, help).put(float64(n)) }

// value adds a gauge with one series.
func (t *table) value(name, help string, v float64) { t.add(gauge, name, help).put(v) }

// truth adds a gauge with one series: 1 if yes, else 0.
func (t *table) truth(name, help string, yes bool) { t.value(name, help, boolValue(yes)) }

// state adds a gauge with a series for each value of its label: 1 for the current one, else 0.
func (t *table) state(name, help string, l label, current string) {
	s := t.add(gauge, name, help, l)
	for _, value := range l.values {
		s.put(boolValue(value == current), value)
	}
}

// by adds a family with a series for each value of its label, in order.
func by[N int | int64 | uint64 | float64](t *table, k kind, name, help string, l label, values ...N) {
	s := t.add(k, name, help, l)
	for i, v := range values {
		s.put(float64(v), l.values[i])
	}
}

// column returns the value that of gives for each element.
func column[S any, N int64 | float64](list []S, of func(*S) N) []N {
	values := make([]N, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}
	return values
}

// sum adds up the values that of gives for the elements.
func sum[S any](list []S, of func(*S) uint64) (n uint64) {
	for i := range list {
		n += of(&list[i])
	}
	return n
}

// boolValue returns 1 for true, else 0.
func boolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// unixSeconds returns t as Unix time. A float64 cannot hold nanoseconds exactly.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
