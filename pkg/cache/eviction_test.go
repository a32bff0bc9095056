// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

// many bounds the loops that fill a cache.
const many = 100_000

// fillMainLog fills c until its main log has been full once. From then on only used entries get there.
func fillMainLog(t *testing.T, c *cache.Cache) {
	t.Helper()
	for i := range many {
		key := nth("warm", i)
		c.Put(key, plain(key, time.Hour, 100), epoch)
		c.Lookup(key, epoch, nil)
		if c.Stats().Evictions > 0 {
			return
		}
	}
	t.Fatal("never full")
}

// fill stores n answers without using them, and returns their bytes.
func fill(c *cache.Cache, prefix string, n int, now time.Time) (size int) {
	for i := range n {
		key := nth(prefix, i)
		a := plain(key, time.Hour, 100)
		c.Put(key, a, now)
		size += len(a.Msg)
	}
	return size
}

// held counts the stored keys of a prefix.
func held(c *cache.Cache, prefix string, n int) int {
	count := 0
	for i := range n {
		if c.Holds(nth(prefix, i)) {
			count++
		}
	}
	return count
}

// TestScan stores twenty times the cache's capacity. A FIFO would lose everything; S3-FIFO keeps the used entries.
func TestScan(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	fillMainLog(t, c)
	const n = 200 // fewer than the small log holds of each
	fill(c, "hot", n, epoch)
	for range 2 {
		for i := range n {
			if got := freshness(c, nth("hot", i), epoch); got != cache.Fresh {
				t.Fatalf("hot %d: %d, want fresh", i, got)
			}
		}
	}
	fill(c, "cold", n, epoch)
	if bytes := fill(c, "scan", many+50_000, epoch); bytes < 20*cache.MinSize {
		t.Fatalf("the scan has only %d bytes", bytes)
	}
	assert.Same(t, "result", n, held(c, "hot", n))
	if got := held(c, "cold", n); got != 0 {
		t.Errorf("%d of %d cold answers are left", got, n)
	}
	check(t, c)
}

// TestGhosts stores evicted answers again. They go straight to the main log and survive a scan; new answers do not.
func TestGhosts(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	fillMainLog(t, c)
	const n = 50
	fill(c, "back", n, epoch)
	fillers := 0
	for ; held(c, "back", n) > 0; fillers++ {
		if fillers == many {
			t.Fatal("never evicted")
		}
		fill(c, "filler"+string(rune('a'+fillers%26)), fillers/26+1, epoch)
	}
	fill(c, "back", n, epoch)
	fill(c, "new", n, epoch)
	proven, fresh := 0, 0
	for i := range n {
		if c.InMain(nth("back", i)) {
			proven++
		}
		if c.InMain(nth("new", i)) {
			fresh++
		}
	}
	if proven < n*8/10 { // a few ghosts were overwritten by others
		t.Errorf("%d of %d returned answers are in the main log", proven, n)
	}
	if fresh > n/10 {
		t.Errorf("%d of %d new answers are in the main log", fresh, n)
	}
	fill(c, "scan", 10_000, epoch)
	if got := held(c, "back", n); got < proven {
		t.Errorf("%d of %d are left after a scan", got, proven)
	}
	check(t, c)
}

// TestExpirations lets answers expire in both logs. They are evicted before all usable answers.
func TestExpirations(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		asked bool
	}{
		{name: "never asked for"},
		{name: "asked for"}, // which does not save them
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, cache.Prefetch{})
			const n = 1000 // more than the small log holds
			for i := range n {
				key := nth("old", i)
				c.Put(key, plain(key, 10*time.Second, 100), epoch)
				if tt.asked {
					c.Lookup(key, epoch, nil)
				}
			}
			for i := range n {
				if tt.asked { // those that moved to the main log too
					c.Lookup(nth("old", i), epoch, nil)
				}
			}
			if s := c.Stats(); s.Entries != n || s.Evictions+s.Expirations != 0 {
				t.Fatalf("before: %+v", s)
			}
			now := after(10 * time.Second)
			for i := 0; c.Stats().Expirations < n; i++ {
				if i == many {
					t.Fatalf("%d expired answers are never dropped", held(c, "old", n))
				}
				key := nth("new", i)
				c.Put(key, plain(key, time.Hour, 100), now)
				c.Lookup(key, now, nil)
			}
			if s := c.Stats(); s.Expirations != n || s.Evictions != 0 || held(c, "old", n) > 0 {
				t.Errorf("%d expirations and %d evictions, want %d and 0", s.Expirations, s.Evictions, n)
			}
			check(t, c)
		})
	}
}

// TestRejected stores answers that the cache cannot hold.
func TestRejected(t *testing.T) {
	t.Parallel()
	key := keyOf("a.", 1, 0)
	tests := []struct {
		name   string
		key    []byte
		answer *cache.Answer
		want   uint64
	}{
		{name: "the largest answer there is", key: key, answer: plain(key, time.Second, 1<<16-1-31)},
		{name: "the largest key", key: keyOf("a.", 1, make([]byte, 255)...), answer: plain(key, time.Second, 4)},
		{name: "no time to live", key: key, answer: plain(key, 0, 4), want: 1},
		{name: "less than a second to live", key: key, answer: plain(key, time.Second-1, 4), want: 1},
		{name: "a larger key", key: keyOf("a.", 1, make([]byte, 256)...), answer: plain(key, time.Second, 4), want: 1},
	}
	for _, tt := range tests {
		c := newCache(t, cache.Prefetch{})
		c.Put(tt.key, tt.answer, epoch)
		assert.Same(t, tt.name, tt.want, c.Stats().Rejected)
		assert.Same(t, tt.name+": held", tt.want == 0, c.Holds(tt.key))
		check(t, c)
	}
}
