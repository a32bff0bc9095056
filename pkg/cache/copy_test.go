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
		held int
		due  cache.Freshness
	}{
		{name: "no use", use: func(*cache.Cache, []byte) {}, held: 0, due: cache.Fresh},
		{name: "lookups", use: func(c *cache.Cache, key []byte) {
			for range 3 {
				c.Lookup(key, epoch, nil)
			}
		}, held: 10, due: cache.PrefetchDue},
		{name: "copies", use: func(c *cache.Cache, key []byte) { c.AddHits(key, 3) }, held: 10, due: cache.PrefetchDue},
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
			if got := c.Stats().Hits - before; got != uint64(3*tt.held) {
				t.Errorf("%d hits counted, want %d", got, 3*tt.held)
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

// TestObserve has a copy that ends before and after its answer is replaced, and one that ends after many answers were removed.
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
	c.Observe(nil)
	c.Put(key, old, epoch)
	name := string(key[:len(key)-3])
	var want []string
	for i, found := range []cache.Freshness{
		cache.Absent, cache.Fresh, cache.Fresh, cache.Fresh, cache.Fresh, cache.Absent, cache.Absent, cache.Fresh, // before and after each
		cache.Absent, cache.Absent,
	} {
		owner := name
		if i >= 8 {
			owner = ""
		}
		want = append(want, owner+"|"+found.String())
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
