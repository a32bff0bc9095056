// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Random sets, resets and removals: each exchange is returned once, when it is due, the earliest first.
func TestTimerHeapOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes, so the timer does not fire
		random := rand.New(rand.NewPCG(1, 2))
		now := time.Unix(1e9, 0)
		table := timerHeap{common: newCommon(Config{Now: func() time.Time { return now }}), running: true} // the timer does not fire during the test
		races := make([]exchange, 300)
		want := map[*exchange]time.Time{}
		for range 20_000 {
			x := &races[random.IntN(len(races))]
			switch random.IntN(10) {
			case 0, 1, 2, 3, 4, 5:
				at := now.Add(time.Duration(random.IntN(1000)) * time.Millisecond)
				table.set(x, now, at)
				want[x] = at
			case 6, 7, 8:
				table.remove(x)
				delete(want, x)
			case 9:
				now = now.Add(time.Duration(random.IntN(200)) * time.Millisecond)
				takeDue(t, &table, now, want)
			}
			if len(table.entries) != len(want) {
				t.Fatalf("%d entries are in the table, want %d", len(table.entries), len(want))
			}
		}
		now = now.Add(time.Hour)
		takeDue(t, &table, now, want)
		if len(want) != 0 {
			t.Errorf("%d races were never called", len(want))
		}
	})
}

// takeDue pops the expired entries and compares them with the expected ones.
func takeDue(t *testing.T, table *timerHeap, now time.Time, want map[*exchange]time.Time) {
	t.Helper()
	batch, last := make([]*exchange, 7), time.Time{}
	for n := table.popDue(batch, false); n > 0; n = table.popDue(batch, false) {
		for _, x := range batch[:n] {
			at, ok := want[x]
			if !ok || at.After(now) || at.Before(last) || x.heapIndex != 0 {
				t.Fatalf("an exchange due at %v popped at %v after one due at %v, expected: %t, heap index %d", at, now, last, ok, x.heapIndex)
			}
			last = at
			delete(want, x)
		}
	}
	for _, at := range want {
		if !at.After(now) {
			t.Fatalf("an exchange due at %v not popped at %v", at, now)
		}
	}
	table.running = true
}

// busiest records the highest number of goroutines at the end of an exchange.
type busiest struct{ asked, goroutines int }

func (b *busiest) Answered(*wire.Message, error, *wire.SendBatch) {
	b.asked--
	b.goroutines = max(b.goroutines, runtime.NumGoroutine())
}

// Thousands of queries that time out at once need no goroutine each: a stack is larger than an exchange.
func TestTimerHeapGoroutines(t *testing.T) { //nolint:paralleltest // it counts goroutines
	synctest.Test(t, func(t *testing.T) {
		const queries = 3000
		silent := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: silent}.Dial})
		assert.NoError(t, err)
		q := upstreamtest.Question(t, "www.example.")
		b := busiest{asked: queries}
		before := runtime.NumGoroutine()
		var batch wire.SendBatch
		until := time.Now().Add(4 * time.Second)
		for range queries {
			p.Ask(slices.Clone(q), until, &b, &batch)
		}
		batch.Flush()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if b.asked != 0 {
			t.Errorf("%d queries have no answer", b.asked)
		}
		if most := before + 2*maxSockets; b.goroutines > most { // each socket has a reader and an age timer
			t.Errorf("%d goroutines at one time, want at most %d", b.goroutines, most)
		}
		ep := p.snapshot.Load().all[0]
		ep.stopProbes()
		ep.closeIdle(false)
	})
}
