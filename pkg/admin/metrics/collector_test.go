// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// series is every series but histograms, spelled as in a scrape without the prefix.
func series(families []*dto.MetricFamily) map[string]float64 {
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetType() == dto.MetricType_HISTOGRAM {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := strings.TrimPrefix(f.GetName(), "nodecache_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return found
}

// TestValues compares every series of distinct with a file, in which a value tells the field that it is of.
func TestValues(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for line := range strings.Lines(scrape(t, collector(distinct()), nil).Body.String()) {
		if strings.HasPrefix(line, "nodecache_") {
			got.WriteString(strings.Replace(line, runtime.Version(), "VERSION", 1))
		}
	}
	assert.Golden(t, "testdata/scrape.txt", got.String())
}

// TestParts compares with a file the series of parts that are not configured, or of which nothing is known yet.
func TestParts(t *testing.T) {
	t.Parallel()
	const cluster, node = "zone_ watch_ central_", "interface_ intercept_"
	var got strings.Builder
	for _, tt := range []struct {
		name, of string // prefixes of series
		change   func(*metrics.Sample)
	}{
		{"nothing", cluster + " static_ snapshot_ " + node + " handover_ kernel_ upstream_ probe_", func(s *metrics.Sample) { *s = metrics.Sample{} }},
		{"a zone", cluster, func(s *metrics.Sample) { *s = metrics.Sample{Zone: s.Zone} }},
		{"a watched service without a report yet", cluster, func(s *metrics.Sample) {
			*s = metrics.Sample{Watch: &watch.Stats{}, Routes: []metrics.Route{{Zone: "."}, {Zone: "cluster.local.", Service: "kube-system/kube-dns"}}}
		}},
		{"configured addresses", cluster, func(s *metrics.Sample) {
			*s = metrics.Sample{Watch: &watch.Stats{}, Routes: []metrics.Route{{Zone: "cluster.local."}}}
		}},
		{"two kinds, one of them not in sync", cluster, func(s *metrics.Sample) {
			*s = metrics.Sample{Watch: &watch.Stats{Kinds: []watch.KindStats{{Kind: zone.Slices, Failures: 1}, {Kind: zone.Services, Synced: true}}}}
		}},
		{"neither link nor rules", node, func(s *metrics.Sample) { s.Link, s.Intercept = nil, nil }},
		{"a link that is not there yet", node, func(s *metrics.Sample) { s.Link, s.Intercept = &netif.Stats{}, nil }},
		{"rules of one family", "interface_ intercept_lease_held", func(s *metrics.Sample) {
			s.Link, s.Intercept = nil, &intercept.Stats{Leases: []intercept.LeaseStats{{Address: own6, Held: true}}, NotHeldFor: time.Minute}
		}},
		{"no folder, no limit", "snapshot_ memory_", func(s *metrics.Sample) { s.Snapshot, s.Memory = nil, status.Memory{} }},
		{"the first start, two limits", "snapshot_ memory_", func(s *metrics.Sample) {
			s.Snapshot, s.Memory = &snapshot.Stats{}, status.Memory{Cgroup: 2, GoLimit: 1}
		}},
		{"no static answers, no hand-over", "static_ handover_", func(s *metrics.Sample) { s.Static, s.Handover = nil, nil }},
		{"no block lists", "block_", func(s *metrics.Sample) { s.Block = nil }},
		{"no etcd", "etcd_", func(s *metrics.Sample) { s.Etcd = nil }},
		{"a hand-over that has not begun", "handover_", func(s *metrics.Sample) { s.Handover = new(handover.Stats) }},
		{"no time of a server, no configuration", "upstream_lat config_", func(s *metrics.Sample) {
			u := upstreamNamed("udp", "192.0.2.1:53", 1)
			u.SRTT, u.P95 = 0, 0
			s.Routes, s.Config = []metrics.Route{{Zone: ".", Stats: upstream.Stats{Servers: []upstream.ServerStats{u}}}}, metrics.Config{}
		}},
	} {
		sample := distinct()
		tt.change(&sample)
		got.WriteString("# " + tt.name + "\n")
		found := series(gather(t, sample))
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if slices.ContainsFunc(strings.Fields(tt.of), func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				_, _ = fmt.Fprintln(&got, name, found[name])
			}
		}
	}
	assert.Golden(t, "testdata/parts.txt", got.String())
}

// TestSeveralListeners adds up what a second listener counted.
func TestSeveralListeners(t *testing.T) {
	t.Parallel()
	sample := distinct()
	one := series(gather(t, sample))
	udp, tcp := sample.UDP[0], sample.TCP[0]
	sample.UDP = []server.UDPStats{udp, udp}
	sample.TCP = []server.TCPStats{tcp, tcp}
	want := maps.Clone(one)
	for name, value := range one {
		if strings.HasPrefix(name, "udp_") || strings.HasPrefix(name, "tcp_") ||
			name == `panics_total{where="udp"}` || name == `panics_total{where="tcp"}` {
			want[name] = 2 * value
		}
	}
	assert.Same(t, "series with twice the listeners", want, series(gather(t, sample)))
}

// render is a scrape as one text that is the same for the same series.
func render(families []*dto.MetricFamily) string {
	var b strings.Builder
	for _, f := range families {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// TestInvalidUTF8Labels has an IPv6 zone that is no UTF-8, as a resolv.conf may.
func TestInvalidUTF8Labels(t *testing.T) {
	t.Parallel()
	sample := distinct()
	u := upstreamNamed("udp", "[fe80::1%\xff]:53", 1)
	sample.Routes = []metrics.Route{{Zone: ".", Stats: upstream.Stats{Servers: []upstream.ServerStats{u}}}}
	name := "upstream_requests_total{upstream=\"udp://[fe80::1%\ufffd]:53\",zone=\".\"}"
	assert.Same(t, name, 1, series(gather(t, sample))[name])
}

// TestFamilies holds a scrape to the table: its names, types, texts and labels, and the values of closed labels.
func TestFamilies(t *testing.T) {
	t.Parallel()
	want := map[string]metrics.Row{}
	for _, c := range metrics.Chapters() {
		for _, r := range c.Rows {
			if _, twice := want[r.Name]; twice {
				t.Errorf("%s is in the table twice", r.Name)
			}
			want[r.Name] = r
		}
	}
	got := map[string]metrics.Row{}
	for _, f := range gather(t, distinct()) {
		got[f.GetName()] = metrics.Row{
			Name: f.GetName(), Kind: strings.ToLower(f.GetType().String()), Help: f.GetHelp(), Labels: columns(f, want[f.GetName()]),
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("families (-table +scrape):\n%s", diff)
	}
}

// columns is the labels of a family in the order of its row, with the values that a closed set shows.
func columns(f *dto.MetricFamily, row metrics.Row) []metrics.Column {
	values := map[string][]string{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(values[l.GetName()], l.GetValue()) {
				values[l.GetName()] = append(values[l.GetName()], l.GetValue())
			}
		}
	}
	var list []metrics.Column
	for _, c := range row.Labels {
		seen, ok := values[c.Name]
		delete(values, c.Name)
		switch {
		case !ok:
			continue
		case c.Values == nil:
			seen = nil
		case cmp.Equal(slices.Sorted(slices.Values(c.Values)), slices.Sorted(slices.Values(seen))):
			seen = c.Values // sorted in a scrape
		}
		list = append(list, metrics.Column{Name: c.Name, Values: seen})
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, metrics.Column{Name: name, Values: values[name]})
	}
	return list
}

func TestLint(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(registered(t, distinct))
	assert.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestConcurrentScrapes scrapes from several goroutines what others count in.
func TestConcurrentScrapes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	held, err := cache.New(cache.Config{Size: cache.MinSize}, now)
	assert.NoError(t, err)
	var done atomic.Uint64
	registry := registered(t, func() metrics.Sample {
		return metrics.Sample{Cache: held.Stats(), Config: metrics.Config{Generation: done.Load()}}
	})
	const workers, rounds = 4, 50
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rounds {
				held.Lookup([]byte("\x01a\x00\x00\x01\x00"), now, nil) // a., A
				done.Add(1)
			}
		})
		all.Go(func() {
			for range rounds {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	families, err := registry.Gather()
	assert.NoError(t, err)
	got := series(families)
	for _, name := range []string{"cache_misses_total", "config_generation"} {
		assert.Equal(t, name, workers*rounds, got[name])
	}
}
