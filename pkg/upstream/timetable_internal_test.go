// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Races are set, set anew and removed at random, and the clock goes on: each is taken out once, when it is due, the
// earliest first.
func TestTimetableOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // where no time passes, and the bell does not ring
		random := rand.New(rand.NewPCG(1, 2))
		now := time.Unix(1e9, 0)
		table := timetable{common: &common{now: func() time.Time { return now }}, calling: true} // no bell while the test takes
		races := make([]race, 300)
		want := map[*race]time.Time{}
		for range 20_000 {
			r := &races[random.IntN(len(races))]
			switch random.IntN(10) {
			case 0, 1, 2, 3, 4, 5:
				at := now.Add(time.Duration(random.IntN(1000)) * time.Millisecond)
				table.set(r, now, at)
				want[r] = at
			case 6, 7, 8:
				table.remove(r)
				delete(want, r)
			case 9:
				now = now.Add(time.Duration(random.IntN(200)) * time.Millisecond)
				takeDue(t, &table, now, want)
			}
			if len(table.heap) != len(want) {
				t.Fatalf("%d races are in the table, want %d", len(table.heap), len(want))
			}
		}
		now = now.Add(time.Hour)
		takeDue(t, &table, now, want)
		if len(want) != 0 {
			t.Errorf("%d races were never called", len(want))
		}
	})
}

// takeDue takes what is due, and compares it with what is to be.
func takeDue(t *testing.T, table *timetable, now time.Time, want map[*race]time.Time) {
	t.Helper()
	batch, last := make([]*race, 7), time.Time{}
	for n := table.take(batch, false); n > 0; n = table.take(batch, false) {
		for _, r := range batch[:n] {
			at, ok := want[r]
			if !ok || at.After(now) || at.Before(last) || r.place != 0 {
				t.Fatalf("a race of %v was taken at %v after one of %v, in the table: %t, place %d", at, now, last, ok, r.place)
			}
			last = at
			delete(want, r)
		}
	}
	for _, at := range want {
		if !at.After(now) {
			t.Fatalf("a race of %v was not taken at %v", at, now)
		}
	}
	table.calling = true
}

// busiest counts the goroutines whenever a race is over.
type busiest struct{ asked, goroutines int }

func (b *busiest) Answered([]byte, error, *wire.SendBatch) {
	b.asked--
	b.goroutines = max(b.goroutines, runtime.NumGoroutine())
}

// Thousands of queries that come to nothing in the same moment take no goroutine each: a stack is larger than a race.
func TestTimetableGoroutines(t *testing.T) { //nolint:paralleltest // it counts goroutines
	synctest.Test(t, func(t *testing.T) {
		const queries = 3000
		silent := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Drop: true}))
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: silent}.Dial})
		if err != nil {
			t.Fatal(err)
		}
		q := askFor(t, "www.example.")
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
		if most := before + 2*maxSockets; b.goroutines > most { // each socket has a reader, and a timer for its life
			t.Errorf("%d goroutines at one time, want at most %d", b.goroutines, most)
		}
		ep := p.list.Load().all[0]
		ep.endProbes()
		ep.retire()
	})
}
