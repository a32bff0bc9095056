// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

func fleetSampleReport() *fleetReport {
	rep := &fleetReport{
		Machine: machine{CPU: "Test CPU", Cores: 2, Kernel: "6.18.0 x86_64", LoadStart: "0.10"},
		Options: options{services: 11_000, endpoints: 100_000, seconds: 600, rate: 100, churn: time.Minute},
		modes: []*fleetMode{
			{name: localMode, watches: 5, requests: 0.08, ms: 9, mib: 70, fresh: freshness{oldest: []time.Duration{20 * ms}}},
			{name: centralMode, watches: 2, requests: 0.03, ms: 2, mib: 30, asked: 62, fresh: freshness{oldest: []time.Duration{time.Second, 4990 * ms}}},
			{name: pushMode, ms: 2.5, mib: 30, asked: 62, hits: 62, fresh: freshness{oldest: []time.Duration{10 * ms}}},
		},
	}
	for i, agents := range []int{500, 3333} {
		rep.steps = append(rep.steps, &fleetStep{
			agents: agents, subscriptions: agents * 300, emptyMiB: 60, mib: 60 + float64(agents)/10, startCPU: 0.2 * float64(1+i), restCPU: 0.01 * float64(1+i),
			started: once(10 * time.Second), each: once(400 * ms), requests: 2, restBytes: 50 * float64(agents), changesBytes: 300 * float64(agents),
			changes: 6000, expected: 2, fresh: events{latencies: []time.Duration{20 * ms, 90 * ms}}, watch: events{latencies: []time.Duration{10 * ms, 30 * ms}}, changesCPU: 0.5,
			everyone: []time.Duration{100 * ms, 200 * ms, 300 * ms}, killed: once(6 * time.Second), silent: once(11 * time.Second),
		})
	}
	for _, m := range rep.modes {
		m.killed, m.silent = freshness{oldest: []time.Duration{6 * time.Second}}, freshness{oldest: []time.Duration{9 * time.Second}, lost: 1}
	}
	return rep
}

func TestRenderFleet(t *testing.T) {
	t.Parallel()
	got, err := fleetSampleReport().render()
	assert.NoError(t, err)
	assert.Golden(t, "testdata/fleet.md", got)
}

func TestJudgeFleet(t *testing.T) {
	t.Parallel()
	for _, got := range fleetSampleReport().judge() {
		assert.Equal(t, got.what, met, got.verdict)
	}
	none := fleetSampleReport()
	none.steps = nil
	assert.Equal(t, "verdicts without simulated agents", 3, len(none.judge()))
	poor := fleetSampleReport()
	s, push := poor.steps[1], poor.mode(pushMode)
	push.watches, push.hits, push.mib, push.silent.oldest[0] = 0.5, 61, 31, 11*time.Second
	s.mib, s.restCPU, s.startCPU, s.changesCPU, s.expected = 501, 0.06, 1.1, 1.1, 3
	poor.failed = "3,333 agents: loss: an error"
	s.each, s.everyone[0], s.killed, s.silent = once(6*time.Second), time.Second, once(16*time.Second), once(16*time.Second)
	for _, got := range poor.judge() {
		assert.Equal(t, got.what, notMet, got.verdict)
	}
	cut := fleetSampleReport()
	s = cut.steps[1]
	s.expected, s.fresh, s.everyone, s.killed, s.silent = 0, events{}, nil, events{}, events{}
	for _, got := range cut.judge()[len(cut.judge())-5:] {
		if strings.HasPrefix(got.what, "changes: CPU") {
			continue
		}
		assert.Equal(t, got.what+", not measured", notMet, got.verdict)
	}
}

// TestFreshness judges answers by when their questions were asked.
func TestFreshness(t *testing.T) {
	t.Parallel()
	changed := time.Unix(1000, 0)
	var f freshness
	f.add([]answer{
		{text: "10.97.0.1", asked: changed.Add(-time.Second)},
		{text: "10.97.0.1", asked: changed.Add(30 * ms)},
		{text: "", asked: changed.Add(40 * ms)},
		{text: "10.97.0.2", asked: changed.Add(50 * ms)},
	}, "10.97.0.1", changed)
	f.add([]answer{{text: "10.97.0.2", asked: changed.Add(-time.Second)}, {text: "10.97.0.3", asked: changed.Add(ms)}}, "10.97.0.2", changed)
	assert.Same(t, "oldest", []time.Duration{30 * ms, 0}, f.oldest)
	assert.Equal(t, "worst", 0.03, f.worst())
	assert.Equal(t, "lost", 1, f.lost)
}
