// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

func restSampleReport() *restReport {
	return &restReport{
		Machine: machine{CPU: "Test CPU", Cores: 2, Kernel: "6.18.0 x86_64", LoadStart: "0.10"}, Seconds: 600,
		Samples: []restSample{
			{oursName, "none", 1, 0.1, 30, 25},
			{oursName, "light", 2.5, 0.1, 40, 26},
			{"nodelocaldns", "none", 1.2, 0, 20, 42},
			{"nodelocaldns", "light", 1.5, 0, 25, 25},
		},
		Probes: []probeCost{{"a", 0.3, 14}, {"b", 12, 1240}},
	}
}

func TestRenderRest(t *testing.T) {
	t.Parallel()
	got, err := restSampleReport().render()
	assert.NoError(t, err)
	assert.Golden(t, "testdata/rest.md", got)
}

func TestJudgeRest(t *testing.T) {
	t.Parallel()
	want := []string{met, met, met, notMet, notMet}
	for i, got := range restSampleReport().judge() {
		assert.Equal(t, got.what, want[i], got.verdict)
	}
	slow := restSampleReport()
	slow.Probes[0].ms = 1.01
	assert.Equal(t, "a slow probe", notMet, slow.judge()[0].verdict)
}
