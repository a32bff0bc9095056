// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// The last resort is asked if no server is ready or all ready ones fail, within the same query. Queries return to the
// others when one has recovered.
func TestEndpointsLastResort(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name    string
		fail    func(*harness, *upstream.Endpoints)
		back    func(*harness, *upstream.Endpoints)
		late    int           // queries that waited
		longest time.Duration // of them
	}{
		{
			name:    "all gone",
			fail:    func(_ *harness, e *upstream.Endpoints) { e.Set(nil, list(addrL)) },
			back:    func(_ *harness, e *upstream.Endpoints) { e.Set(list(addrA), list(addrL)) },
			longest: ms,
		},
		{
			name: "all refuse",
			fail: func(h *harness, _ *upstream.Endpoints) {
				h.end(addrA)
				h.end(addrB)
			},
			back:    func(h *harness, _ *upstream.Endpoints) { h.set(addrA, healthy("192.0.2.10"), nil) },
			longest: ms,
		},
		{
			name: "all silent", // 300 ms: one timeout each; then one probe of each in 5 s
			fail: func(h *harness, _ *upstream.Endpoints) {
				h.vanish(addrA)
				h.vanish(addrB)
			},
			back:    func(h *harness, _ *upstream.Endpoints) { h.set(addrA, healthy("192.0.2.10"), nil) },
			late:    31 + 30 + 2*2,
			longest: 601 * ms, // of a query that was pending when they stopped answering
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				e := endpoints(list(addrA, addrB), list(addrL))
				p := h.pool(t, e)
				during(t, p, time.Second)
				if n := len(h.l.Queries()); n > 0 {
					t.Errorf("%d queries to the last resort while others answer, want none", n)
				}

				tt.fail(h, e)
				got := during(t, p, 12*time.Second)
				got.only(t, "all gone", "192.0.2.99")
				if got.late > tt.late || got.longest > tt.longest {
					t.Errorf("%d late, longest %v, want at most %d, %v", got.late, got.longest, tt.late, tt.longest)
				}

				tt.back(h, e)
				during(t, p, 6*time.Second)
				last := len(h.l.Queries())
				during(t, p, 12*time.Second).only(t, "back", "192.0.2.10")
				if more := len(h.l.Queries()) - last; more > 0 {
					t.Errorf("%d queries to the last resort with one back, want none", more)
				}
			})
		})
	}
}

// A server that stops answering delays queries for one timeout only. The next ones go to another server, and the
// connection is closed long before the kernel would.
func TestEndpointsBlackHole(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		dead func(*harness)
	}{
		{name: "path broken", dead: func(h *harness) { h.vanish(addrA) }},
		{name: "program stuck", dead: func(h *harness) { h.a.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true})) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				h.b.SetScript(upstreamtest.Always(after(3*time.Millisecond, one("192.0.2.20")))) // A is preferred
				p := h.pool(t, endpoints(list(addrA, addrB), nil))
				during(t, p, time.Second)
				if got := p.Stats().Servers[0]; got.Open != 1 || got.Requests < 190 {
					t.Fatalf("%d connections to A, %d requests, want it to be used", got.Open, got.Requests)
				}
				tt.dead(h)
				got := during(t, p, 12*time.Second)
				got.only(t, "dead", "192.0.2.20")
				if got.longest > 153*time.Millisecond || got.late > 31 {
					t.Errorf("%d late, longest %v, want no more than come in 155 ms, 153ms", got.late, got.longest)
				}
				if got := p.Stats().Servers[0].Open; got > 2 {
					t.Errorf("%d connections to A, want one for the quick probe and one for the slow at most", got)
				}
			})
		})
	}
}

// One slow name does not change the health of a server that answers others.
func TestEndpointsSlowQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.a.SetScript(func(q upstreamtest.Query) upstreamtest.Action {
			if q.Name == "slow.example." {
				return upstreamtest.Action{Drop: true}
			}
			return after(time.Millisecond, one("192.0.2.10"))
		})
		// The answer ends the slow attempt with A between two queries.
		h.l.SetScript(upstreamtest.Always(after(3*time.Millisecond, one("192.0.2.99"))))
		p := h.pool(t, endpoints(list(addrA), list(addrL)))
		during(t, p, 100*time.Millisecond)
		var slow sync.WaitGroup
		slow.Go(func() { askName(t, p, "slow.example.") })
		during(t, p, time.Second).only(t, "beside a slow one", "192.0.2.10")
		slow.Wait()
		if got := len(h.l.Queries()); got != 1 {
			t.Errorf("%d queries to the last resort, want the slow one", got)
		}
	})
}
