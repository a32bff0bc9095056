// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// cluster adds what the Stats of a cluster become. Those of the zone are numbered from 8000, those of its source from
// 8100, 8150 and so on.
func cluster(want map[string]float64) {
	for i, kind := range []string{"service", "endpointslice", "namespace", "pod"} {
		n := 8000 + 3*float64(i)
		want[fmt.Sprintf("zone_objects{kind=%q}", kind)] = n
		want[fmt.Sprintf("zone_bytes{kind=%q}", kind)] = n + 1
		want[fmt.Sprintf("zone_refused_objects{kind=%q}", kind)] = n + 2
		want[fmt.Sprintf("zone_restored{kind=%q}", kind)] = 0
		n = 8100 + 50*float64(i)
		want[fmt.Sprintf("watch_synced{kind=%q}", kind)] = 1
		want[fmt.Sprintf("watch_age_seconds{kind=%q}", kind)] = n / 1e9
		want[fmt.Sprintf("watch_events_total{kind=%q}", kind)] = n + 1
		want[fmt.Sprintf("watch_restarts_total{kind=%q}", kind)] = n + 2
		want[fmt.Sprintf("watch_failures_total{kind=%q}", kind)] = n + 3
	}
	maps.Copy(want, map[string]float64{
		"zone_index_bytes": 8012, "zone_serial": 8013, "zone_changes_told_total": 8014,
		"watch_requests_total": 8301, `panics_total{where="watch"}`: 8302, "central_synced": 1, `central_endpoints{state="ready"}`: 1, `central_endpoints{state="far"}`: 0, `central_endpoints{state="last_resort"}`: 1,
	})
}

// sourceChanges is, for each number and truth of watched, what it is with another one.
func sourceChanges() map[string]watch.Stats {
	list := map[string]watch.Stats{}
	for name, change := range changes(watched()) {
		if name != "Kinds" && name != "ServiceWatch" { // below
			list["Stats."+name] = change
		}
	}
	for name, change := range changes(watched().Kinds[1]) {
		if name != "LastError" && name != "Kind" { // a text for /status; a label
			s := watched()
			s.Kinds[1] = change
			list["KindStats."+name] = s
		}
	}
	s := watched()
	s.ServiceWatch.Synced = false
	list["ServiceWatchStats.Synced"] = s
	return list
}

// TestEventLatency adds up the histograms of two kinds.
func TestEventLatency(t *testing.T) {
	t.Parallel()
	stats := watch.Stats{Kinds: []watch.KindStats{{Kind: zone.Services}, {Kind: zone.Slices}}}
	for i := range stats.Kinds[0].Arrival.Counts {
		stats.Kinds[0].Arrival.Counts[i] = 1
		stats.Kinds[1].Arrival.Counts[i] = uint64(i)
	}
	stats.Kinds[0].Arrival.Sum, stats.Kinds[1].Arrival.Sum = time.Second, 250*time.Millisecond
	stats.Kinds[1].Change.Counts[9], stats.Kinds[1].Change.Sum = 3, 300*time.Millisecond
	sample := metrics.Sample{Watch: &stats}
	want := `
# HELP nodecache_event_to_answer_seconds Time until answers reflect a change of an object: since the event's arrival, or since the change itself, if the object has a timestamp; the latter includes clock skew.
# TYPE nodecache_event_to_answer_seconds histogram
nodecache_event_to_answer_seconds_bucket{from="arrival",le="5e-05"} 1
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.0001"} 3
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.00025"} 6
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.001"} 10
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.005"} 15
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.01"} 21
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.025"} 28
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.05"} 36
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.1"} 45
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.25"} 55
nodecache_event_to_answer_seconds_bucket{from="arrival",le="0.5"} 66
nodecache_event_to_answer_seconds_bucket{from="arrival",le="1"} 78
nodecache_event_to_answer_seconds_bucket{from="arrival",le="2.5"} 91
nodecache_event_to_answer_seconds_bucket{from="arrival",le="10"} 105
nodecache_event_to_answer_seconds_bucket{from="arrival",le="+Inf"} 120
nodecache_event_to_answer_seconds_sum{from="arrival"} 1.25
nodecache_event_to_answer_seconds_count{from="arrival"} 120
nodecache_event_to_answer_seconds_bucket{from="change",le="5e-05"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.0001"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.00025"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.001"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.005"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.01"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.025"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.05"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.1"} 0
nodecache_event_to_answer_seconds_bucket{from="change",le="0.25"} 3
nodecache_event_to_answer_seconds_bucket{from="change",le="0.5"} 3
nodecache_event_to_answer_seconds_bucket{from="change",le="1"} 3
nodecache_event_to_answer_seconds_bucket{from="change",le="2.5"} 3
nodecache_event_to_answer_seconds_bucket{from="change",le="10"} 3
nodecache_event_to_answer_seconds_bucket{from="change",le="+Inf"} 3
nodecache_event_to_answer_seconds_sum{from="change"} 0.3
nodecache_event_to_answer_seconds_count{from="change"} 3
`
	if err := testutil.CollectAndCompare(collector(sample), strings.NewReader(want), "nodecache_event_to_answer_seconds"); err != nil {
		t.Error(err)
	}
}

