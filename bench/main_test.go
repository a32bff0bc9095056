// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	servers := func(change func(*options)) options {
		opts := options{
			section: "servers", seconds: 5, rounds: 3, nodeCache: "bin/node-cache",
			loads: []string{"hit", "nx", "tcp", "miss", "misstcp"},
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
				"--out", "p.md",
			},
			want: options{
				section: "servers", seconds: 1, rounds: 2, only: []string{"floor", "unbound"}, loads: []string{"hit", "tcp"},
				nodeCache: "nc", out: "p.md",
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
		{name: "unknown load", args: []string{"servers", "--loads", "hit,flood"}, err: `"flood" is not one of hit, nx`},
		{name: "no time", args: []string{"servers", "--secs", "0"}, err: "not within 1..30"},
		{name: "too long", args: []string{"cluster", "--secs", "31"}, err: "not within 1..30"},
		{name: "a small cluster", args: []string{"cluster", "--services", "99"}, err: "not within 100..50000"},
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
