// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

func TestNewErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		size int64
		want string
	}{
		{name: "too small", size: cache.MinSize - 1, want: "cache size 1048575 bytes is below the minimum of 1048576"},
		{name: "nothing", want: "cache size 0 bytes is below the minimum of 1048576"},
		{name: "negative", size: math.MinInt64, want: "cache size -9223372036854775808 bytes is below the minimum of 1048576"},
		{name: "too large", size: cache.MaxSize + 1, want: "cache size 1099511627777 bytes is above the maximum of 1099511627776"},
		{name: "far too much", size: math.MaxInt64, want: "cache size 9223372036854775807 bytes is above the maximum of 1099511627776"},
	}
	for _, tt := range tests {
		_, err := cache.New(cache.Config{Size: tt.size}, epoch)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got error %v, want %q", tt.name, err, tt.want)
		}
		c := newCache(t, cache.Prefetch{})
		if _, err := c.Resize(tt.size, epoch); err == nil || err.Error() != tt.want {
			t.Errorf("%s: resized: got error %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestCapacity fills caches of unusual sizes with large answers. They stay within the budget and use
// most of it.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{cache.MinSize, cache.MinSize + 1, 2*cache.MinSize - 1, 3_333_333, 4 << 20} {
		c := newSized(t, size)
		for i := range int(size / 100) {
			key := nth("n", i)
			c.Put(key, plain(key, time.Hour, 200+i%200), epoch)
		}
		s := c.Stats()
		if s.Capacity > size || s.Capacity < size-size/100 || s.Bytes+s.Fixed > s.Capacity || s.Bytes < size*8/10 {
			t.Errorf("size %d: %+v", size, s)
		}
		check(t, c)
	}
}

// TestResizedTooSmall drops an answer that the new shards cannot hold.
func TestResizedTooSmall(t *testing.T) {
	t.Parallel()
	c := newTiny(t, 1<<14)
	large, little := keyOf("large.", 1, 0), keyOf("little.", 1, 0)
	c.Put(large, plain(large, time.Minute, 2000), epoch)
	c.Put(little, plain(little, time.Minute, 20), epoch)
	d, err := c.ResizeTiny(1<<12, 2, epoch)
	assert.NoError(t, err)
	if d.Holds(large) || !d.Holds(little) {
		t.Errorf("large is held: %t, little: %t", d.Holds(large), d.Holds(little))
	}
	check(t, d)
}

// TestResizedFullIndex resizes to shards whose index is full before their logs are.
func TestResizedFullIndex(t *testing.T) {
	t.Parallel()
	c := newTiny(t, 1<<14)
	for i := range 100 {
		key := keyOf(string(rune('a'+i))+".", 1)
		c.Put(key, answerTo(key, time.Minute), epoch)
	}
	before := c.Stats().Entries
	d, err := c.ResizeTiny(1<<12, 1, epoch)
	assert.NoError(t, err)
	check(t, d)
	if s := d.Stats(); s.Evictions == 0 || s.Entries == 0 || s.Entries+int64(s.Evictions) != before {
		t.Errorf("from %d entries: %+v", before, s)
	}
}

// TestResizedKeepsHot shrinks a full cache to a size with room for nearly all used entries. Almost none
// of them is lost, though there are more unused ones and shards are merged.
func TestResizedKeepsHot(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		size int64
		hot  int // answers that are asked for
	}{
		{name: "half, of which they need 80 %", size: 4 << 20, hot: 15_000},
		{name: "half, with odd shards", size: 4<<20 + 300_000, hot: 15_000},
		{name: "an eighth", size: 1 << 20, hot: 3500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newSized(t, 8<<20)
			fill(c, "cold", 40_000, epoch)
			for i := range tt.hot {
				key := nth("hot", i)
				c.Put(key, plain(key, time.Hour, 100), epoch)
				for range 1 + i%4 {
					c.Lookup(key, epoch, nil)
				}
			}
			fill(c, "new", 10_000, epoch) // so that the logs turn
			before := held(c, "hot", tt.hot)
			d, err := c.Resize(tt.size, epoch)
			assert.NoError(t, err)
			check(t, d)
			after := held(d, "hot", tt.hot)
			t.Logf("%d of %d used answers were held, %d are left: %+v", before, tt.hot, after, d.Stats())
			if after < before*98/100 || before < tt.hot*98/100 {
				t.Errorf("%d of %d used answers were held, %d are left", before, tt.hot, after)
			}
		})
	}
}

// TestResizedAgain resizes a cache many times. Each frees its memory at once, and the first forwards to
// the last.
func TestResizedAgain(t *testing.T) {
	t.Parallel()
	first := newSized(t, 8<<20)
	fill(first, "n", 1000, epoch)
	svc := []byte("svc")
	c := first
	for _, size := range []int64{2 << 20, 16 << 20, 1 << 20, 8 << 20, 8 << 20, 3 << 20} {
		d, err := c.Resize(size, epoch)
		assert.NoError(t, err)
		assert.Same(t, "result", c.Shards(), c.Released())
		c = d
	}
	assert.Same(t, "result", 1000, held(first, "n", 1000))
	key := keyOf("a.", 1, 0)
	a := plain(key, time.Hour, 4)
	a.Owner, a.QueriedAt = svc, epoch
	first.Put(key, a, epoch)
	assert.Same(t, "put into the first", cache.Fresh, freshness(c, key, epoch))
	first.SetServeStale(hourly)
	assert.Same(t, "settings of the first", cache.Stale, freshness(c, key, after(time.Hour)))
	first.OwnerChanged(svc, epoch)
	assert.Same(t, "events of the first", cache.Absent, freshness(c, key, epoch))
	d, err := first.Resize(4<<20, epoch) // what is nothing any more
	assert.NoError(t, err)
	if c.Released() != c.Shards() || d.Released() != 0 {
		t.Errorf("the first was resized, not the last")
	}
	assert.Same(t, "stats", d.Stats(), first.Stats())
	if got := first.Flush([]byte{0}, true); got != 1000 { // what is outdated did not move
		t.Errorf("%d of 1000 answers are flushed", got)
	}
	check(t, first)
}

// TestResizedInParallel has readers and writers use the first cache while it is resized repeatedly. No
// stored answer is lost.
func TestResizedInParallel(t *testing.T) {
	t.Parallel()
	const workers, names = 4, 400
	first := newCache(t, cache.Prefetch{})
	var done atomic.Bool
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			dst := make([]byte, 0, 512)
			prefix := string(rune('a' + w))
			for round := 0; !done.Load() || round < 2; round++ {
				for i := range names {
					key := nth(prefix, i)
					if round%2 == 0 {
						first.Put(key, plain(key, time.Hour, 40), epoch)
					}
					if _, got := first.Lookup(key, epoch, dst); got != cache.Fresh {
						t.Errorf("round %d: %q: %d, want fresh", round, key, got)
						return
					}
				}
			}
		})
	}
	c := first
	for i := range 30 {
		d, err := c.Resize(cache.MinSize<<(i*7%5), epoch)
		assert.NoError(t, err)
		c = d
	}
	done.Store(true)
	group.Wait()
	assert.Same(t, "result", workers*names, c.Stats().Entries)
	check(t, c)
}
