// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A backlog is an upstream that answers each query when so many others have come: that
// many are under way all the time. It allocates nothing.
type backlog struct {
	fixedUpstream
	under []held
	next  int
}

// A held is a query that a backlog has not answered.
type held struct {
	q  []byte
	to wire.AnswerReceiver
}

// Ask implements resolve.Asker.
func (b *backlog) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	before := b.under[b.next]
	b.under[b.next] = held{q, to}
	b.next = (b.next + 1) % len(b.under)
	if before.to != nil {
		b.fixedUpstream.Ask(before.q, until, before.to, batch)
	}
}

// backlogged are the clients of whom each has a query under way.
const backlogged = 1000

// newMissOfMany asks for a new name in turn for each of many clients.
func newMissOfMany(tb testing.TB) (miss func(), m *misser) {
	tb.Helper()
	u := &backlog{fixedUpstream: *newCanned(tb), under: make([]held, backlogged)}
	m = newMisser(tb, u, false)
	now := time.Now()
	return func() {
		n := m.turn % (backlogged + backlogged/2) // one who comes again may wait still
		m.from.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 53)
		m.miss(now)
		m.worker.Flush(now)
	}, m
}

func BenchmarkMissOfMany(b *testing.B) {
	miss, _ := newMissOfMany(b)
	b.ReportAllocs()
	for b.Loop() {
		miss()
	}
}

// TestMissAllocationsOfMany: the account of who waits costs no allocation either, once
// as many have waited before.
func TestMissAllocationsOfMany(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's pools forget on purpose")
	}
	miss, m := newMissOfMany(t)
	for range 20 * backlogged {
		miss()
	}
	if got := testing.AllocsPerRun(20*backlogged, miss); got > 1 {
		t.Errorf("%v allocations, want 1", got)
	}
	if want := int(m.turn) - backlogged; m.got.replies != want {
		t.Errorf("%d replies, want %d", m.got.replies, want)
	}
}
