// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A port from which a query found no answer is not used again, even if it is drawn.
func TestSocketsLeavePortWithoutAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Sequence(
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
			upstreamtest.Action{Drop: true},
			upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}},
		))
		b := benchOf(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		b.rand = fixedRandom{}
		q := questionFor(t, "www.example.")
		for range 2 {
			b.ask(t, 1, q, false)
			b.came.Wait()
		}
		if _, ever := b.open(); ever != 1 {
			t.Fatalf("%d sockets for queries that draw the same one, want 1", ever)
		}
		lost := b.ask(t, 1, q, false)[0]
		time.Sleep(50 * time.Millisecond)
		_ = b.drop(lost)
		b.came.Done()
		b.ask(t, 1, q, false)
		b.came.Wait()
		synctest.Wait() // the first socket's reader ends by itself
		if now, ever := b.open(); now != 1 || ever != 2 {
			t.Errorf("%d sockets of %d are open, want 1 of 2", now, ever)
		}
	})
}

// A socket lasts for so many batches, and so long.
func TestSocketsAreRetired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
		b := benchOf(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		b.rand = fixedRandom{}
		for range 2*socketBatches + 1 {
			b.ask(t, 1, questionFor(t, "www.example."), false)
			b.came.Wait()
		}
		synctest.Wait()
		if now, ever := b.open(); now != 1 || ever != 3 {
			t.Errorf("%d sockets of %d are open, want 1 of 3", now, ever)
		}
		s.SetScript(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		waits := b.ask(t, 1, questionFor(t, "www.example."), false)[0]
		time.Sleep(socketAge + socketAgeRange)
		synctest.Wait()
		b.ask(t, 1, questionFor(t, "www.example."), false)
		if now, ever := b.open(); now != 2 || ever != 4 {
			t.Errorf("%d sockets of %d are open, want 2 of 4: the old one has a query", now, ever)
		}
		_ = b.drop(waits)
		b.came.Done()
		synctest.Wait()
		if now, _ := b.open(); now != 1 {
			t.Errorf("%d sockets are open, want 1", now)
		}
		b.fail(t)
	})
}

// fail ends all queries under way.
func (b *socketBench) fail(tb testing.TB) {
	tb.Helper()
	for _, s := range b.slots {
		if s != nil {
			b.tell(s.fail(), errDied)
		}
	}
	b.came.Wait()
}

// An idle upstream has no sockets.
func TestSocketsIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
		b := benchOf(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
		for range 50 {
			b.ask(t, 1, questionFor(t, "www.example."), false)
			b.came.Wait()
		}
		if now, _ := b.open(); now < 30 {
			t.Errorf("%d sockets after 50 queries, want at least 30", now)
		}
		time.Sleep(socketAge + socketAgeRange)
		synctest.Wait()
		if now, _ := b.open(); now != 0 {
			t.Errorf("%d sockets are open, want none", now)
		}
	})
}

// Queries without end and without answers are bounded, and so are the sockets.
func TestSocketsBounds(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	b := benchOf(t, inMemory, swallow(&dials))
	q := questionFor(t, "www.example.")
	var (
		batch wire.SendBatch
		tries []*try
		err   error
	)
	for err == nil {
		tr := &try{query: q, report: func(received, *wire.SendBatch) {}}
		if err = b.carry(tr, &batch); err == nil {
			tries = append(tries, tr)
		}
		if len(tries)%16 == 0 {
			batch.Flush()
		}
		if n := len(tries); n%1000 == 0 { // some come to the end of their time
			_ = b.drop(tries[n/2])
		}
		if now, _ := b.open(); now > maxSockets {
			t.Fatalf("%d sockets are open, want at most %d", now, maxSockets)
		}
	}
	batch.Flush()
	if !errors.Is(err, errLimit) {
		t.Errorf("error %v, want that of a limit", err)
	}
	if n := len(tries); n < socketSlots*socketQueries || n > maxSockets*socketQueries+len(tries)/1000 {
		t.Errorf("%d queries under way, want at least %d and at most %d", n, socketSlots*socketQueries, maxSockets*socketQueries)
	}
	for _, tr := range tries {
		_ = b.drop(tr)
	}
}

// Who leaves takes no query, lets those under way end, and then holds nothing.
func TestSocketsLeave(t *testing.T) {
	t.Parallel()
	for _, leave := range []bool{true, false} {
		t.Run(fmt.Sprintf("leave=%v", leave), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Delay: time.Second, Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
				b := benchOf(t, inMemory, upstreamtest.Network{inMemory: s}.Dial)
				start := time.Now()
				b.ask(t, 10, questionFor(t, "www.example."), false)
				want := map[string]int{"forged": 11}
				if b.retire(); leave {
					b.leave()
					want = map[string]int{"forged": 10, errLeft.Error(): 1}
				}
				b.ask(t, 1, questionFor(t, "www.example."), false)
				b.wait()
				if took := time.Since(start); took != time.Second {
					t.Errorf("the last socket was closed after %v, want 1s", took)
				}
				b.came.Wait()
				b.want(t, want)
				if now, _ := b.open(); now != 0 {
					t.Errorf("%d sockets are open, want none", now)
				}
			})
		})
	}
}

// Real sockets are closed when wait returns.
func TestSocketsGiveDescriptorsBack(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex // guards conns
		conns []net.Conn
	)
	b := benchOf(t, responder(t), func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		conn, err := new(dialer).dial(ctx, network, addr)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, conn)
		return conn, err
	})
	for range 100 {
		b.ask(t, 3, questionFor(t, "www.example."), true)
		b.came.Wait()
	}
	b.retire()
	b.wait()
	for _, conn := range conns {
		if _, err := conn.Write([]byte{0}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v: %v, want it closed", conn.LocalAddr(), err)
		}
	}
	if len(conns) < 30 {
		t.Errorf("%d sockets, want at least 30", len(conns))
	}
}

// Many ask, batch by batch, and do not wait for all of it. Every try is told once, of its own answer, or dropped.
func TestSocketsTogether(t *testing.T) {
	t.Parallel()
	const (
		askers, batches = 8, 100
		size, dropped   = 20, 2
	)
	b := benchOf(t, responder(t), nil)
	var (
		group         sync.WaitGroup
		told, strange atomic.Int64
	)
	for a := range askers {
		group.Go(func() {
			q := questionFor(t, fmt.Sprintf("asker-%d.example.", a))
			for range batches {
				var (
					batch wire.SendBatch
					came  sync.WaitGroup
					tries [size]try
				)
				came.Add(size - dropped)
				for i := range tries {
					tr, first := &tries[i], true
					*tr = try{query: q, mixed: true, report: func(r received, _ *wire.SendBatch) {
						if r.m == nil || wire.Match(tr.ride.packet.sent, r.m.Raw) != wire.ExactMatch || !first {
							strange.Add(1)
						}
						first = false
						if told.Add(1); i < size-dropped {
							came.Done()
						}
					}}
					if err := b.carry(tr, &batch); err != nil {
						t.Error(err)
						return
					}
				}
				batch.Flush()
				for i := range dropped {
					_ = b.drop(&tries[size-1-i])
				}
				came.Wait()
			}
		})
	}
	group.Wait()
	if n := strange.Load(); n != 0 {
		t.Errorf("%d tries were told twice, or of something else than their answer", n)
	}
	if got, all := told.Load(), int64(askers*batches*size); got > all || got < all-all/size*dropped {
		t.Errorf("%d tries of %d were told", got, all)
	}
}