// TestClusterParts leaves out the series of what is not there.
func TestClusterParts(t *testing.T) {
	t.Parallel()
	behind := watch.Stats{Kinds: []watch.KindStats{{Kind: zone.Slices, Failures: 1}, {Kind: zone.Services, Synced: true}}}
	for _, tc := range []struct {
		name   string
		zone   *zone.Stats
		watch  *watch.Stats
		routes []metrics.Route
		want   []string // of the cluster's
	}{
		{name: "no cluster"},
		{
			name: "a zone", zone: distinct().Zone,
			want: []string{
				`zone_bytes{kind="endpointslice"}`, `zone_bytes{kind="namespace"}`, `zone_bytes{kind="pod"}`, `zone_bytes{kind="service"}`,
				`zone_changes_told_total`, `zone_index_bytes`,
				`zone_objects{kind="endpointslice"}`, `zone_objects{kind="namespace"}`, `zone_objects{kind="pod"}`, `zone_objects{kind="service"}`,
				`zone_refused_objects{kind="endpointslice"}`, `zone_refused_objects{kind="namespace"}`, `zone_refused_objects{kind="pod"}`, `zone_refused_objects{kind="service"}`,
				`zone_restored{kind="endpointslice"}`, `zone_restored{kind="namespace"}`, `zone_restored{kind="pod"}`, `zone_restored{kind="service"}`,
				`zone_serial`,
			},
		},
		{
			name: "a watched service without a report yet", watch: &watch.Stats{},
			routes: []metrics.Route{{Zone: ".", Stats: upstream.Stats{}}, {Zone: "cluster.local.", Service: "kube-system/kube-dns"}},
			want:   []string{`central_endpoints{state="far"}`, `central_endpoints{state="last_resort"}`, `central_endpoints{state="ready"}`, `central_synced`, `watch_requests_total`},
		},
		{
			name: "configured addresses", watch: &watch.Stats{},
			routes: []metrics.Route{{Zone: "cluster.local."}},
			want:   []string{`watch_requests_total`},
		},
		{
			name: "two kinds, one of them not in sync", watch: &behind,
			want: []string{
				`watch_age_seconds{kind="service"}`,
				`watch_events_total{kind="endpointslice"}`, `watch_events_total{kind="service"}`,
				`watch_failures_total{kind="endpointslice"}`, `watch_failures_total{kind="service"}`,
				`watch_requests_total`,
				`watch_restarts_total{kind="endpointslice"}`, `watch_restarts_total{kind="service"}`,
				`watch_synced{kind="endpointslice"}`, `watch_synced{kind="service"}`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			found := series(gather(t, metrics.Sample{Zone: tc.zone, Watch: tc.watch, Routes: tc.routes}))
			got := slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool {
				return name == "zone_short_total" || !strings.HasPrefix(name, "zone_") && !strings.HasPrefix(name, "watch_") && !strings.HasPrefix(name, "central_")
			})
			if !slices.Equal(tc.want, got) {
				t.Errorf("series %q, want %q", got, tc.want)
			}
			if value, ok := found[`watch_synced{kind="endpointslice"}`]; ok && value != 0 {
				t.Errorf("endpointslices are in sync: %v, want 0", value)
			}
		})
	}
}
