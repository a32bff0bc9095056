// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// During a rollout a new server comes, and an old one is removed and then ends. No query is lost, waits longer than
// one attempt, or reaches the removed server.
func TestEndpointsRollout(t *testing.T) {
	t.Parallel()
	ends := []struct {
		name string
		end  func(*harness)
	}{
		{name: "orderly", end: func(*harness) {}},
		{name: "closing its connections", end: func(h *harness) { h.end(addrA) }},
		{name: "without a FIN or RST", end: func(h *harness) { h.vanish(addrA) }},
	}
	for _, tt := range ends {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				e := endpoints(list(addrA, addrB), list(addrL))
				p := h.pool(t, e)
				got := during(t, p, time.Second)
				got.only(t, "before", "192.0.2.10", "192.0.2.20")
				if got.late > 0 {
					t.Errorf("before: %d late, longest %v, want none", got.late, got.longest)
				}

				var answer string
				var pending sync.WaitGroup // with A when it is removed
				h.b.SetScript(upstreamtest.Always(after(3*time.Millisecond, one("192.0.2.20"))))
				during(t, p, time.Second)
				e.Set(list(addrA, addrB, addrC), list(addrL))
				got = during(t, p, time.Second)
				got.only(t, "three", "192.0.2.10", "192.0.2.20", "192.0.2.30")
				pending.Go(func() { answer = ask(t, p) })
				synctest.Wait()
				tt.end(h)
				e.Set(list(addrB, addrC), list(addrL))
				asked := len(h.a.Queries())
				got = during(t, p, 12*time.Second)
				pending.Wait()

				got.only(t, "after", "192.0.2.20", "192.0.2.30")
				if got.late > 0 {
					t.Errorf("after: %d late, longest %v, want none", got.late, got.longest)
				}
				if !strings.HasPrefix(answer, "192.0.2.") {
					t.Errorf("pending: %q, want an answer", answer)
				}
				if more := len(h.a.Queries()) - asked; more > 0 {
					t.Errorf("%d queries to the one that left, want none", more)
				}
				if n := len(h.l.Queries()); n > 0 {
					t.Errorf("%d queries to the last resort, want none", n)
				}
				assert.Same(t, "servers", []string{"tcp 192.0.2.2:53", "tcp 192.0.2.3:53"}, servers(p)[:2])
			})
		})
	}
}

// Without servers a query fails at once, until the first Set.
func TestEndpointsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		e := new(upstream.Endpoints)
		p := h.pool(t, e)
		for _, step := range []struct {
			ready, last []upstream.Server
			want        string
		}{
			{want: "no-upstream"},
			{ready: list(addrA), want: "192.0.2.10"},
			{want: "no-upstream"},
			{last: list(addrL), want: "192.0.2.99"},
			{ready: list(netip.AddrPort{}, netip.AddrPortFrom(addrA.Addr(), 0)), want: "no-upstream"},
			{ready: list(netip.MustParseAddrPort("[::ffff:192.0.2.2]:53")), want: "192.0.2.20"},
		} {
			e.Set(step.ready, step.last)
			if got, want := p.Empty(), step.want == "no-upstream"; got != want {
				t.Errorf("Set(%v, %v): empty %v, want %v", step.ready, step.last, got, want)
			}
			start := time.Now()
			r, err := exchange(p, upstreamtest.Question(t, "www.example."), time.Hour)
			assert.Equal(t, fmt.Sprintf("Set(%v, %v): outcome", step.ready, step.last), step.want, outcome(t, r, err))
			if took := time.Since(start); took > time.Millisecond {
				t.Errorf("it took %v, want an end at once", took)
			}
			failure, failed := errors.AsType[*upstream.Failure](err)
			if !failed {
				continue
			}
			if got, want := failure.EDE(), wire.EDENoReachableAuthority; got != want || !errors.Is(err, upstream.ErrNoUpstream) {
				t.Errorf("EDE %d, error %v, want %d, ErrNoUpstream", got, err, want)
			}
		}
	})
}

