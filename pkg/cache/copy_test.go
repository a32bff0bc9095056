// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

// TestAddHits has an answer used by its copies alone. It is counted, refreshed and kept like one that is looked up.
func TestAddHits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		use  func(c *cache.Cache, key []byte)
		uses uint64
		held int
		due  cache.Freshness
	}{
		{name: "no use", use: func(*cache.Cache, []byte) {}, held: 0, due: cache.Fresh},
		{name: "lookups", uses: 3, use: func(c *cache.Cache, key []byte) {
			for range 3 {
				c.Lookup(key, epoch, nil)
			}
		}, held: 10, due: cache.PrefetchDue},
		{name: "copies", uses: 3, use: func(c *cache.Cache, key []byte) { c.AddHits(key, 3) }, held: 10, due: cache.PrefetchDue},
		{name: "more than the counters hold", uses: 1 << 16, use: func(c *cache.Cache, key []byte) { c.AddHits(key, 1<<16) }, held: 10, due: cache.PrefetchDue},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newWith(t, cache.Config{Size: cache.MinSize, Prefetch: cache.Prefetch{Hits: 2, Remaining: 0.1}})
			fillMainLog(t, c)
			before := c.Stats().Hits
			for i := range 10 {
				c.Put(nth("hot", i), plain(nth("hot", i), time.Hour, 100), epoch)
				tt.use(c, nth("hot", i))
			}
			if got := c.Stats().Hits - before; got != 10*tt.uses {
				t.Errorf("%d hits counted, want %d", got, 10*tt.uses)
			}
			fill(c, "new", 2*many, epoch)
			assert.Same(t, "answers that are still held", tt.held, held(c, "hot", 10))
			key := nth("due", 0)
			c.Put(key, plain(key, time.Hour, 100), epoch)
			tt.use(c, key)
			_, found := c.Lookup(key, epoch.Add(55*time.Minute), nil)
			assert.Same(t, "freshness", tt.due, found)
		})
	}
}

// TestValidity reads how long a copy of an answer with a TTL of an hour may be used.
func TestValidity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		prefetch  cache.Prefetch
		at        time.Duration
		age, left time.Duration
	}{
		{"until it is due", cache.Prefetch{Hits: 2, Remaining: 0.1}, 10 * time.Minute, 10 * time.Minute, 44 * time.Minute},
		{"due, but not fetched yet", cache.Prefetch{Hits: 2, Remaining: 0.1}, 55 * time.Minute, 55 * time.Minute, 5 * time.Minute},
		{"no prefetch", cache.Prefetch{Remaining: 0.1}, 10 * time.Minute, 10 * time.Minute, 50 * time.Minute},
		{"expired", cache.Prefetch{Hits: 2, Remaining: 0.1}, time.Hour, 0, 0},
	} {
		c, key := newWith(t, cache.Config{Size: cache.MinSize, Prefetch: tt.prefetch}), nth("a", 0)
		c.Put(key, plain(key, time.Hour, 10), epoch)
		age, left, ok := c.Validity(key, epoch.Add(tt.at))
		assert.Equal(t, tt.name+": age", tt.age, age)
		assert.Equal(t, tt.name+": left", tt.left, left.Round(time.Second))
		assert.Equal(t, tt.name+": fresh", tt.left > 0, ok)
	}
}

// TestObserve has a copy that ends before and after its answer is replaced or its owner changes, and one that ends after many answers
// were removed.
func TestObserve(t *testing.T) {
	t.Parallel()
	c := newSized(t, cache.MinSize)
	key := nth("a", 0)
	old, next := plain(key, time.Hour, 10), plain(key, time.Hour, 20)
	var heard []string
	c.Observe(func(name []byte) {
		_, found := c.Lookup(key, epoch, nil)
		heard = append(heard, string(name)+"|"+found.String())
	})
	c.Put(key, old, epoch)
	c.Put(key, next, epoch)
	c.Remove(key)
	c.Put(key, old, epoch)
	c.Expire([]byte{0}, epoch)
	c.Flush([]byte{0}, true)
	owner := []byte("owner")
	old.Owner, old.QueriedAt = owner, epoch
	c.Put(key, old, epoch)
	c.OwnerChanged(owner, epoch)
	c.Observe(nil)
	c.Put(key, old, epoch)
	name := string(key[:len(key)-3])
	var want []string
	for _, call := range []struct {
		name          string
		before, after cache.Freshness
	}{
		{name, cache.Absent, cache.Fresh},
		{name, cache.Fresh, cache.Fresh},
		{name, cache.Fresh, cache.Absent},
		{name, cache.Absent, cache.Fresh},
		{"", cache.Absent, cache.Absent}, // one call after each of the two
		{name, cache.Absent, cache.Fresh},
		{"owner", cache.Fresh, cache.Absent},
	} {
		want = append(want, call.name+"|"+call.before.String(), call.name+"|"+call.after.String())
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
