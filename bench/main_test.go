// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	defaults := func(section string, seconds int) options {
		return options{
			section: section, seconds: seconds, rounds: 3, loads: loadNames(), nodeCache: "bin/node-cache",
			services: 11_000, events: 200, churn: time.Minute, rate: 100, endpoints: 100_000,
		}
	}
	tests := []struct {
		name string
		args []string
		want options
		err  string // part of the error; empty: none
	}{
		{name: "defaults of servers", args: []string{"servers"}, want: defaults("servers", 5)},
		{name: "empty lists", args: []string{"servers", "--only", "", "--loads", ""}, want: defaults("servers", 5)},
		{
			name: "everything", args: []string{"servers", "--secs", "1", "--rounds=2", "--only", "unbound,floor", "--loads", "tcp, hit", "--out", "p.md"},
			want: func() options {
				o := defaults("servers", 1)
				o.rounds, o.only, o.loads, o.out = 2, []string{"floor", "unbound"}, []string{"hit", "tcp"}, "p.md"
				return o
			}(),
		},
		{name: "defaults of cluster", args: []string{"cluster"}, want: defaults("cluster", 3)},
		{name: "no section", err: "usage: bench servers|cluster|kernel|rest|fleet"},
		{name: "defaults of rest", args: []string{"rest"}, want: defaults("rest", 60)},
		{name: "defaults of fleet", args: []string{"fleet"}, want: func() options {
			o := defaults("fleet", 60)
			o.agents, o.only = []int{500, 1000, 2000, 3333}, []string{"local", "central", "push"}
			return o
		}()},
		{name: "no number", args: []string{"fleet", "--agents", "500,many"}, err: `--agents: "many" is not a number`},
		{name: "unknown section", args: []string{"peers"}, err: "usage: bench servers|cluster|kernel"},
		{name: "unknown server", args: []string{"servers", "--only", "bind"}, err: `"bind" is not one of floor, node-cache`},
		{name: "unknown load", args: []string{"servers", "--loads", "hit,flood"}, err: `"flood" is not one of hit, nx`},
		{name: "no time", args: []string{"servers", "--secs", "0"}, err: "not within 1..30"},
		{name: "too long", args: []string{"cluster", "--secs", "31"}, err: "not within 1..30"},
		{name: "no round", args: []string{"cluster", "--rounds", "0"}, err: "not above 0"},
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
			assert.Same(t, "parseOptions", tt.want, got, cmp.AllowUnexported(options{}))
		})
	}
}
