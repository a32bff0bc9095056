// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
)

func TestParsePerf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file string
		want perf
	}{
		{
			name: "UDP, all answered",
			file: "dnsperf-udp.txt",
			want: perf{
				version: "2.10.0", completed: 412150, seconds: 1.004346, qps: 410366.546987,
				latency: 718 * time.Microsecond, rcodes: map[string]int64{"NOERROR": 412150},
			},
		},
		{
			name: "TCP: the mean is of the queries, not of the connections",
			file: "dnsperf-tcp.txt",
			want: perf{
				version: "2.10.0", completed: 30736, lost: 396, seconds: 1.000067, qps: 30733.940826,
				latency: 341 * time.Microsecond, rcodes: map[string]int64{"NOERROR": 15345, "REFUSED": 15391},
			},
		},
		{
			name: "no answer at all",
			file: "dnsperf-none.txt",
			want: perf{version: "2.10.0", lost: 2, seconds: 0.001299, rcodes: map[string]int64{}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parsePerf(readTestdata(t, tt.file))
			assert.NoError(t, err)
			assert.Same(t, "parsePerf", tt.want, got, cmp.AllowUnexported(perf{}))
		})
	}
}

func TestParsePerfRejects(t *testing.T) {
	t.Parallel()
	whole := readTestdata(t, "dnsperf-udp.txt")
	tests := []struct {
		name     string
		old, new string
		want     string // part of the error
	}{
		{name: "a missing figure", old: "Queries lost:", new: "Queries mislaid:", want: `"Queries lost"`},
		{name: "a figure that is no number", old: "Run time (s):         1.004346", new: "Run time (s): fast", want: `"Run time (s)"`},
		{name: "a response code without a count", old: "NOERROR 412150 (100.00%)", new: "NOERROR", want: "response codes"},
		{name: "a response code with an odd count", old: "NOERROR 412150", new: "NOERROR many", want: "response codes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(whole, tt.old, tt.new, 1)
			if text == whole {
				t.Fatalf("the sample does not hold %q", tt.old)
			}
			if _, err := parsePerf(text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parsePerf: error %v, want one with %s", err, tt.want)
			}
		})
	}
}

func readTestdata(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	assert.NoError(t, err)
	return string(text)
}
