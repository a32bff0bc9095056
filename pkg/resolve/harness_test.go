// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"context"
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An upstream is a stateful fake of resolve.Asker: it answers from records
// by name and type, counts, and can be made to wait or to fail.
type upstream struct {
	mu      sync.Mutex // guards all below
	records map[dns.Question][]dns.RR
	asked   []*dns.Msg
	gate    chan struct{} // not nil: answers wait until it is closed
	err     error
	mangle  func(*dns.Msg) // changes answers
}

func newUpstream(tb testing.TB, records ...string) *upstream {
	tb.Helper()
	u := &upstream{records: map[dns.Question][]dns.RR{}}
	for _, text := range records {
		rr := record(tb, text)
		h := rr.Header()
		q := dns.Question{Name: h.Name, Qtype: h.Rrtype, Qclass: dns.ClassINET}
		u.records[q] = append(u.records[q], rr)
	}
	return u
}

// Ask implements resolve.Asker. It answers at once or, with a gate, on a goroutine
// when the gate is open.
func (u *upstream) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	answer, err := u.answer(q)
	u.mu.Lock()
	gate := u.gate
	u.mu.Unlock()
	if gate == nil {
		respond(to, answer, err, batch)
		return
	}
	go func() {
		var batch wire.SendBatch
		defer batch.Flush()
		deadline := time.NewTimer(time.Until(until))
		defer deadline.Stop()
		select {
		case <-gate:
			respond(to, answer, err, &batch)
		case <-deadline.C:
			to.Answered(nil, context.DeadlineExceeded, &batch)
		}
	}()
}

// answer gives the answer to q.
func (u *upstream) answer(q []byte) ([]byte, error) {
	m := new(dns.Msg)
	if err := m.Unpack(q); err != nil {
		return nil, err
	}
	u.mu.Lock()
	u.asked = append(u.asked, m)
	err, mangle := u.err, u.mangle
	r := new(dns.Msg).SetReply(m)
	r.RecursionAvailable = true
	r.Compress = true
	r.Answer = u.records[m.Question[0]]
	u.mu.Unlock()
	if mangle != nil {
		mangle(r)
	}
	if err != nil {
		return nil, err
	}
	return r.Pack()
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.asked)
}

// bounds are those of every test's routes.
func bounds() resolve.TTLs {
	return resolve.TTLs{Min: 5 * time.Second, Max: time.Hour, Negative: 30 * time.Second}
}

// plan is a plan with one route, the root, and bounds a test may change.
func plan(tb testing.TB, u resolve.Asker) *resolve.Plan {
	tb.Helper()
	c, err := cache.New(cache.Config{Size: 8 << 20}, time.Now())
	assert.NoError(tb, err)
	return &resolve.Plan{
		Cache:    c,
		Routes:   []resolve.Route{{Suffix: []byte{0}, Upstream: u, TTL: bounds()}},
		UDPSize:  wire.SafeUDP,
		Deadline: 4 * time.Second, Inflight: 4096, Waiting: 65536,
		FailureTTL: 5 * time.Second, StaleAfter: 200 * time.Millisecond, Cut: true,
		Keepalive: 10 * time.Second,
	}
}

func newResolver(tb testing.TB, p *resolve.Plan) *resolve.Resolver {
	tb.Helper()
	r, err := resolve.New(resolve.Config{Plan: p, Now: time.Now, Rand: rand.Reader})
	assert.NoError(tb, err)
	return r
}

// A client sends packets through a worker and takes the replies.
type client struct {
	worker *resolve.Worker
	from   wire.Peer
	got    chan []byte
}

func newClient(r *resolve.Resolver, stream bool) *client {
	return &client{
		worker: r.NewWorker(),
		from:   wire.Peer{Addr: netip.MustParseAddrPort("10.1.2.3:4567"), Stream: stream},
		got:    make(chan []byte, 1),
	}
}

// Reply implements wire.Replier.
func (c *client) Reply(msg []byte, _ *wire.SendBatch) { c.got <- append([]byte(nil), msg...) }

// send gives pkt to the worker. The reply, or nil, is in c.got when it came.
func (c *client) send(pkt []byte) {
	now := time.Now()
	reply, verdict := c.worker.AnswerFromMemory(pkt, &c.from, now, nil)
	switch verdict {
	case wire.Answered:
		c.Reply(reply, nil)
	case wire.Missed:
		c.worker.Resolve(&c.from, now, c)
	case wire.Dropped:
		c.Reply(nil, nil)
	}
	c.worker.Flush(time.Now())
}

// exchange sends pkt and waits for the reply; nil: there was none.
func (c *client) exchange(tb testing.TB, pkt []byte) []byte {
	tb.Helper()
	c.send(pkt)
	select {
	case reply := <-c.got:
		return reply
	case <-time.After(10 * time.Second):
		tb.Fatal("no reply")
		return nil
	}
}

func pack(tb testing.TB, m *dns.Msg) []byte {
	tb.Helper()
	pkt, err := m.Pack()
	assert.NoError(tb, err)
	return pkt
}

func unpack(tb testing.TB, reply []byte) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(reply); err != nil {
		tb.Fatalf("reply %x: %v", reply, err)
	}
	return m
}

func question(name string, rrtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(name, rrtype)
}

// respond passes an upstream's bytes on as an upstream pool does: parsed, or as an error.
func respond(to wire.AnswerReceiver, answer []byte, err error, batch *wire.SendBatch) {
	m := new(wire.Message)
	if err == nil {
		err = m.Parse(slices.Clone(answer)) // what receives it may change it
	}
	if m.Server = "udp://192.0.2.53:53"; err != nil {
		m = nil
	}
	to.Answered(m, err, batch)
}

// wantNoAllocations answers pkt from memory, which must not allocate.
func wantNoAllocations(t *testing.T, worker *resolve.Worker, from *wire.Peer, pkt []byte, now time.Time) {
	t.Helper()
	dst := make([]byte, 0, 4096)
	if got := testing.AllocsPerRun(1000, func() {
		if _, verdict := worker.AnswerFromMemory(pkt, from, now, dst); verdict == wire.Missed {
			t.Fatal("a miss")
		}
		worker.Flush(now)
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// record reads a record.
func record(tb testing.TB, text string) dns.RR {
	tb.Helper()
	rr, err := dns.NewRR(text)
	if err != nil {
		tb.Fatalf("%q: %v", text, err)
	}
	return rr
}

// typeName names a query type in a query log.
func typeName(t uint16) string { return dns.Type(t).String() }
