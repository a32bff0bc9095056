// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

// again is a worker that asks for one name whose answer is always 100 s past its time.
func needsRetry(tb testing.TB, stale time.Duration) (ask func(), m *misser) {
	tb.Helper()
	p := plan(tb, newCanned(tb))
	p.Cache.SetServeStale(cache.ServeStale{Window: stale, TTL: 30 * time.Second})
	m = missing(tb, p, false)
	now := time.Now().Add(400 * time.Second)
	return func() {
		m.turn-- // the same name
		m.miss(now)
	}, m
}

// BenchmarkMissAgain is a miss of a name that was held until a moment ago: what a name
// that is asked for all the time costs when its time is over. Without late answers it
// is any miss.
func BenchmarkStaleMiss(b *testing.B) {
	for _, tt := range []struct {
		name  string
		stale time.Duration
	}{{"expired", 0}, {"late", time.Hour}} {
		b.Run(tt.name, func(b *testing.B) {
			ask, m := needsRetry(b, tt.stale)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
			m.worker.Flush(time.Now())
		})
	}
}

// TestMissAgainAllocations is the budget of a late answer's flight: no more than any
// other's.
func TestStaleMissAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's pools forget on purpose")
	}
	ask, m := needsRetry(t, time.Hour)
	ask()
	before := m.got.replies
	if got := testing.AllocsPerRun(2000, ask); got > 1 {
		t.Errorf("%v allocations, want 1", got)
	}
	if got := m.got.replies - before; got != 2001 {
		t.Errorf("%d replies to 2001 queries: they did not become flights", got)
	}
}
