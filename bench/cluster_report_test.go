// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

const ms = time.Millisecond

func TestEventsAreJudged(t *testing.T) {
	t.Parallel()
	const address = "10.96.0.7"
	created := time.Unix(1000, 0)
	tests := []struct {
		name  string
		texts []string
		slow  int // the answer that takes 25 ms; 0 for a denial that nothing depends on
		want  events
	}{
		{name: "as it should be", texts: []string{denied, denied, address, address, address, denied}, want: once(21 * ms)},
		{name: "lost", texts: []string{denied, "", address, address, address, denied}, want: events{latencies: []time.Duration{21 * ms}, lost: 1}},
		{
			name: "a denial after the address, before the deletion", texts: []string{denied, address, denied, address, address, denied},
			want: events{latencies: []time.Duration{11 * ms}, older: 1},
		},
		{
			name: "the address after its denial", texts: []string{denied, address, address, address, address, denied, address, denied},
			want: events{latencies: []time.Duration{11 * ms}, older: 1},
		},
		{name: "a slow denial, asked before", texts: []string{denied, denied, address, address}, slow: 1, want: once(21 * ms)},
		{name: "a slow address, asked before the next", texts: []string{denied, address, denied, address}, slow: 1, want: once(31 * ms)},
		{name: "a failure", texts: []string{denied, "SERVFAIL", address}, want: events{latencies: []time.Duration{21 * ms}, wrong: 1}},
		{name: "another service's address", texts: []string{denied, "10.96.0.8", address}, want: events{latencies: []time.Duration{21 * ms}, wrong: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var answers []answer
			for i, text := range tt.texts {
				asked := created.Add(time.Duration(i) * 10 * ms)
				a := answer{text: text, asked: asked, arrived: asked.Add(ms)}
				if tt.slow == i {
					a.arrived = asked.Add(25 * ms)
				}
				answers = append(answers, a)
			}
			var got events
			got.add(answers, address, created, created.Add(45*ms))
			assert.Same(t, "events", tt.want, got, cmp.AllowUnexported(events{}))
		})
	}
}

func once(latency time.Duration) events { return events{latencies: []time.Duration{latency}} }

// clusterSample has a row of every kind: measured, without events, not started.
func clusterSample() *clusterReport {
	samples := func(cpu float64) map[string][]sample {
		all := map[string][]sample{}
		for i, l := range clusterLoads() {
			all[l.name] = []sample{{CPU: cpu + float64(i), QPS: 100_000, Completed: 1000}}
		}
		return all
	}
	start := startResult{first: 30 * ms, last: 600 * ms, ready: 700 * ms, peak: 90, rest: 60, loaded: 62}
	slower := startResult{first: 40 * ms, last: 700 * ms, ready: 900 * ms, peak: 95, rest: 61, loaded: 64}
	late := events{}
	for i := range 200 {
		late.latencies = append(late.latencies, time.Duration(i)*ms/4)
	}
	rows := []*clusterResult{
		{result: &result{Name: "agent-headless", Samples: samples(2.5)}, ours: true, starts: []startResult{start, slower}, events: &late},
		{result: &result{Name: "resolver-all", Samples: samples(2.6)}, ours: true, starts: []startResult{start}, events: &late},
		{
			result: &result{Name: "coredns", Samples: samples(30)},
			starts: []startResult{{first: 100 * ms, last: 2500 * ms, ready: 2600 * ms, peak: 300, rest: 225, loaded: 230}},
		},
		{result: &result{Name: "not-started", Notes: []note{{Round: 1, Why: "ended: no output"}}}},
	}
	rep := &clusterReport{
		opts: options{services: 11_000, seconds: 3, rounds: 2, events: 200, churn: time.Minute},
		results: results{
			Machine: machine{CPU: "Test CPU", Cores: 2, Kernel: "6.1.0 x86_64", LoadStart: "0.10", Go: "go1.26.8", Generator: "dnsperf 2.10.0"},
			Seconds: 3, Rounds: 2,
			Results: []*result{{Name: floorName, Samples: map[string][]sample{addressLoad: {{CPU: 2, QPS: 200_000, Completed: 1000}}}}},
		},
		rows: rows,
		costs: []*clientCost{
			{
				name: "agent-headless", cpu: time.Second, mib: 70,
				sync: kubetest.Traffic{ToClient: 20 << 20, ToServer: 9000}, churn: kubetest.Traffic{ToClient: 6 << 20, ToServer: 3000},
				syncTally: []kubetest.Tally{{Verb: "watch", Resource: "services", Count: 1}, {Verb: "get", Count: 2}},
			},
			{name: kubeProxyName, skipped: "nft is not installed"},
		},
		changes: 6000, churned: time.Minute,
	}
	for _, row := range rows {
		rep.Results = append(rep.Results, row.result)
	}
	return rep
}

