// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestEndpointChanges scrapes during a roll-out: the series keep their name, and what was counted is never lost.
func TestEndpointChanges(t *testing.T) {
	t.Parallel()
	server := func(addr string, requests uint64) upstream.ServerStats {
		s := upstreamNamed("tcp", addr, 0)
		s.Requests, s.Opened, s.Failures[upstream.CauseTimeout] = requests, requests/10, requests/100
		return s
	}
	var now metrics.Route
	registry := registered(t, func() metrics.Sample {
		if now.Service == "" {
			return metrics.Sample{}
		}
		return metrics.Sample{Routes: []metrics.Route{now}}
	})
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
		{"none is left", central(), 2400},
		{"one comes", central(server("10.244.3.2:53", 100)), 2500},
		{"a reload leaves no central resolver", metrics.Route{}, 0},
		{"a reload brings it back", central(server("10.244.3.2:53", 100)), 100},
	} {
		now = step.route
		families, err := registry.Gather()
		assert.NoError(t, err)
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
		assert.Same(t, step.name, want, got)
	}
}

// TestConcurrentUpstreamScrapes has several scrapers while endpoints count on: no scrape may take another's older view for a
// roll-out.
func TestConcurrentUpstreamScrapes(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards requests
	requests := uint64(0)
	registry := registered(t, func() metrics.Sample {
		mu.Lock()
		defer mu.Unlock()
		requests++
		s := upstreamNamed("tcp", "10.244.0.2:53", 0)
		s.Requests = requests
		return metrics.Sample{Routes: []metrics.Route{
			{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Servers: []upstream.ServerStats{s}}},
		}}
	})
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
	assert.NoError(t, err)
	const name = `upstream_requests_total{upstream="kube-system/kube-dns",zone="cluster.local."}`
	assert.Same(t, "result", 201, series(families)[name])
}

// TestUpstreamStates has a server in each state, and a service whose endpoints are in different ones.
func TestUpstreamStates(t *testing.T) {
	t.Parallel()
	server := func(addr string, change func(*upstream.ServerStats)) upstream.ServerStats {
		s := upstreamNamed("tcp", addr, 1)
		change(&s)
		return s
	}
	servers := []upstream.ServerStats{
		server("10.244.0.1:53", func(*upstream.ServerStats) {}),
		server("10.244.0.2:53", func(s *upstream.ServerStats) { s.Erring = true }),
		server("10.244.0.3:53", func(s *upstream.ServerStats) { s.Failing, s.Erring = true, true }),
		server("10.244.0.4:53", func(s *upstream.ServerStats) { s.Failing, s.Down = true, true }),
		server("10.244.0.5:53", func(s *upstream.ServerStats) { s.Failing, s.Down, s.Looped = true, true, true }),
		server("10.244.0.6:53", func(s *upstream.ServerStats) { s.Looped, s.Far = true, true }),
		server("10.244.0.7:53", func(s *upstream.ServerStats) { s.Far, s.LastResort = true, true }),
	}
	got := series(gather(t, metrics.Sample{
		Routes: []metrics.Route{
			{Zone: ".", Stats: upstream.Stats{Servers: servers[:5]}},
			{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Servers: servers}},
		},
		Watch: &watch.Stats{},
	}))
	want := map[string]float64{
		`central_endpoints{state="ready"}`: 6, `central_endpoints{state="far"}`: 1, `central_endpoints{state="last_resort"}`: 1,
	}
	for state, name := range []string{"good", "errors", "failing", "down", "looped"} {
		for i := range 5 {
			one := 0.0
			if i == state {
				one = 1
			}
			want[fmt.Sprintf(`upstream_servers{state=%q,upstream="tcp://10.244.0.%d:53",zone="."}`, name, i+1)] = one
		}
		want[fmt.Sprintf(`upstream_servers{state=%q,upstream="kube-system/kube-dns",zone="cluster.local."}`, name)] = []float64{2, 1, 1, 1, 2}[state]
	}
	for name := range got {
		if !strings.HasPrefix(name, "upstream_servers") && !strings.HasPrefix(name, "central_endpoints") {
			delete(got, name)
		}
	}
	assert.Same(t, "series", want, got)
}
