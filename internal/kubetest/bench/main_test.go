// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	defaults := func(change func(*options)) options {
		opts := options{
			services: 11_000, seconds: 3, rounds: 3, events: 200, churn: time.Minute, rate: 100,
			nodeCache: "bin/node-cache", floor: "bench/floor/floor.c",
		}
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
				"-services", "100", "-secs", "1", "-rounds", "2", "-events", "0", "-churn", "0", "-rate", "10", "-only", "coredns, agent-all",
				"-node-cache", "nc", "-floor", "f.c", "-out", "p.md",
			},
			want: options{
				services: 100, seconds: 1, rounds: 2, rate: 10, only: []string{"coredns", "agent-all"}, nodeCache: "nc", floor: "f.c", out: "p.md",
			},
		},
		{name: "unknown contender", args: []string{"-only", "bind"}, err: `"bind" is not one of agent-headless`},
		{name: "a small cluster", args: []string{"-services", "99"}, err: "not within 100..50000"},
		{name: "no time", args: []string{"-secs", "0"}, err: "not within 1..30"},
		{name: "no round", args: []string{"-rounds", "0"}, err: "not within 1..99"},
		{name: "negative events", args: []string{"-events", "-1"}, err: "not within 0..10000"},
		{name: "no changes", args: []string{"-rate", "0"}, err: "not within 1..1000"},
		{name: "a day of changes", args: []string{"-churn", "24h"}, err: "not within 0s..1h"},
		{name: "stray word", args: []string{"fast"}, err: `unexpected argument "fast"`},
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
	if err := os.WriteFile(broken, []byte(beginMark), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want int
		err  string // what standard error begins with
	}{
		{name: "help", args: []string{"--help"}, want: 0, err: "Usage of bench-cluster:"},
		{name: "bad flag value", args: []string{"-rounds", "0"}, want: 2, err: "bench-cluster: -rounds 0"},
		{name: "a file without the second mark", args: []string{"-out", broken}, want: 1, err: "bench-cluster: replacing the section of broken.md"},
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

// TestSmallRun measures a small cluster with real programs. It looks at no time and no cost, but at what has to be so
// on any machine.
func TestSmallRun(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"dnsperf", "cc"} {
		if _, err := findProgram(program); err != nil {
			t.Skip(err)
		}
	}
	if err := needTwoCPUs(); err != nil {
		t.Skip(err)
	}
	binary := filepath.Join(t.TempDir(), "node-cache")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "../../../cmd/node-cache")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building node-cache: %v\n%s", err, out)
	}
	opts, err := parseOptions([]string{
		"-services", "100", "-secs", "1", "-rounds", "1", "-events", "3", "-churn", "2s", "-only", "agent-headless,coredns",
		"-node-cache", binary, "-floor", "../../../bench/floor/floor.c",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	rep, err := measure(t.Context(), opts, &progress)
	defer func() {
		if t.Failed() {
			t.Logf("progress:\n%s", progress.String())
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.results) != 2 || len(rep.bills) != 2 || rep.changes != 200 {
		t.Fatalf("%d results, %d bills, %d changes, want 2, 2 and 200", len(rep.results), len(rep.bills), rep.changes)
	}
	for _, r := range rep.results {
		checkResult(t, r)
	}
	for _, b := range rep.bills {
		if b.skipped != "" || b.sync.ToClient < firstObjects || b.churn.ToClient < firstObjects || len(b.syncTally) == 0 || b.mib <= 0 {
			t.Errorf("bill %+v, want bytes, requests and memory", b)
		}
	}
}

func checkResult(t *testing.T, r *result) {
	t.Helper()
	l, ok := r.medianStart()
	if !ok || l.first <= 0 || l.ready < l.first || l.peak <= 0 || l.rest <= 0 || l.loaded <= 0 {
		t.Errorf("%s: launch %+v, want each moment and memory; notes %q", r.name, l, r.notes)
	}
	for name, shots := range r.loads { // a busy machine may leave too little CPU for some
		for _, s := range shots {
			if s.wrong != 0 {
				t.Errorf("%s: load %s: %d wrong answers", r.name, name, s.wrong)
			}
		}
	}
	if r.events == nil || len(r.events.latencies) != 3 {
		t.Fatalf("%s: events %+v, want 3; notes %q", r.name, r.events, r.notes)
	}
	if r.ours && (r.events.older != 0 || r.events.wrong != 0) {
		t.Errorf("%s: %d older and %d wrong answers, want none", r.name, r.events.older, r.events.wrong)
	}
}
