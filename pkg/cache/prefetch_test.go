// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// An ask is one lookup and what it should find.
type ask struct {
	at   time.Duration
	want cache.Freshness
}

func TestDue(t *testing.T) {
	t.Parallel()
	const s = time.Second
	tenth := cache.Prefetch{Hits: 2, Remaining: 0.1}
	tests := []struct {
		name     string
		prefetch cache.Prefetch
		asks     []ask // of an answer that lives for 100 s
	}{
		{name: "time left", prefetch: tenth, asks: []ask{{0, cache.Fresh}, {1 * s, cache.Fresh}, {90 * s, cache.Fresh}}},
		{name: "one hit, whole life", prefetch: cache.Prefetch{Hits: 1, Remaining: 1}, asks: []ask{{0, cache.Fresh}, {time.Millisecond, cache.PrefetchDue}, {s, cache.Fresh}}},
		{name: "nothing left", prefetch: cache.Prefetch{Hits: 1}, asks: []ask{{99 * s, cache.Fresh}, {100*s - 1, cache.Fresh}}},
		{name: "less than nothing", prefetch: cache.Prefetch{Hits: -1, Remaining: -1}, asks: []ask{{0, cache.Fresh}, {99 * s, cache.Fresh}}},
		{name: "more than all", prefetch: cache.Prefetch{Hits: 1, Remaining: 7}, asks: []ask{{s, cache.PrefetchDue}, {s, cache.Fresh}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, tt.prefetch)
			key := keyOf("a.", 1, 0)
			for range 2 { // an answer stored again is due again
				c.Put(key, plain(key, 100*time.Second, 4), epoch)
				var got []ask
				for _, a := range tt.asks {
					got = append(got, ask{a.at, freshness(c, key, after(a.at))})
				}
				same(t, "result", tt.asks, got, cmp.AllowUnexported(ask{}))
			}
		})
	}
}

// TestDueHitsLarge configures more hits than an entry counts.
func TestDueHitsLarge(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{Hits: 1_000_000, Remaining: 0.5})
	key := keyOf("a.", 1, 0)
	c.Put(key, plain(key, 100*time.Second, 4), epoch)
	for i := 1; i < 1<<16-1; i++ {
		if got := freshness(c, key, after(60*time.Second)); got != cache.Fresh {
			t.Fatalf("lookup %d: %d, want fresh", i, got)
		}
	}
	for range 10 { // too early: the count stays where it ends
		if got := freshness(c, key, epoch); got != cache.Fresh {
			t.Fatalf("early: %d, want fresh", got)
		}
	}
	same(t, "lookup 65546", cache.PrefetchDue, freshness(c, key, after(60*time.Second)))
}
