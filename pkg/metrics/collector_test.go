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

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/upstream"
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

// arrays adds the series of the arrays of resolve.Stats, and returns the first value of the fields after them. They are numbered
// from 1000: two by two by nine queries, eight responses for each source, 17 durations and their sum.
func arrays(want map[string]float64) (next float64) {
	n := 1000.0
	for _, proto := range []string{"udp", "tcp"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, class := range []string{"A", "AAAA", "SRV", "PTR", "CNAME", "TXT", "MX", "HTTPS", "other"} {
				want[fmt.Sprintf("queries_total{family=%q,proto=%q,type=%q}", family, proto, class)] = n
				n++
			}
		}
	}
	for _, source := range resolve.Sources() {
		for _, rcode := range []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "BADVERS", "other"} {
			want[fmt.Sprintf("responses_total{rcode=%q,source=%q}", rcode, source)] = n
			n++
		}
	}
	return n + 18
}

// upstreams adds what a server's Stats become that are numbered from first.
func upstreams(want map[string]float64, zone, name string, first float64) {
	labels := fmt.Sprintf("upstream=%q,zone=%q", name, zone)
	s := upstreamNamed("udp", "192.0.2.1:53", int64(first))
	for cause, reason := range []string{
		"timeout", "conn_refused", "network", "limit", "malformed", "mismatch", "servfail", "refused", "formerr", "notimp", "rcode", "tls", "lame",
	} {
		want[fmt.Sprintf("upstream_failures_total{reason=%q,%s}", reason, labels)] = float64(s.Failures[cause])
	}
	for i, state := range []string{"good", "failing", "down", "looped"} {
		want[fmt.Sprintf("upstream_servers{state=%q,%s}", state, labels)] = float64(max(1-i, 0))
	}
	for name, value := range map[string]float64{
		"requests_total": float64(s.Requests), "truncated_total": float64(s.Truncated),
		"hedges_total": float64(s.Hedged), "hedges_won_total": float64(s.Won), "probes_total": float64(s.Probes),
		"latency_seconds": s.SRTT.Seconds(), "late_seconds": s.P95.Seconds(), "outstanding": float64(s.Outstanding),
		"udp_sockets": float64(s.Sockets), "connections": float64(s.Open),
		"connections_opened_total": float64(s.Opened), "tls_resumptions_total": float64(s.Resumed),
	} {
		want["upstream_"+name+"{"+labels+"}"] = value
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	want := map[string]float64{
		"ready": 1,

		"cache_hits_total":                                  2000,
		"cache_misses_total":                                2001,
		"cache_expired_total":                               2002,
		"cache_insertions_total":                            2003,
		"cache_evictions_total":                             2004,
		"cache_expirations_total":                           2005,
		"cache_rejected_total":                              2006,
		"cache_stale_total":                                 2007,
		"cache_cuts_total":                                  2008,
		"cache_invalidated_total":                           2009,
		"cache_outdated_total":                              2010,
		"cache_removed_total":                               2011,
		"cache_entries":                                     2012,
		"cache_bytes":                                       2013,
		"cache_fixed_bytes":                                 2014,
		"cache_capacity_bytes":                              2015,
		`snapshot_saves_total{result="success"}`:            2101,
		`snapshot_saves_total{result="failure"}`:            2102,
		"snapshot_last_save_timestamp_seconds":              1600000000.5,
		"snapshot_bytes":                                    2103,
		"snapshot_last_save_duration_seconds":               2104e-9,
		`snapshot_load{outcome="none"}`:                     0,
		`snapshot_load{outcome="loaded"}`:                   1,
		`snapshot_load{outcome="refused"}`:                  0,
		`snapshot_restored{kind="answers"}`:                 2105,
		`snapshot_restored{kind="objects"}`:                 2106,
		"snapshot_restored_age_seconds":                     2107e-9,
		"memory_container_limit_bytes":                      2200,
		"memory_go_limit_bytes":                             2201,
		"memory_go_bytes":                                   2202,
		"memory_snapshot_bytes":                             2204,
		"inflight_limit":                                    2205,
		"waiting_limit":                                     2206,
		`panics_total{where="upstream"}`:                    3001 + 3002 + 3003,
		"udp_received_total":                                4000,
		"udp_sent_total":                                    4001,
		"udp_unsent_total":                                  4002,
		"udp_oversized_total":                               4003,
		`panics_total{where="udp"}`:                         4004,
		"tcp_sessions":                                      5000,
		"tcp_sessions_accepted_total":                       5001,
		"tcp_received_total":                                5002,
		`tcp_sessions_refused_total{reason="sessions"}`:     5003,
		`tcp_sessions_refused_total{reason="per_client"}`:   5004,
		`tcp_sessions_closed_total{reason="shed"}`:          5005,
		"tcp_accept_errors_total":                           5006,
		`tcp_sessions_closed_total{reason="idle"}`:          5007,
		`tcp_sessions_closed_total{reason="slow"}`:          5008,
		`tcp_sessions_closed_total{reason="short_frame"}`:   5009,
		`tcp_sessions_closed_total{reason="write_timeout"}`: 5010,
		`tcp_sessions_closed_total{reason="overflow"}`:      5011,
		`tcp_sessions_closed_total{reason="memory"}`:        5012,
		"tcp_oversized_total":                               5013,
		"tcp_stalls_total":                                  5014,
		`tcp_sessions_closed_total{reason="drain"}`:         5015,
		`panics_total{where="tcp"}`:                         5016,
		"admin_connections_refused_total":                   6000,
		"admin_requests_refused_total":                      6001,
		`panics_total{where="admin"}`:                       6002,
		"config_generation":                                 7001,
		"config_last_reload_successful":                     1,
		`config_reloads_total{result="success"}`:            7002,
		`config_reloads_total{result="failure"}`:            7003,
		"config_last_reload_success_timestamp_seconds":      1700000000.25,
		"foreign_sockets":                                   9500,
		fmt.Sprintf(`build_info{commit="0123abc",goversion=%q,version="v1.2.3"}`, runtime.Version()): 1,
	}
	n := arrays(want)
	names := []string{"dropped_total", "malformed_total", "rewritten_total", "dns64_made_total", "zone_short_total", "joined_total", "prefetches_total", "failures_total", `panics_total{where="resolve"}`}
	for _, reason := range resolve.Sheds() {
		names = append(names, fmt.Sprintf("shed_total{reason=%q}", reason))
	}
	for i, name := range append(names, "inflight", "waiting", "clients") {
		want[name] = n + float64(i)
	}
	cluster(want)
	node(want)
	probes(want)
	sources(want)
	upstreams(want, ".", "udp://192.0.2.1:53", 3100)
	upstreams(want, ".", "tcp://192.0.2.1:53", 3200)
	upstreams(want, "example.com.", "udp://[2001:db8::1]:5353", 3300)
	endpoints(want, "cluster.local.", "kube-system/kube-dns", 3400, 3500)
	same(t, "series", want, series(gather(t, distinct())))
}

func TestDurations(t *testing.T) {
	t.Parallel()
	sample := distinct()
	sample.Resolve = resolve.Stats{Total: 1500 * time.Millisecond}
	for i := range sample.Resolve.Durations {
		sample.Resolve.Durations[i] = uint64(i + 1)
	}
	want := `
# HELP nodecache_request_duration_seconds Time from a query's arrival to its response. Responses from memory are timed per batch.
# TYPE nodecache_request_duration_seconds histogram
nodecache_request_duration_seconds_bucket{le="5e-05"} 1
nodecache_request_duration_seconds_bucket{le="0.0001"} 3
nodecache_request_duration_seconds_bucket{le="0.00025"} 6
nodecache_request_duration_seconds_bucket{le="0.0005"} 10
nodecache_request_duration_seconds_bucket{le="0.001"} 15
nodecache_request_duration_seconds_bucket{le="0.0025"} 21
nodecache_request_duration_seconds_bucket{le="0.005"} 28
nodecache_request_duration_seconds_bucket{le="0.01"} 36
nodecache_request_duration_seconds_bucket{le="0.025"} 45
nodecache_request_duration_seconds_bucket{le="0.05"} 55
nodecache_request_duration_seconds_bucket{le="0.1"} 66
nodecache_request_duration_seconds_bucket{le="0.25"} 78
nodecache_request_duration_seconds_bucket{le="0.5"} 91
nodecache_request_duration_seconds_bucket{le="1"} 105
nodecache_request_duration_seconds_bucket{le="2.5"} 120
nodecache_request_duration_seconds_bucket{le="5"} 136
nodecache_request_duration_seconds_bucket{le="+Inf"} 153
nodecache_request_duration_seconds_sum 1.5
nodecache_request_duration_seconds_count 153
`
	err := testutil.CollectAndCompare(collector(sample), strings.NewReader(want), "nodecache_request_duration_seconds")
	if err != nil {
		t.Error(err)
	}
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
	same(t, "series with twice the listeners", want, series(gather(t, sample)))
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

// TestUnknown checks that an unknown value has no series, and that a value known to be bad has one.
func TestUnknown(t *testing.T) {
	t.Parallel()
	sample := distinct()
	u := upstreamNamed("udp", "192.0.2.1:53", 1)
	u.SRTT, u.P95 = 0, 0
	sample.Routes = []metrics.Route{{Zone: ".", Stats: upstream.Stats{Servers: []upstream.ServerStats{u}}}}
	sample.Config = metrics.Config{}
	got := series(gather(t, sample))
	for name := range got {
		if strings.HasPrefix(name, "upstream_lat") || strings.HasPrefix(name, "config_last_reload_success_timestamp") {
			t.Errorf("%s is %v, want no such series", name, got[name])
		}
	}
	if value, ok := got["config_last_reload_successful"]; !ok || value != 0 {
		t.Errorf("config_last_reload_successful is %v, %v, want 0", value, ok)
	}
}

// TestInvalidUTF8Labels has an IPv6 zone that is no UTF-8, as a resolv.conf may.
func TestInvalidUTF8Labels(t *testing.T) {
	t.Parallel()
	sample := distinct()
	u := upstreamNamed("udp", "[fe80::1%\xff]:53", 1)
	sample.Routes = []metrics.Route{{Zone: ".", Stats: upstream.Stats{Servers: []upstream.ServerStats{u}}}}
	name := "upstream_requests_total{upstream=\"udp://[fe80::1%\ufffd]:53\",zone=\".\"}"
	same(t, name, 1, series(gather(t, sample))[name])
}

// TestNoParts has a process in which nothing is configured: optional parts have no series.
func TestNoParts(t *testing.T) {
	t.Parallel()
	for _, f := range gather(t, metrics.Sample{}) {
		for _, part := range []string{"static", "snapshot", "zone_objects", "watch", "central", "interface", "intercept", "handover", "upstream", "probe"} {
			if strings.HasPrefix(f.GetName(), "nodecache_"+part) {
				t.Errorf("%s has series", f.GetName())
			}
		}
	}
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
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestConcurrentScrapes scrapes from several goroutines what others count in.
func TestConcurrentScrapes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	held, err := cache.New(cache.Config{Size: cache.MinSize}, now)
	must(t, err)
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
	must(t, err)
	got := series(families)
	for _, name := range []string{"cache_misses_total", "config_generation"} {
		if got[name] != workers*rounds {
			t.Errorf("%s is %v, want %d", name, got[name], workers*rounds)
		}
	}
}
