// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// The answer has the caller's ID and no trailing bytes.
func TestExchangeAnswer(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		return append(upstreamtest.Forged(q), "trailing"...)
	}}}))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", s.Listen(t))}})
	q := upstreamtest.Question(t, "www.example.")
	q[0], q[1] = 0xab, 0xcd
	sent := string(q)
	got, err := exchange(p, q, 10*time.Second)
	if want := upstreamtest.Forged(q); err != nil || !bytes.Equal(got, want) {
		t.Errorf("answer %q, error %v, want %q", got, err, want)
	}
	if string(q) != sent {
		t.Error("the query was changed")
	}
	if _, err := exchange(p, q[:5], time.Second); err == nil {
		t.Error("a truncated query is asked, want an error")
	}
}

// A bad message does not end the wait for the answer (TuDoor, CVE-2023-28452), but for one thing: over TCP only the peer
// can have sent a malformed answer, which ends the attempt at once. The connection stays. Nothing else lowers the health (CVE-2023-26437).
func TestBadMessageFirst(t *testing.T) {
	t.Parallel()
	truncated := upstreamtest.Shape{Name: "truncated", Reads: true, Make: func(q []byte) []byte {
		r := upstreamtest.Forged(q)
		r[2] |= 2
		return r
	}}
	for _, shape := range append(upstreamtest.BadShapes(), truncated) {
		for _, network := range []string{"udp", "tcp"} {
			want, counted, took, srtt, requests := "192.0.2.66", "mismatch=1", 150*time.Millisecond, 150*time.Millisecond, uint64(1)
			switch {
			case shape.Reads && network == "tcp":
				want, counted, took, srtt, requests = "malformed", "malformed=3", 0, 400*time.Millisecond, 3
			case shape.Name == "truncated":
				continue // it is asked again over TCP
			case shape.Reads:
				counted = "malformed=1"
			}
			t.Run(shape.Name+" "+network, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					raws := []upstreamtest.Raw{shape.Make}
					if took > 0 {
						raws = append(raws, func(q []byte) []byte {
							time.Sleep(took)
							return upstreamtest.Forged(q)
						})
					}
					s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: raws}))
					p := memory(t, network, upstreamtest.Network{addrA: s}, addrA)
					start := time.Now()
					if got := ask(t, p); got != want || time.Since(start) != took {
						t.Errorf("outcome %q after %v, want %q after %v", got, time.Since(start), want, took)
					}
					assert.Equal(t, "failures", counted, failures(p))
					if got := p.Stats().Servers[0]; got.Requests != requests || p.Penalized(0) != srtt || s.Connections() > 1 {
						t.Errorf("%d requests, srtt %v, %d connections, want %d, %v and one at most",
							got.Requests, p.Penalized(0), s.Connections(), requests, srtt)
					}
				})
			})
		}
	}
}
