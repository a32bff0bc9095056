// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	defaults := func(change func(*options)) options {
		opts := options{seconds: 5, rounds: 3, loads: []string{"hit", "nx", "tcp", "miss", "misstcp", "cluster", "absent"}, source: "bench"}
		change(&opts)
		return opts
	}
	tests := []struct {
		name string
		args []string
		want options
		err  string // part of the error; empty: none
	}{
		{name: "defaults", want: defaults(func(*options) {})},
		{
			name: "everything",
			args: []string{
				"--secs", "1", "--rounds=2", "--only", "unbound,floor", "--loads", "tcp, hit", "--node-cache", "bin/node-cache",
				"--out", "p.md", "--json", "p.json", "--src", ".",
			},
			want: options{
				seconds: 1, rounds: 2, only: []string{"floor", "unbound"}, loads: []string{"hit", "tcp"},
				nodeCache: "bin/node-cache", source: ".", out: "p.md", json: "p.json",
			},
		},
		{name: "empty lists", args: []string{"--only", "", "--loads", ""}, want: defaults(func(*options) {})},
		{name: "unknown server", args: []string{"--only", "bind"}, err: `"bind" is not one of floor, node-cache`},
		{name: "unknown load", args: []string{"--loads", "hit,flood"}, err: `"flood" is not one of hit, nx`},
		{name: "no time", args: []string{"--secs", "0"}, err: "not within 1..30"},
		{name: "too long", args: []string{"--secs", "31"}, err: "not within 1..30"},
		{name: "no round", args: []string{"--rounds", "0"}, err: "not within 1..99"},
		{name: "stray word", args: []string{"fast"}, err: `unexpected argument "fast"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseOptions(tt.args, io.Discard)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("parseOptions: error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(options{})); diff != "" {
				t.Errorf("parseOptions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		want int
		err  string // what standard error begins with
	}{
		{name: "help", args: []string{"--help"}, want: 0, err: "Usage of bench:"},
		{name: "bad flag value", args: []string{"--rounds", "0"}, want: 2, err: "bench: --rounds 0"},
		{name: "a folder as output", args: []string{"--out", "testdata"}, want: 1, err: "bench: reading the old report"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			if got := run(t.Context(), tt.args, io.Discard, &stderr); got != tt.want {
				t.Errorf("run = %d, want %d", got, tt.want)
			}
			if !strings.HasPrefix(stderr.String(), tt.err) {
				t.Errorf("standard error %q, want it to begin with %q", stderr.String(), tt.err)
			}
		})
	}
}

func TestNewSample(t *testing.T) {
	t.Parallel()
	p := perf{
		completed: 200_000, lost: 3, seconds: 2, qps: 100_000, latency: 1500 * time.Microsecond,
		rcodes: map[string]int64{"NOERROR": 199_990, "SERVFAIL": 10},
	}
	got, err := newSample(p, time.Second, 12.5, "NOERROR")
	if err != nil {
		t.Fatal(err)
	}
	want := sample{QPS: 100_000, CPU: 5, Busy: 0.5, Latency: 1500, MiB: 12.5, Completed: 200_000, Lost: 3, Wrong: 10}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("newSample (-want +got):\n%s", diff)
	}
	if _, err := newSample(perf{lost: 400, seconds: 2}, time.Second, 1, "NOERROR"); err == nil {
		t.Error("newSample accepted a load without an answer")
	}
	if _, err := newSample(p, 9*tick, 1, "NOERROR"); err == nil {
		t.Error("newSample accepted a CPU time of a few ticks")
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{name: "one", values: []float64{7}, want: 7},
		{name: "odd", values: []float64{9, 1, 5}, want: 5},
		{name: "even", values: []float64{9, 1, 5, 6}, want: 5.5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := median(tt.values); got != tt.want {
				t.Errorf("median = %v, want %v", got, tt.want)
			}
		})
	}
}
