// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/proctest"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	servers := func(change func(*options)) options {
		opts := options{
			section: "servers", seconds: 5, rounds: 3, nodeCache: "bin/node-cache",
			loads: []string{"hit", "nx", "tcp", "miss", "misstcp", "cluster", "absent"},
		}
		change(&opts)
		return opts
	}
	cluster := options{
		section: "cluster", services: 11_000, seconds: 3, rounds: 3, events: 200, churn: time.Minute, rate: 100, nodeCache: "bin/node-cache",
	}
	tests := []struct {
		name string
		args []string
		want options
		err  string // part of the error; empty: none
	}{
		{name: "defaults of servers", args: []string{"servers"}, want: servers(func(*options) {})},
		{
			name: "everything of servers",
			args: []string{
				"servers", "--secs", "1", "--rounds=2", "--only", "unbound,floor", "--loads", "tcp, hit", "--node-cache", "nc",
				"--out", "p.md", "--json", "p.json",
			},
			want: options{
				section: "servers", seconds: 1, rounds: 2, only: []string{"floor", "unbound"}, loads: []string{"hit", "tcp"},
				nodeCache: "nc", out: "p.md", json: "p.json",
			},
		},
		{name: "empty lists", args: []string{"servers", "--only", "", "--loads", ""}, want: servers(func(*options) {})},
		{name: "defaults of cluster", args: []string{"cluster"}, want: cluster},
		{
			name: "everything of cluster",
			args: []string{
				"cluster", "-services", "100", "-secs", "1", "-rounds", "2", "-events", "0", "-churn", "0", "-rate", "10",
				"-only", "coredns, agent-all", "-node-cache", "nc", "-out", "p.md",
			},
			want: options{
				section: "cluster", services: 100, seconds: 1, rounds: 2, rate: 10, only: []string{"agent-all", "coredns"}, nodeCache: "nc", out: "p.md",
			},
		},
		{name: "no section", err: "usage: bench servers|cluster"},
		{name: "unknown section", args: []string{"peers"}, err: "usage: bench servers|cluster"},
		{name: "unknown server", args: []string{"servers", "--only", "bind"}, err: `"bind" is not one of floor, node-cache`},
		{name: "unknown contender", args: []string{"cluster", "--only", "bind"}, err: `"bind" is not one of agent-headless`},
		{name: "unknown load", args: []string{"servers", "--loads", "hit,flood"}, err: `"flood" is not one of hit, nx`},
		{name: "no time", args: []string{"servers", "--secs", "0"}, err: "not within 1..30"},
		{name: "too long", args: []string{"cluster", "--secs", "31"}, err: "not within 1..30"},
		{name: "no round", args: []string{"servers", "--rounds", "0"}, err: "not within 1..99"},
		{name: "a small cluster", args: []string{"cluster", "--services", "99"}, err: "not within 100..50000"},
		{name: "negative events", args: []string{"cluster", "--events", "-1"}, err: "not within 0..10000"},
		{name: "no changes", args: []string{"cluster", "--rate", "0"}, err: "not within 1..1000"},
		{name: "a day of changes", args: []string{"cluster", "--churn", "24h"}, err: "not within 0s..1h"},
		{name: "stray word", args: []string{"servers", "fast"}, err: `unexpected argument "fast"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseOptions(tt.args, io.Discard)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("parseOptions: error %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(options{})); diff != "" {
				t.Errorf("parseOptions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.md")
	if err := os.WriteFile(broken, []byte("<!-- begin cluster -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want int
		err  string // what standard error begins with
	}{
		{name: "help", args: []string{"servers", "--help"}, want: 0, err: "Usage of bench servers:"},
		{name: "bad flag value", args: []string{"servers", "--rounds", "0"}, want: 2, err: "bench: --rounds 0"},
		{name: "a folder as output", args: []string{"servers", "--out", "testdata"}, want: 1, err: "bench: reading the old report"},
		{name: "a file without the second mark", args: []string{"cluster", "--out", broken}, want: 1, err: "bench: reading the sections of broken.md"},
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
	if _, err := newSample(p, 9*proctest.Tick, 1, "NOERROR"); err == nil {
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