// The zone calls Empty for every unknown name.
func TestEmptyDoesNotAllocate(t *testing.T) {
	// Not parallel: AllocsPerRun counts all goroutines.
	p := newPool(t, upstream.Config{Endpoints: endpoints(list(addrA), nil)})
	assert.Equal(t, "allocations", 0, testing.AllocsPerRun(1000, func() { p.Empty() }))
}

// Own addresses are excluded, and logged once. A Set without changes has no effect.
func TestEndpointsSelf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		log, lines := logger()
		e := endpoints(list(addrA), list(addrL))
		looked := 0
		p := newPool(t, upstream.Config{
			Endpoints: e, Dial: h.Dial, Log: log,
			Self: func(addr netip.AddrPort) bool {
				looked++
				return addr == addrA || addr == addrL
			},
		})
		run(t, p)
		if !p.Empty() {
			t.Errorf("servers %v, want none", servers(p))
		}
		for range 3 {
			e.Set(list(addrA, addrB), list(addrL))
			assert.Same(t, "servers", []string{"tcp 192.0.2.2:53"}, servers(p))
		}
		if looked != 2+3 {
			t.Errorf("checked %d addresses, want each once per change, 5", looked)
		}
		want := []string{
			"WARN upstream excluded reason=own address upstream=192.0.2.1:53",
			"WARN upstream excluded reason=own address upstream=10.96.0.10:53",
		}
		assert.Same(t, "log", want, lines())
	})
}

// One query makes six attempts at most, however often the servers change meanwhile.
func TestEndpointsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(healthy("192.0.2.10"))
		addrs := list(addrA)
		memory := upstreamtest.Network{addrA: s}
		for range 39 {
			addr := netip.AddrPortFrom(addrs[len(addrs)-1].Addr.Addr().Next(), 53)
			addrs, memory[addr] = append(addrs, upstream.Server{Addr: addr}), s
		}
		e := endpoints(addrs, nil)
		p := newPool(t, upstream.Config{Endpoints: e, Dial: memory.Dial})
		run(t, p)
		for range addrs {
			ask(t, p) // opens a connection to each
		}
		s.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		before := len(s.Queries())
		var group sync.WaitGroup
		group.Go(func() {
			assert.Equal(t, "outcome", "timeout", ask(t, p))
		})
		for len(addrs) > 5 {
			time.Sleep(101 * time.Millisecond) // never at a timeout: that attempt would go to a removed server
			addrs = addrs[1:]
			e.Set(addrs, nil)
		}
		group.Wait()
		if got := len(s.Queries()) - before; got > 6 || got < 3 {
			t.Errorf("%d queries, want 6 at most and some", got)
		}
	})
}

// Removed servers are forgotten.
func TestEndpointsDropCounters(t *testing.T) {
	// Not parallel: it measures the heap.
	e := new(upstream.Endpoints)
	p := newPool(t, upstream.Config{Endpoints: e})
	run(t, p)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	addr := addrA
	for range 20000 {
		addr = netip.AddrPortFrom(addr.Addr().Next(), 53)
		e.Set(list(addr), nil)
		p.Empty()
	}
	// 100 bytes each would be 2 MB.
	proctest.Eventually(t, time.Minute, "less than 1 MB more on the heap", func() bool { return heap() < before+1<<20 })
}

// Two pools may share one Endpoints, as before and after a reload. A pool whose Run has ended still answers, and
// keeps no connection to new servers either.
func TestEndpointsAfterRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		e := endpoints(list(addrA), nil)
		next := h.pool(t, e)
		p := newPool(t, upstream.Config{Endpoints: e, Dial: h.Dial})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		ask(t, p)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		e.Set(list(addrB), nil)
		for _, pool := range []*upstream.Pool{p, next} {
			assert.Equal(t, "answer", "192.0.2.20", ask(t, pool))
		}
		synctest.Wait()
		if ended, running := p.Stats().Servers[0].Open, next.Stats().Servers[0].Open; ended != 0 || running != 1 {
			t.Errorf("%d and %d connections, want none after Run and one in it", ended, running)
		}
	})
}
