// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A query is pending with A when A is removed, 100 ms after it came.
func TestEndpointsRemovedWhilePending(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name   string
		a      upstreamtest.Action
		ready  []upstream.Server // after A was removed
		want   string
		took   time.Duration
		closed time.Duration // when the connection to A is closed
	}{
		{
			name: "A still answers", a: after(300*ms, one("192.0.2.10")), ready: list(addrB),
			want: "192.0.2.10", took: 300 * ms, closed: 300 * ms,
		},
		{
			name: "A still answers, without another server", a: after(900*ms, one("192.0.2.10")),
			want: "192.0.2.10", took: 900 * ms, closed: 900 * ms,
		},
		{
			name: "A hangs up", a: after(250*ms, upstreamtest.Action{Close: true}), ready: list(addrB),
			want: "192.0.2.20", took: 251 * ms, closed: 250 * ms,
		},
		{
			name: "A is silent", a: upstreamtest.Action{Drop: true}, ready: list(addrB),
			want: "192.0.2.20", took: 401 * ms, closed: 401 * ms,
		},
	}
	for _, tt := range tests {
		for _, warm := range []bool{false, true} {
			name := tt.name + ", on a new connection"
			if warm {
				name = tt.name + ", on an old connection"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newHarness()
					var start time.Time
					var closed time.Duration
					e := endpoints(list(addrA), nil)
					p := newPool(t, upstream.Config{
						Endpoints: e,
						Dial: func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
							conn, err := h.Dial(ctx, network, addr)
							if addr == addrA {
								conn = &closeNotifier{Conn: conn, onClose: sync.OnceFunc(func() { closed = time.Since(start) })}
							}
							return conn, err
						},
					})
					run(t, p)
					if warm { // and so that A's timeout is 400 ms in both cases
						h.a.SetScript(upstreamtest.Always(after(100*ms, one("192.0.2.10"))))
						ask(t, p)
					}
					h.a.SetScript(upstreamtest.Always(tt.a))
					start = time.Now()
					var answer string
					var took time.Duration
					var group sync.WaitGroup
					group.Go(func() {
						answer = ask(t, p)
						took = time.Since(start)
					})
					time.Sleep(100 * ms)
					e.Set(tt.ready, nil)
					group.Wait()
					synctest.Wait()
					if answer != tt.want || took != tt.took {
						t.Errorf("answer %q after %v, want %q after %v", answer, took, tt.want, tt.took)
					}
					if closed != tt.closed || h.a.Connections() != 1 {
						t.Errorf("%d connections to A, closed after %v, want one, %v", h.a.Connections(), closed, tt.closed)
					}
				})
			})
		}
	}
}

// An idle connection closes at once when its server is removed.
func TestEndpointsIdleRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		closed := false
		e := endpoints(list(addrA), nil)
		p := newPool(t, upstream.Config{
			Endpoints: e,
			Dial: func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
				conn, err := h.Dial(ctx, network, addr)
				return &closeNotifier{Conn: conn, onClose: func() { closed = true }}, err
			},
		})
		run(t, p)
		ask(t, p)
		synctest.Wait()
		if closed {
			t.Fatal("the connection is closed already")
		}
		e.Set(nil, nil)
		synctest.Wait()
		if !closed {
			t.Error("the connection is open, want it closed without a query")
		}
	})
}

// A server that stays keeps its connection and counters, in either list.
func TestEndpointsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		e := endpoints(list(addrA, addrB), nil)
		p := h.pool(t, e)
		for range 20 { // one goes to B, except for a chance of one in a million
			ask(t, p)
		}
		known := p.Stats().Servers[1]
		if known.Requests == 0 || known.Open != 1 {
			t.Fatalf("%d requests to B, %d open, want some and one", known.Requests, known.Open)
		}
		for _, set := range []struct{ ready, last []upstream.Server }{
			{ready: list(addrC, addrB), last: list(addrL)},
			{ready: list(addrC), last: list(addrB)},
			{last: list(addrB, addrL)},
		} {
			e.Set(set.ready, set.last)
			synctest.Wait()
			at := len(set.ready)
			if len(set.ready) == 2 {
				at = 1
			}
			known.LastResort = len(set.ready) < 2
			assert.Same(t, "what is known of B", known, p.Stats().Servers[at], cmpopts.EquateComparable(netip.AddrPort{}))
		}
	})
}
