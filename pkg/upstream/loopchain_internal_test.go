// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// firstTimeout is the timeout of an upstream without latency samples.
const firstTimeout = timeoutSRTTs * initialSRTT

// A hop is the upstream of one resolver: another resolver, or, if nil, a server with every name.
type hop struct {
	monitor *loopMonitor

	mu    sync.Mutex // guards the fields below
	next  *resolve.Resolver
	asked int // queries that came this way, including probes
}

// A hopReply receives the reply of the next resolver.
type hopReply struct {
	to   wire.AnswerReceiver // nil: no client
	done atomic.Bool         // no sync.Once: the exchange that it ends may have it among its own clients
}

// Reply implements wire.Replier.
func (r *hopReply) Reply(msg []byte, batch *wire.SendBatch) {
	switch rcode := msg[3] & 0x0f; {
	case r.to == nil, r.done.Swap(true):
	case rcode != 0 && rcode != 3:
		r.to.Answered(nil, errRcode, batch)
	default:
		m := new(wire.Message)
		r.to.Answered(m, m.Parse(msg), batch)
	}
}

// fail ends the query without an answer.
func (r *hopReply) fail(err error) {
	if r.done.Swap(true) {
		return
	}
	var batch wire.SendBatch
	r.to.Answered(nil, err, &batch)
	batch.Flush()
}

// Ask implements resolve.Asker.
func (h *hop) Ask(q []byte, until time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	h.monitor.onQuery(time.Now())
	r := &hopReply{to: to}
	if h.monitor.looped() {
		go r.fail(errLoop)
		return
	}
	time.AfterFunc(firstTimeout, func() { // when an exchange checks for loops
		if h.monitor.looped() {
			r.fail(errLoop)
		}
	})
	time.AfterFunc(time.Until(until), func() { r.fail(errors.New("silent")) })
	go h.send(q, r)
}

// sum returns how many queries came this way.
func (h *hop) queries() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// send sends a query to the next resolver.
func (h *hop) send(q []byte, to wire.Replier) {
	time.Sleep(time.Millisecond)
	h.mu.Lock()
	next := h.next
	h.asked++
	h.mu.Unlock()
	if next == nil {
		m := new(dns.Msg)
		if err := m.Unpack(q); err != nil {
			panic(err)
		}
		rr := &dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: []byte{192, 0, 2, 1}}
		m.SetReply(m).Answer = []dns.RR{rr}
		msg, err := m.Pack()
		if err != nil {
			panic(err)
		}
		var batch wire.SendBatch
		to.Reply(msg, &batch)
		batch.Flush()
		return
	}
	worker, now := next.NewWorker(), time.Now()
	from := wire.Peer{Addr: netip.MustParseAddrPort("192.0.2.9:4567")}
	reply, verdict := worker.AnswerFromMemory(q, &from, now, nil)
	switch verdict {
	case wire.Answered:
		var batch wire.SendBatch
		to.Reply(reply, &batch)
		batch.Flush()
	case wire.Missed:
		worker.Resolve(&from, now, to)
	case wire.Dropped:
	}
	worker.Flush(time.Now())
}

// newHop makes an upstream without a next resolver, and a resolver that uses it.
func newHop(t *testing.T) (*hop, *resolve.Resolver) {
	t.Helper()
	h := &hop{}
	loops := NewLoopDetector(nil, time.Now)
	h.monitor = &loopMonitor{
		common: &common{now: time.Now, log: slog.New(slog.DiscardHandler)}, detector: loops, zone: []byte(rootZone),
		network: "udp", addr: netip.MustParseAddrPort("192.0.2.1:53"),
		send: func(q []byte) { go h.send(q, new(hopReply)) },
	}
	c, err := cache.New(cache.Config{Size: 8 << 20}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r, err := resolve.New(resolve.Config{Rand: rand.Reader, Now: time.Now, Plan: &resolve.Plan{
		Cache: c, Routes: []resolve.Route{{Suffix: []byte(rootZone), Upstream: h, TTL: resolve.TTLs{Max: time.Hour, Negative: 30 * time.Second}}}, UDPSize: wire.SafeUDP,
		Deadline: 4 * time.Second, Inflight: 4096, Waiting: 65536,
		FailureTTL: time.Second, Loop: loops.Detected,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return h, r
}

// client queries a resolver, and returns the rcode and the time.
func client(t *testing.T, r *resolve.Resolver, name string) (rcode int, took time.Duration) {
	t.Helper()
	q, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	door, start := &hop{next: r}, time.Now()
	got := make(chan int, 1)
	door.send(q, replyFunc(func(msg []byte) { got <- int(msg[3] & 0x0f) }))
	return <-got, time.Since(start)
}

// A replyFunc is a wire.Replier.
type replyFunc func(msg []byte)

// Reply implements wire.Replier.
func (f replyFunc) Reply(msg []byte, _ *wire.SendBatch) { f(msg) }

// Two resolvers forward to each other. The first query fails after its timeout and the others at once, no query
// circulates more than a few times, and both recover when one gets another upstream.
func TestLoopThroughTwoResolvers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, first := newHop(t)
		b, second := newHop(t)
		a.next, b.next = second, first
		defer a.monitor.stop()
		defer b.monitor.stop()
		const queries = 600 // one per second
		slow := 0
		for i := range queries {
			name := string([]byte{'a' + byte(i%26), 'a' + byte(i/26)}) + ".example."
			rcode, took := client(t, first, name)
			if rcode != dns.RcodeServerFailure {
				t.Fatalf("query %d: rcode %d, want SERVFAIL", i, rcode)
			}
			if took > firstTimeout+10*time.Millisecond {
				t.Errorf("query %d took %s, want the timeout at most", i, took)
			}
			if took > 100*time.Millisecond {
				slow++
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		// One per resolver to detect the loop. In one of a hundred runs a query comes just before a monitor's next
		// probe.
		if slow > 4 {
			t.Errorf("%d of %d queries took longer than 100 ms, want two as a rule and four at the most", slow, queries)
		}
		if !a.monitor.looped() && !b.monitor.looped() {
			t.Error("the loop was not detected")
		}
		if sum := a.queries() + b.queries(); sum > 2*queries {
			t.Errorf("%d queries between the two for %d of a client", sum, queries)
		} else {
			t.Logf("%d queries between the two for %d of a client", sum, queries)
		}

		b.mu.Lock()
		b.next = nil // it has another upstream now
		b.mu.Unlock()
		b.monitor.recheck()
		time.Sleep(time.Minute + 2*loopProbeTimeout)
		if rcode, _ := client(t, first, "recovered.example."); rcode != dns.RcodeSuccess {
			t.Errorf("rcode %d a minute after the loop ended, want NOERROR", rcode)
		}
		if a.monitor.looped() || b.monitor.looped() {
			t.Error("an upstream is still excluded after the loop ended")
		}
	})
}

// A resolver whose upstream is itself detects the loop.
func TestLoopToItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, r := newHop(t)
		h.next = r
		defer h.monitor.stop()
		for i := range 60 {
			rcode, took := client(t, r, string([]byte{'a' + byte(i%26), 'a' + byte(i/26)})+".example.")
			if rcode != dns.RcodeServerFailure || took > firstTimeout+10*time.Millisecond || i > 0 && took > 100*time.Millisecond {
				t.Errorf("query %d: rcode %d after %s, want SERVFAIL, and at once but for the first", i, rcode, took)
			}
			time.Sleep(time.Second)
		}
		if !h.monitor.looped() || h.queries() > 10 {
			t.Errorf("looped %v after %d queries", h.monitor.looped(), h.queries())
		}
	})
}
