// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

// again is a worker that asks for one name whose answer is always 100 s expired.
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

// TestStaleMissAllocations limits the allocations of a miss with a stale answer to those of any
// miss.
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
		t.Errorf("%d replies to 2001 queries: they did not become in-flight queries", got)
	}
}