func TestRenderCluster(t *testing.T) {
	t.Parallel()
	got, err := clusterSample().render()
	assert.NoError(t, err)
	assert.Golden(t, "testdata/cluster.md", got)
}

func TestJudgeCluster(t *testing.T) {
	t.Parallel()
	const (
		rest = iota
		peak
		ready
		address
		denial
		event
		older
	)
	ours := func(r *clusterReport) *clusterResult { return r.rows[1] }
	tests := []struct {
		name   string
		change func(*clusterReport)
		budget int
		want   string
	}{
		{name: "64 MiB", budget: rest, want: met},
		{name: "76 MiB after the loads", change: func(r *clusterReport) { ours(r).starts[0].loaded = 76 }, budget: rest, want: notMet},
		{name: "a row without a start", change: func(r *clusterReport) { ours(r).starts = nil }, budget: rest, want: notMeasured},
		{name: "a peak of 95 MiB", budget: peak, want: met},
		{name: "a peak of 151 MiB", change: func(r *clusterReport) { ours(r).starts[0].peak = 151 }, budget: peak, want: notMet},
		{name: "ready after 0.86 s", budget: ready, want: met},
		{name: "ready after 1.01 s", change: func(r *clusterReport) { ours(r).starts[0].ready = 1040 * ms }, budget: ready, want: notMet},
		{name: "an answer at 1.30 x floor", budget: address, want: met},
		{name: "an answer at 1.36 x floor", change: func(r *clusterReport) { ours(r).Samples[addressLoad][0].CPU = 2.72 }, budget: address, want: notMet},
		{name: "no floor", change: func(r *clusterReport) { r.Results[0].Samples = nil }, budget: address, want: notMeasured},
		{name: "wrong answers", change: func(r *clusterReport) { ours(r).Samples[addressLoad][0].Wrong = 11 }, budget: address, want: notMeasured},
		{name: "a denial at 1.80 x floor", budget: denial, want: notMet},
		{name: "49 ms", budget: event, want: met},
		{name: "101 ms", change: func(r *clusterReport) { ours(r).events = lates(200, 101*ms) }, budget: event, want: notMet},
		{name: "too few events", change: func(r *clusterReport) { ours(r).events = lates(199, ms) }, budget: event, want: notMeasured},
		{name: "nothing older", budget: older, want: met},
		{
			name: "something older", change: func(r *clusterReport) { ours(r).events = lates(200, ms); ours(r).events.older = 1 },
			budget: older, want: notMet,
		},
		{name: "none of ours", change: func(r *clusterReport) { r.rows = r.rows[2:] }, budget: rest, want: notMeasured},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rep := clusterSample()
			if tt.change != nil {
				tt.change(rep)
			}
			if got := rep.judge()[tt.budget]; got.verdict != tt.want {
				t.Errorf("verdict %q for %q, want %q", got.verdict, got.figure, tt.want)
			}
		})
	}
}

func lates(n int, each time.Duration) *events {
	e := new(events)
	for range n {
		e.latencies = append(e.latencies, each)
	}
	return e
}
