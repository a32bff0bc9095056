// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestStaleAllocations requires that answers in backoff do not allocate.
func TestStaleAllocations(t *testing.T) {
	u := newUpstream(t, "www.test. 100 IN A 192.0.2.1")
	p := plan(t, u)
	p.Cache.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second})
	r := newResolver(t, p)
	c := newClient(r, false)
	pkt := pack(t, query("www.test.", dns.TypeA))
	c.exchange(t, pkt)
	now := time.Now().Add(110 * time.Second)
	var q wire.Query
	q.Parse(pkt)
	p.Cache.DelayRefresh(q.Key(), now.Add(time.Minute), now)
	wantNoAllocations(t, c.worker, &c.from, pkt, now)
	if got := r.Stats().Responses[resolve.SourceStale]; sum(got[:]) < 1000 {
		t.Errorf("%v replies were stale answers", got)
	}
}

// A once counts the replies to one query.
type once struct{ n atomic.Int32 }

// Reply implements wire.Replier.
func (o *once) Reply([]byte, *wire.SendBatch) { o.n.Add(1) }

// TestStaleRaces runs answers, failures, stale replies, owner changes and flushes in parallel.
// Every client gets one reply.
func TestStaleRaces(t *testing.T) {
	t.Parallel()
	var turn atomic.Int64
	u := asker(func(q []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
		n := turn.Add(1)
		time.AfterFunc(time.Duration(n%7)*400*time.Microsecond, func() {
			var batch wire.SendBatch
			defer batch.Flush()
			switch n % 5 {
			case 0:
				to.Answered(nil, errors.New("refused"), &batch)
			default:
				respond(to, addressed(t, q, "192.0.2.9"), nil, &batch)
			}
		})
	})
	start := time.Now()
	now := func() time.Time { return start.Add(100_000 * time.Since(start)) } // 300 s are 3 ms; but not to timers
	p := plan(t, u)
	p.StaleAfter = time.Millisecond
	p.Owner = func(name []byte) []byte { return name }
	p.Cache.SetServeStale(cache.ServeStale{Window: cache.MaxStaleWindow, TTL: time.Second})
	r, err := resolve.New(resolve.Config{Plan: p, Now: now, Rand: rand.Reader})
	assert.NoError(t, err)
	stale := func() uint64 { s := r.Stats(); return sum(s.Responses[resolve.SourceStale][:]) }
	var clients sync.WaitGroup
	var all [4][]*once
	var stop atomic.Bool
	for i := range all {
		clients.Go(func() {
			worker, pkt := r.NewWorker(), pack(t, query("a.test.", dns.TypeA))
			from := wire.Peer{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 53)}
			for n := 0; n < 4000 || stale() == 0 && time.Since(start) < time.Minute; n++ {
				pkt[13] = 'a' + byte(n%3)
				now := now()
				if _, verdict := worker.AnswerFromMemory(pkt, &from, now, nil); verdict == wire.Missed {
					o := new(once)
					all[i] = append(all[i], o)
					worker.Resolve(&from, now, o)
				}
				worker.Flush(now)
				if n%16 == 0 {
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
	}
	var meddler sync.WaitGroup
	meddler.Go(func() {
		for n := 0; !stop.Load(); n++ {
			if n%50 == 0 {
				p.Cache.OwnerChanged([]byte("\x01a\x04test\x00"), now())
			}
			next := *p
			r.Swap(&next)
			time.Sleep(time.Millisecond)
		}
	})
	clients.Wait()
	stop.Store(true)
	meddler.Wait()
	for deadline := time.Now().Add(10 * time.Second); r.Stats().Inflight > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // a second reply would be on its way now
	queries := 0
	for i := range all {
		queries += len(all[i])
		for n, o := range all[i] {
			if got := o.n.Load(); got != 1 {
				t.Fatalf("query %d of client %d got %d replies", n, i, got)
			}
		}
	}
	s := r.Stats()
	if s.Inflight != 0 || s.Waiting != 0 || s.Panics != 0 {
		t.Errorf("afterwards in flight %d, waiting %d, panics %d", s.Inflight, s.Waiting, s.Panics)
	}
	if stale() == 0 {
		t.Error("no reply was a stale answer")
	}
	t.Logf("%d queries waited, %d replies were stale answers, in %s", queries, stale(), time.Since(start))
}

// TestOverdueInOrder serves stale answers for two plans with different StaleAfter, each at its own
// time.
func TestOverdueInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := newPlay(t)
		name := func(n int) []byte { return pack(t, query(fmt.Sprintf("n%d.test.", n), dns.TypeA)) }
		const n = 20
		for i := range n {
			newClient(y.r, false).exchange(t, name(i))
		}
		time.Sleep(110 * time.Second)
		y.u.be("silent")
		clients := make([]*client, n)
		start := time.Now()
		begin := func(i int, after time.Duration) {
			next := *y.p
			next.StaleAfter = after
			y.r.Swap(&next)
			clients[i] = newClient(y.r, false)
			clients[i].send(name(i))
		}
		begin(0, 500*time.Millisecond)
		begin(1, 900*time.Millisecond)
		time.Sleep(10 * time.Millisecond)
		begin(2, 100*time.Millisecond)
		begin(3, 700*time.Millisecond)
		for i := 4; i < n; i++ {
			begin(i, 300*time.Millisecond)
		}
		for i, want := range map[int]int64{0: 500, 1: 900, 2: 110, 3: 710, 4: 310, n - 1: 310} {
			go func() {
				<-clients[i].got
				assert.Equal(t, fmt.Sprintf("client %d: ms until its answer", i), want, time.Since(start).Milliseconds())
			}()
		}
		y.settle()
		for i := 5; i < n-1; i++ {
			if len(clients[i].got) != 1 {
				t.Fatalf("client %d had no answer", i)
			}
		}
		if s := y.r.Stats(); s.Waiting != 0 || sum(s.Responses[resolve.SourceStale][:]) != n {
			t.Errorf("%d wait, %v were answered late", s.Waiting, s.Responses[resolve.SourceStale])
		}
	})
}
