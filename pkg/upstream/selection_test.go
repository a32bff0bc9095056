// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// Each server is asked once. Then the fastest one is, and with the eleventh query after that the other one as well.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		tr := newThreeServers(t, upstream.Fastest, after(20*ms, one("192.0.2.10")), after(4*ms, one("192.0.2.20")))
		start := time.Now()
		var got []string
		for i := range 24 {
			got = append(got, tr.asked(t, 1))
			time.Sleep(time.Until(start.Add(time.Duration(i+1) * time.Second)))
		}
		assert.Same(t, "asked", "A B B B B B B B B B AB B B B B B B B B B B AB B B", strings.Join(got, " "))
	})
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
				assert.Equal(t, "asked", want, d.String())
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
			got = append(got, p.Penalized(0))
		}
		assert.Same(t, "srtt", want, got)
		assert.Equal(t, "smoothed time of answers", 0, p.Stats().Servers[0].SRTT)
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
			assert.Equal(t, "answer", "192.0.2.20", ask(t, p))
			if got, want := time.Since(start), 5*time.Millisecond; got != want {
				t.Errorf("after %d s it took %v, want %v", second, got, want)
			}
			time.Sleep(time.Second)
		}
		assert.Equal(t, "queries to the silent one", 1, len(a.Queries()))
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
