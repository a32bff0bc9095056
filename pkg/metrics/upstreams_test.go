// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// endpoints adds what the Stats of a service's two servers become: sums, and the latency of the quicker.
func endpoints(want map[string]float64, zone, service string, one, two float64) {
	var parts [2]map[string]float64
	for i, first := range []float64{one, two} {
		parts[i] = map[string]float64{}
		upstreams(parts[i], zone, service, first)
	}
	for name, value := range parts[0] {
		if !strings.HasPrefix(name, "upstream_latency") {
			value += parts[1][name]
		}
		want[name] = value
	}
}

// TestEndpointsComeAndGo scrapes during a roll-out: the series keep their name, and what was counted is never lost.
func TestEndpointsComeAndGo(t *testing.T) {
	t.Parallel()
	server := func(addr string, requests uint64) upstream.ServerStats {
		s := upstreamNamed("tcp", addr, 0)
		s.Requests, s.Opened, s.Failures[upstream.CauseTimeout] = requests, requests/10, requests/100
		return s
	}
	var now metrics.Route
	registry := registered(t, metrics.Config{Upstream: func() []metrics.Route {
		if now.Service == "" {
			return nil
		}
		return []metrics.Route{now}
	}})
	central := func(servers ...upstream.ServerStats) metrics.Route {
		return metrics.Route{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Servers: servers}}
	}
	for _, step := range []struct {
		name  string
		route metrics.Route
		want  float64 // requests
	}{
		{"two endpoints", central(server("10.244.0.2:53", 1000), server("10.244.1.2:53", 500)), 1500},
		{"a third comes", central(server("10.244.0.2:53", 1100), server("10.244.1.2:53", 600), server("10.244.2.2:53", 0)), 1700},
		{"the first has left", central(server("10.244.1.2:53", 700), server("10.244.2.2:53", 100)), 1900},
		{"it is back with counters of its own", central(server("10.244.1.2:53", 700), server("10.244.2.2:53", 100), server("10.244.0.2:53", 200)), 2100},
		{"another has the address of the second", central(server("10.244.1.2:53", 300), server("10.244.0.2:53", 200)), 2400},
		{"nobody is left", central(), 2400},
		{"one comes", central(server("10.244.3.2:53", 100)), 2500},
		{"a reload leaves no central resolver", metrics.Route{}, 0},
		{"a reload brings it back", central(server("10.244.3.2:53", 100)), 100},
	} {
		now = step.route
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got, want := map[string]float64{}, map[string]float64{}
		for name, value := range series(families) {
			switch {
			case value == 0 || !strings.HasPrefix(name, "upstream_"):
			case strings.HasPrefix(name, "upstream_requests"), strings.HasPrefix(name, "upstream_connections_opened"), strings.Contains(name, "timeout"):
				got[name] = value
			}
		}
		if step.want > 0 {
			const labels = `upstream="kube-system/kube-dns",zone="cluster.local."}`
			want["upstream_requests_total{"+labels] = step.want
			want["upstream_connections_opened_total{"+labels] = step.want / 10
			want[`upstream_failures_total{reason="timeout",`+labels] = step.want / 100
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// TestScrapesAtOnce has several scrapers while endpoints count on: no scrape may take another's older view for a
// roll-out.
func TestScrapesAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards requests
	requests := uint64(0)
	registry := registered(t, metrics.Config{Upstream: func() []metrics.Route {
		mu.Lock()
		defer mu.Unlock()
		requests++
		s := upstreamNamed("tcp", "10.244.0.2:53", 0)
		s.Requests = requests
		return []metrics.Route{{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Servers: []upstream.ServerStats{s}}}}
	}})
	var scrapers sync.WaitGroup
	for range 4 {
		scrapers.Go(func() {
			for range 50 {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	scrapers.Wait()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	const name = `upstream_requests_total{upstream="kube-system/kube-dns",zone="cluster.local."}`
	if got := series(families)[name]; got != 201 {
		t.Errorf("%v requests after 201 scrapes of a counter that each moves by one, want 201", got)
	}
}
