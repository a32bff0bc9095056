// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// threeServers are three targets with a policy.
type threeServers struct {
	pool    *upstream.Pool
	servers []*upstreamtest.Server
}

func newThreeServers(t *testing.T, policy upstream.Policy, actions ...upstreamtest.Action) *threeServers {
	t.Helper()
	tr := &threeServers{}
	memory := upstreamtest.Network{}
	cfg := upstream.Config{Policy: policy, Dial: memory.Dial}
	for i, addr := range list(addrA, addrB, addrC)[:len(actions)] {
		s := upstreamtest.New(upstreamtest.Always(actions[i]))
		memory[addr.Addr] = s
		tr.servers = append(tr.servers, s)
		cfg.Targets = append(cfg.Targets, target("udp", addr.Addr))
	}
	tr.pool = newPool(t, cfg)
	run(t, tr.pool)
	return tr
}

// asked sends n queries, with a pause after each, and returns the servers that were asked.
func (tr *threeServers) asked(t *testing.T, n int, pause time.Duration) string {
	t.Helper()
	var b strings.Builder
	for range n {
		before := make([]int, len(tr.servers))
		for i, s := range tr.servers {
			before[i] = len(s.Queries())
		}
		ask(t, tr.pool)
		for i, s := range tr.servers {
			b.WriteString(strings.Repeat("ABC"[i:i+1], len(s.Queries())-before[i]))
		}
		b.WriteString(" ")
		time.Sleep(pause)
	}
	return strings.TrimSpace(b.String())
}

func TestSequential(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name    string
		a, b, c upstreamtest.Action
		want    string
	}{
		{
			name: "the first, though it is the slowest",
			a:    after(90*ms, one("192.0.2.10")), b: after(ms, one("192.0.2.20")), c: after(ms, one("192.0.2.30")),
			want: "A A A A A",
		},
		{
			name: "the second while the first fails",
			a:    upstreamtest.Action{Drop: true}, b: after(9*ms, one("192.0.2.20")), c: after(ms, one("192.0.2.30")),
			want: "AB B B B B",
		},
		{
			name: "a refusing target stays first",
			a:    rcode(5), b: after(9*ms, one("192.0.2.20")), c: after(ms, one("192.0.2.30")),
			want: "AB AB AB AB AB",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := newThreeServers(t, upstream.Sequential, tt.a, tt.b, tt.c)
				if got := tr.asked(t, 5, 100*ms); got != tt.want {
					t.Errorf("asked %q, want %q", got, tt.want)
				}
			})
		})
	}
}

func TestSequentialReturnsToFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newThreeServers(t, upstream.Sequential, upstreamtest.Action{Drop: true}, one("192.0.2.20"))
		tr.asked(t, 10, 100*time.Millisecond)
		tr.servers[0].SetScript(healthy("192.0.2.10"))
		time.Sleep(time.Second)
		if got, want := tr.asked(t, 3, time.Millisecond), "A A A"; got != want {
			t.Errorf("asked %q after its return, want %q", got, want)
		}
	})
}

func TestRandom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 600
		tr := newThreeServers(t, upstream.Random, after(time.Millisecond, one("192.0.2.10")), after(50*time.Millisecond, one("192.0.2.20")), one("192.0.2.30"))
		got := tr.asked(t, n, time.Millisecond)
		for _, name := range []string{"A", "B", "C"} {
			// A third each, within seven standard deviations.
			if share := strings.Count(got, name); share < n/3-81 || share > n/3+81+hedged(n) {
				t.Errorf("%s was asked %d of %d times, want a third", name, share, n)
			}
		}
		tr.servers[2].SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		tr.asked(t, 20, time.Millisecond)
		if got := tr.asked(t, 100, time.Millisecond); strings.Contains(got, "C") {
			t.Errorf("asked %q, want nothing of the one that fails", got)
		}
	})
}

// hedged returns how many of n queries may be hedged.
func hedged(n int) int { return n*3/100 + 1 }
