// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A canned upstream answers every query at once with one address, and allocates
// nothing: what is measured with it is the resolver.
type fixedUpstream struct {
	reply []byte // an answer to the longest name, whose question is written over
	err   error  // not nil: comes in place of an answer
	buf   []byte
	m     wire.Message
}

// newCanned makes an upstream for names as long as missName.
func newCanned(tb testing.TB) *fixedUpstream {
	tb.Helper()
	m := question(missName, dns.TypeA)
	m.Response, m.RecursionAvailable, m.Compress = true, true, true
	rr := record(tb, missName+" 300 IN A 192.0.2.1")
	m.Answer = []dns.RR{rr}
	m.SetEdns0(1232, false)
	return &fixedUpstream{reply: pack(tb, m)}
}

// Ask implements resolve.Asker.
func (f *fixedUpstream) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if f.err != nil {
		to.Answered(nil, f.err, batch)
		return
	}
	end := 12
	for q[end] != 0 {
		end += 1 + int(q[end])
	}
	copy(f.reply[12:end], q[12:end])
	f.buf = append(f.buf[:0], f.reply...)
	err := f.m.Parse(f.buf)
	to.Answered(&f.m, err, batch)
}

// A counter takes replies and remembers how many.
type counter struct{ replies, bytes int }

// Reply implements wire.Replier.
func (c *counter) Reply(msg []byte, _ *wire.SendBatch) {
	c.replies++
	c.bytes += len(msg)
}

// A misser asks for a new name each time.
type misser struct {
	worker *resolve.Worker
	from   wire.Peer
	pkt    []byte
	turn   uint32
	out    []byte
	got    counter
}

const missName = "xxxxxxxx.shop.svc.example.com."

func newMisser(tb testing.TB, u resolve.Asker, edns bool) *misser {
	tb.Helper()
	return missing(tb, plan(tb, u), edns)
}

func missing(tb testing.TB, p *resolve.Plan, edns bool) *misser {
	tb.Helper()
	m := question(missName, dns.TypeA)
	if edns {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}}
	}
	r := newResolver(tb, p)
	return &misser{worker: r.NewWorker(), from: newClient(r, false).from, pkt: pack(tb, m), out: make([]byte, 0, 4096)}
}

// miss asks for the next name and has the reply before it returns. A name that is
// held gets none.
func (m *misser) miss(now time.Time) {
	m.turn++
	for i := range 8 {
		m.pkt[13+i] = 'a' + byte(m.turn>>(4*i)&15)
	}
	if _, verdict := m.worker.AnswerFromMemory(m.pkt, &m.from, now, m.out); verdict == wire.Missed {
		m.worker.Resolve(&m.from, now, &m.got)
	}
}

func BenchmarkMiss(b *testing.B) {
	for _, tt := range []struct {
		name string
		edns bool
		err  error
	}{{"plain", false, nil}, {"EDNS and cookie", true, nil}, {"failure", false, coded(22)}} {
		b.Run(tt.name, func(b *testing.B) {
			u := newCanned(b)
			u.err = tt.err
			m := newMisser(b, u, tt.edns)
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				m.miss(now)
			}
			m.worker.Flush(now)
			if m.got.replies != int(m.turn) {
				b.Fatalf("%d replies to %d queries", m.got.replies, m.turn)
			}
		})
	}
}

// TestMissAllocations is the budget of a whole miss without the upstream: the
// pending query, which has all of it.
func TestMissAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's pools forget on purpose")
	}
	for _, tt := range []struct {
		name string
		edns bool
		err  error
	}{{"plain", false, nil}, {"EDNS and cookie", true, nil}, {"failure", false, coded(22)}} {
		t.Run(tt.name, func(t *testing.T) {
			u := newCanned(t)
			u.err = tt.err
			m := newMisser(t, u, tt.edns)
			now := time.Now()
			if got := testing.AllocsPerRun(2000, func() {
				m.miss(now)
				m.worker.Flush(now)
			}); got > 1 {
				t.Errorf("%v allocations, want 1", got)
			}
			if m.got.replies != int(m.turn) {
				t.Errorf("%d replies to %d queries", m.got.replies, m.turn)
			}
		})
	}
}

// TestLongMiss queries names of any length. Questions that exceed the query's own buffer are cached
// too.
func TestLongMiss(t *testing.T) {
	t.Parallel()
	var name string
	for len(name) < 250 {
		name = "aBcDeFgHi." + name
		u := newUpstream(t, strings.ToLower(name)+" 300 IN A 192.0.2.1")
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}}
		r := newResolver(t, plan(t, u))
		c := newClient(r, false)
		for range 2 { // from upstream, then from the cache
			got := unpack(t, c.exchange(t, pack(t, m)))
			if got.Question[0].Name != name || len(got.Answer) != 1 || !strings.Contains(got.String(), "COOKIE: 0123456789abcdef") {
				t.Fatalf("%d bytes: got\n%s", len(name), got)
			}
		}
		assert.Equal(t, fmt.Sprintf("%d bytes: queries upstream", len(name)), 1, u.count())
	}
}
