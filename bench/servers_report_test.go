// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// serversSample has a row of every kind: measured, partly measured, failed in a round, not installed.
func serversSample() *serversReport {
	flat := func(s sample) []sample { return []sample{s} }
	return &serversReport{results: results{
		Machine: machine{
			CPU: "Test CPU @ 3 GHz", Cores: 2, Virtual: true, Kernel: "6.1.0 x86_64", System: "Debian GNU/Linux 12", LoadStart: "0.10",
			Go: "go1.26.8", Upstream: "NSD 4.6.1", Generator: "dnsperf 2.10.0",
		},
		Seconds: 5, Rounds: 3,
		Results: []*result{
			{
				Name: floorName, Version: "C, cc -O2", IdleMiB: []float64{1.2, 1.3, 1.25},
				Samples: map[string][]sample{"hit": {
					{QPS: 210_000, CPU: 3.5, Busy: 0.73, Latency: 1800, MiB: 1, Completed: 1000},
					{QPS: 200_000, CPU: 3.3, Busy: 0.66, Latency: 1700, MiB: 1, Completed: 1000},
					{QPS: 214_000, CPU: 3.7, Busy: 0.79, Latency: 1900, MiB: 1, Completed: 1000},
				}},
			},
			{
				Name: oursName, Version: "v0.1.0", IdleMiB: []float64{18},
				Samples: map[string][]sample{
					"hit":  flat(sample{QPS: 195_000, CPU: 4.2, Busy: 0.82, Latency: 1900, MiB: 20, Completed: 1000}),
					"nx":   flat(sample{QPS: 190_000, CPU: 5.1, Busy: 0.97, Latency: 1950, MiB: 20, Completed: 1000}),
					"tcp":  flat(sample{QPS: 120_000, CPU: 8, Busy: 0.96, Latency: 3000, MiB: 22, Completed: 1000}),
					"miss": flat(sample{QPS: 40_000, CPU: 24, Busy: 0.96, Latency: 9000, MiB: 60, Completed: 1000, Lost: 30}),

					"misstcp": flat(sample{QPS: 70_000, CPU: 12.5, Busy: 0.9, Latency: 5000, MiB: 40, Completed: 1000}),
				},
			},
			{
				Name: "unbound", Version: "1.17.1", IdleMiB: []float64{22},
				Notes: []note{{Round: 2, Load: "tcp", Why: "answered none of 400 queries"}, {Round: 3, Why: "did not start: bind: address | in use"}},
				Samples: map[string][]sample{
					"hit": {
						{QPS: 140_000, CPU: 5.5, Busy: 0.77, Latency: 2000, MiB: 25, Completed: 1000, Lost: 2},
						{QPS: 150_000, CPU: 5.7, Busy: 0.85, Latency: 2100, MiB: 27, Completed: 1000, Wrong: 1},
					},
					"nx": flat(sample{QPS: 140_000, CPU: 5.4, Busy: 0.76, Latency: 2000, MiB: 25, Completed: 1000}),
				},
			},
			{Name: "kresd", Skipped: "not installed"},
			{Name: podsName, Version: "v1.2.3", Samples: map[string][]sample{"hit": flat(sample{QPS: 190_000, CPU: 4.284, Busy: 0.82, Latency: 2000, MiB: 26, Completed: 1000})}},
		},
	}, Loads: loadNames(), Binary: 21_400_000}
}

func TestRender(t *testing.T) {
	t.Parallel()
	got, err := serversSample().render()
	assert.NoError(t, err)
	assert.Golden(t, "testdata/performance.md", got)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	// The sample meets some budgets; each case changes one thing and names the verdict of one budget.
	const (
		ratioHit = iota
		peers
		podsHit
		ratioNX
		tcp
		missCPU
		missRate
		missOverTCP
		idle
		size
	)
	ours := func(rep *serversReport, load string) *sample { return &rep.Results[1].Samples[load][0] }
	tests := []struct {
		name   string
		change func(rep *serversReport)
		budget int
		want   string
	}{
		{name: "hit at 1.20 x floor", budget: ratioHit, want: "met"},
		{name: "hit at 1.26 x floor", change: func(r *serversReport) { ours(r, "hit").CPU = 4.41 }, budget: ratioHit, want: "**not met**"},
		{name: "hit exactly at the budget", change: func(r *serversReport) { ours(r, "hit").CPU = 4.375 }, budget: ratioHit, want: "met"},
		{name: "no floor", change: func(r *serversReport) { r.Results[0].Samples = nil }, budget: ratioHit, want: "not measured"},
		{
			name: "hit with wrong answers", change: func(r *serversReport) { ours(r, "hit").Wrong = 10 },
			budget: ratioHit, want: "**not judged**: 1.0 % of the answers wrong",
		},
		{name: "below the lowest peer", budget: peers, want: "met"},
		{name: "as dear as the lowest peer", change: func(r *serversReport) { ours(r, "hit").CPU = 5.6 }, budget: peers, want: "**not met**"},
		{name: "no peer", change: func(r *serversReport) { r.Results = r.Results[:2] }, budget: peers, want: "not measured"},
		{name: "counted by pod at 1.02 x", budget: podsHit, want: "met"},
		{name: "counted by pod at 1.06 x", change: func(r *serversReport) { ours(r, "hit").CPU = 4.04 }, budget: podsHit, want: "**not met**"},
		{name: "NXDOMAIN at 1.46 x floor", budget: ratioNX, want: "**not met**"},
		{name: "NXDOMAIN at 1.34 x floor", change: func(r *serversReport) { ours(r, "nx").CPU = 4.69 }, budget: ratioNX, want: "met"},
		{name: "TCP at 8 us", budget: tcp, want: "met"},
		{name: "TCP at 9.1 us", change: func(r *serversReport) { ours(r, "tcp").CPU = 9.1 }, budget: tcp, want: "**not met**"},
		{name: "a miss that loses queries", budget: missCPU, want: "**not judged**: 2.9 % of the queries lost"},
		{name: "a dear miss", change: func(r *serversReport) { ours(r, "miss").Lost = 0 }, budget: missCPU, want: "**not met**"},
		{name: "a slow miss", change: func(r *serversReport) { ours(r, "miss").Lost = 0 }, budget: missRate, want: "**not met**"},
		{
			name: "a quick miss", change: func(r *serversReport) { *ours(r, "miss") = sample{QPS: 79_000, CPU: 11, Completed: 1} },
			budget: missRate, want: "met",
		},
		{name: "a miss over TCP of 12.5 us", budget: missOverTCP, want: "met"},
		{name: "a miss over TCP of 13.1 us", change: func(r *serversReport) { ours(r, "misstcp").CPU = 13.1 }, budget: missOverTCP, want: "**not met**"},
		{name: "18 MiB at rest", budget: idle, want: "met"},
		{name: "41 MiB at rest", change: func(r *serversReport) { r.Results[1].IdleMiB = []float64{41} }, budget: idle, want: "**not met**"},
		{name: "a binary of 21 MB", budget: size, want: "met"},
		{name: "a binary of 45 MiB", change: func(r *serversReport) { r.Binary = 45 << 20 }, budget: size, want: "**not met**"},
		{name: "no binary", change: func(r *serversReport) { r.Binary = 0 }, budget: size, want: "not measured"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rep := serversSample()
			if tt.change != nil {
				tt.change(rep)
			}
			if got := judge(rep)[tt.budget]; got.verdict != tt.want {
				t.Errorf("verdict %q for %q, want %q", got.verdict, got.figure, tt.want)
			}
		})
	}
}
