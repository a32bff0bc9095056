// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

func kernelSampleReport() *kernelReport {
	flat := func(used, p50, p99 float64) []kernelSample {
		return []kernelSample{{Seconds: 1, Sent: 10_000, Answered: 10_000, P50: p50, P99: p99, Used: used}}
	}
	return &kernelReport{
		Machine: machine{CPU: "Test CPU", Cores: 2, Kernel: "6.18.0 x86_64", LoadStart: "0.10", Upstream: "NSD 4.6.1"},
		Seconds: 1, Rounds: 1, Full: 20_000, Rate: 10_000,
		samples: map[string][]kernelSample{
			idle: flat(10, 0, 0), turned: flat(60, 4000, 8000), inKernel: flat(70, 5000, 10_000), inProcess: flat(310, 40_000, 130_000),
		},
		runTimes:  map[string]time.Duration{turned: 80, inKernel: 800},
		costs:     []passCost{{What: "a datagram", Goal: otherGoal, Took: 40}},
		responses: map[string]float64{"kernel": 990, "cache": 10, "upstream": 500},
	}
}

func TestRenderKernel(t *testing.T) {
	t.Parallel()
	got, err := kernelSampleReport().render()
	assert.NoError(t, err)
	assert.Golden(t, "testdata/kernel.md", got)
}

func TestJudgeKernel(t *testing.T) {
	t.Parallel()
	const (
		floor = iota
		cpu
		median
		tail
		share
		pass
	)
	used := func(subject string, ms float64) func(*kernelReport) {
		return func(r *kernelReport) { r.samples[subject][0].Used = ms }
	}
	tests := []struct {
		name   string
		change func(*kernelReport)
		budget int
		want   string
	}{
		{name: "1.2 x floor", budget: floor, want: met},
		{name: "1.4 x floor", change: used(inKernel, 80), budget: floor, want: notMet},
		{name: "a twenty-fifth of hits off", budget: cpu, want: met},
		{name: "half of hits off", change: used(inProcess, 80), budget: cpu, want: notMet},
		{name: "an eighth of the median", budget: median, want: met},
		{name: "half of the median", change: func(r *kernelReport) { r.samples[inKernel][0].P50 = 20_000 }, budget: median, want: notMet},
		{name: "a thirteenth of the p99", budget: tail, want: met},
		{name: "half of the p99", change: func(r *kernelReport) { r.samples[inKernel][0].P99 = 65_000 }, budget: tail, want: notMet},
		{name: "99 % of the hits", budget: share, want: met},
		{name: "94 % of the hits", change: func(r *kernelReport) { r.responses["stale"] = 54 }, budget: share, want: notMet},
		{name: "40 ns", budget: pass, want: met},
		{name: "101 ns", change: func(r *kernelReport) { r.costs[0].Took = 101 }, budget: pass, want: notMet},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rep := kernelSampleReport()
			if tt.change != nil {
				tt.change(rep)
			}
			if got := rep.judge()[tt.budget]; got.verdict != tt.want {
				t.Errorf("verdict %q for %q, want %q", got.verdict, got.figure, tt.want)
			}
		})
	}
}

// TestPage writes one part of a page, and keeps the others.
func TestPage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.md")
	none, err := readPage(path)
	assert.NoError(t, err)
	none[serversSection], none[clusterSection] = "servers\n", "cluster\n"
	assert.NoError(t, os.WriteFile(path, []byte(none.text()), 0o600))
	some, err := readPage(path)
	assert.NoError(t, err)
	some[kernelSection] = "kernel\n"
	assert.Same(t, "the page", "servers\n\n<!-- begin cluster -->\ncluster\n\n<!-- begin kernel -->\nkernel\n\n<!-- begin rest -->\n\n\n<!-- begin fleet -->\n\n", some.text())
}
