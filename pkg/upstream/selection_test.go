// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// The order follows the latency. A slow server is tried again from time to time.
func TestOrder(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name  string
		a, b  upstreamtest.Action
		every time.Duration // between queries
		n     int
		want  string // servers asked, query by query
	}{
		{
			name: "each is measured, then the faster one is asked",
			a:    after(20*ms, one("192.0.2.10")), b: after(5*ms, one("192.0.2.20")),
			every: 100 * ms, n: 10,
			want: "A B B B B B B B B B",
		},
		{
			name: "not being asked halves every 5 s", // after 15 s, 20 ms score better than 4 ms
			a:    after(20*ms, one("192.0.2.10")), b: after(4*ms, one("192.0.2.20")),
			every: time.Second, n: 20,
			want: "A B B B B B B B B B B B B B B A B B B B",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, b := upstreamtest.New(upstreamtest.Always(tt.a)), upstreamtest.New(upstreamtest.Always(tt.b))
				p := memory(t, "udp", upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
				got := make([]string, 0, tt.n)
				start := time.Now()
				for i := range tt.n {
					beforeA, beforeB := len(a.Queries()), len(b.Queries())
					ask(t, p)
					got = append(got, strings.Repeat("A", len(a.Queries())-beforeA)+strings.Repeat("B", len(b.Queries())-beforeB))
					time.Sleep(time.Until(start.Add(time.Duration(i+1) * tt.every)))
				}
				if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The timeout follows the latency: 4 × srtt between 150 and 800 ms.
func TestAttemptTimeout(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		srtt, want time.Duration
	}{
		{srtt: ms, want: 150 * ms},
		{srtt: 50 * ms, want: 200 * ms},
		{srtt: 190 * ms, want: 760 * ms},
		{srtt: 350 * ms, want: 800 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.srtt.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &queryLog{}
				a := d.server("A", upstreamtest.Sequence(after(tt.srtt, one("192.0.2.10")), upstreamtest.Action{Drop: true}))
				p := memory(t, "udp", upstreamtest.Network{addrA: a}, addrA)
				ask(t, p)
				start := time.Since(d.start)
				ask(t, p)
				want := fmt.Sprintf("A@0s A@%v A@%v A@%v", start, start+tt.want, start+2*tt.want)
				if got := d.String(); got != want {
					t.Errorf("asked %q, want %q", got, want)
				}
			})
		})
	}
}

// Penalties: 100 ms at least, then doubled. Parallel attempts count once, so a second has two. Then the server is
// down.
func TestPenalty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := memory(t, "udp", upstreamtest.Network{addrA: nil}, addrA)
		want := []time.Duration{200e6, 400e6, 400e6, 400e6}
		got := make([]time.Duration, 0, len(want))
		for range want {
			var clients sync.WaitGroup
			for range 20 {
				clients.Go(func() { askFor(t, p, time.Second) })
			}
			clients.Wait()
			got = append(got, p.Stats().Servers[0].SRTT)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("srtt (-want +got):\n%s", diff)
		}
	})
}

// Recovery is found by probes, without delaying another client.
func TestProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		b := upstreamtest.New(upstreamtest.Always(after(5*time.Millisecond, one("192.0.2.20"))))
		p := memory(t, "udp", upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
		ask(t, p)
		for second := range 60 {
			start := time.Now()
			if got := ask(t, p); got != "192.0.2.20" {
				t.Errorf("answer %q, want 192.0.2.20", got)
			}
			if got, want := time.Since(start), 5*time.Millisecond; got != want {
				t.Errorf("after %d s it took %v, want %v", second, got, want)
			}
			time.Sleep(time.Second)
		}
		if got := len(a.Queries()); got != 1 {
			t.Errorf("%d queries to the silent one, want one", got)
		}
		if got := a.Probes(); got < 110 || got > 125 {
			t.Errorf("%d probes in a minute, want two a second", got)
		}
		a.SetScript(upstreamtest.Always(rcode(dns.RcodeRefused))) // any answer counts
		time.Sleep(time.Second)
		before := a.Probes()
		if p.Stats().Servers[0].Failing {
			t.Error("it is thought to fail still")
		}
		time.Sleep(time.Minute)
		if got := a.Probes(); got != before {
			t.Errorf("%d probes after its return, want none", got-before)
		}
	})
}
