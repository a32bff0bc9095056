// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A port with an unanswered query is not used again, even if it is drawn.
func TestSocketPoolLeavesSilentPort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
			upstreamtest.Action{Drop: true},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
		))
		h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		h.random.Reset(fixedRandom{})
		q := upstreamtest.Question(t, "www.example.")
		for range 2 {
			h.ask(t, 1, q, false)
			h.came.Wait()
		}
		if _, ever := h.openCount(); ever != 1 {
			t.Fatalf("%d sockets for queries that draw the same one, want 1", ever)
		}
		lost := h.ask(t, 1, q, false)[0]
		time.Sleep(50 * time.Millisecond)
		_ = h.cancel(lost)
		h.came.Done()
		h.ask(t, 1, q, false)
		h.came.Wait()
		synctest.Wait() // the first socket's reader ends
		if now, ever := h.openCount(); now != 1 || ever != 2 {
			t.Errorf("%d sockets of %d are open, want 1 of 2", now, ever)
		}
	})
}

// A socket takes a limited number of batches, for a limited time.
func TestSocketPoolRetiresSockets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
		h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		h.random.Reset(fixedRandom{})
		for range 2*socketBatches + 1 {
			h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
			h.came.Wait()
		}
		synctest.Wait()
		if now, ever := h.openCount(); now != 1 || ever != 3 {
			t.Errorf("%d sockets of %d are open, want 1 of 3", now, ever)
		}
		s.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		waits := h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)[0]
		time.Sleep(socketAge + socketAgeRange)
		synctest.Wait()
		h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
		if now, ever := h.openCount(); now != 2 || ever != 4 {
			t.Errorf("%d sockets of %d are open, want 2 of 4: the old one has a query", now, ever)
		}
		_ = h.cancel(waits)
		h.came.Done()
		synctest.Wait()
		if now, _ := h.openCount(); now != 1 {
			t.Errorf("%d sockets are open, want 1", now)
		}
		h.fail(t)
	})
}

// fail cancels all pending attempts.
func (h *socketHarness) fail(tb testing.TB) {
	tb.Helper()
	for _, s := range h.slots {
		if s != nil {
			h.deliverError(s.fail(), errDied)
		}
	}
	h.came.Wait()
}

// Endless queries without answers need a bounded number of sockets and table entries.
func TestSocketPoolBounds(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	h := newSocketHarness(t, inMemory, silentDial(&dials))
	q := upstreamtest.Question(t, "www.example.")
	var (
		batch    wire.SendBatch
		attempts []*attempt
		err      error
	)
	for err == nil {
		tr := &attempt{query: q, receiver: replyFunc(func(reply, *wire.SendBatch) {})}
		if err = h.send(tr, &batch); err == nil {
			attempts = append(attempts, tr)
		}
		if len(attempts)%16 == 0 {
			batch.Flush()
		}
		if n := len(attempts); n%1000 == 0 { // some time out
			_ = h.cancel(attempts[n/2])
		}
		if now, _ := h.openCount(); now > maxSockets {
			t.Fatalf("%d sockets are open, want at most %d", now, maxSockets)
		}
	}
	batch.Flush()
	if !errors.Is(err, errLimit) {
		t.Errorf("error %v, want that of a limit", err)
	}
	if n := len(attempts); n < socketSlots*socketQueries || n > maxSockets*socketQueries+len(attempts)/1000 {
		t.Errorf("%d queries under way, want at least %d and at most %d", n, socketSlots*socketQueries, maxSockets*socketQueries)
	}
	for _, tr := range attempts {
		_ = h.cancel(tr)
	}
}

// After shutdown the pool refuses queries, finishes pending ones and then holds nothing.
func TestSocketPoolShutdown(t *testing.T) {
	t.Parallel()
	for _, leave := range []bool{true, false} {
		t.Run(fmt.Sprintf("leave=%v", leave), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Delay: time.Second, Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
				h := newSocketHarness(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
				start := time.Now()
				h.ask(t, 10, upstreamtest.Question(t, "www.example."), false)
				want := map[string]int{"forged": 11}
				if h.closeIdle(false); leave {
					h.closeIdle(true)
					want = map[string]int{"forged": 10, errRemoved.Error(): 1}
				}
				h.ask(t, 1, upstreamtest.Question(t, "www.example."), false)
				h.wait()
				if took := time.Since(start); took != time.Second {
					t.Errorf("the last socket was closed after %v, want 1s", took)
				}
				h.came.Wait()
				h.want(t, want)
				if now, _ := h.openCount(); now != 0 {
					t.Errorf("%d sockets are open, want none", now)
				}
			})
		})
	}
}

// Many goroutines send batches and cancel some attempts. Every attempt gets its own answer once, or is canceled.
func TestSocketPoolConcurrent(t *testing.T) {
	t.Parallel()
	const (
		askers, batches = 8, 100
		size, dropped   = 20, 2
	)
	h := newSocketHarness(t, responder(t), nil)
	var (
		group            sync.WaitGroup
		replies, strange atomic.Int64
	)
	for a := range askers {
		group.Go(func() {
			q := upstreamtest.Question(t, fmt.Sprintf("asker-%d.example.", a))
			for range batches {
				var (
					batch    wire.SendBatch
					came     sync.WaitGroup
					attempts [size]attempt
				)
				came.Add(size - dropped)
				for i := range attempts {
					tr, first := &attempts[i], true
					*tr = attempt{query: q, randomCase: true, receiver: replyFunc(func(r reply, _ *wire.SendBatch) {
						if r.m == nil || wire.Match(tr.sent, r.m.Raw) != wire.ExactMatch || !first {
							strange.Add(1)
						}
						first = false
						if replies.Add(1); i < size-dropped {
							came.Done()
						}
					})}
					if err := h.send(tr, &batch); err != nil {
						t.Error(err)
						return
					}
				}
				batch.Flush()
				for i := range dropped {
					_ = h.cancel(&attempts[size-1-i])
				}
				came.Wait()
			}
		})
	}
	group.Wait()
	if n := strange.Load(); n != 0 {
		t.Errorf("%d attempts got two replies or a wrong one", n)
	}
	if got, all := replies.Load(), int64(askers*batches*size); got > all || got < all-all/size*dropped {
		t.Errorf("%d attempts of %d got a reply", got, all)
	}
}
