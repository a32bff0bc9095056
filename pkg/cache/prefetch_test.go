// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

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
	assert.Same(t, "lookup 65546", cache.PrefetchDue, freshness(c, key, after(60*time.Second)))
}
