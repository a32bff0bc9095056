// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := cache.New(cache.Config{Size: tt.size}, epoch)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got error %v, want %q", err, tt.want)
			}
			c := newCache(t, cache.Prefetch{})
			if _, err := c.Resize(cache.Config{Size: tt.size}, epoch); err == nil || err.Error() != tt.want {
				t.Errorf("resized: got error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestCapacity fills caches of unusual sizes with large answers. They stay within the budget and use
// most of it.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{cache.MinSize, cache.MinSize + 1, 2*cache.MinSize - 1, 3_333_333, 4 << 20} {
		c, err := cache.New(cache.Config{Size: size}, epoch)
		if err != nil {
			t.Fatal(err)
		}
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

// TestResizedState moves answers in every state to a larger cache. Only counters change.
func TestResizedState(t *testing.T) {
	t.Parallel()
	p := cache.Prefetch{Hits: 2, Remaining: 0.5}
	c := newCache(t, p)
	keys := map[string][]byte{}
	for _, name := range []string{"fresh", "once", "due", "said", "expired", "failed", "turned"} {
		keys[name] = keyOf(name+".", 1, 0)
		life := 100 * time.Second
		if name == "expired" {
			life = 20 * time.Second // to the instant
		}
		a := answerTo(keys[name], life, set(1, 3, 4)...)
		if name == "turned" {
			a.RotateCount = 3
		}
		c.Put(keys[name], a, epoch)
	}
	c.PutFailure(keys["failed"], answerTo(keys["failed"], 0).Msg, 8*time.Second, 60*time.Second, after(100*time.Second))
	c.Lookup(keys["once"], epoch, nil)
	c.Lookup(keys["due"], epoch, nil)
	c.Lookup(keys["said"], epoch, nil)
	c.Lookup(keys["said"], after(60*time.Second), nil)
	c.Lookup(keys["turned"], epoch, nil)

	d, err := c.Resize(cache.Config{Size: 4 << 20, Prefetch: p}, after(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	check(t, d)
	if diff := cmp.Diff(cache.Stats{Entries: 6}, d.Stats(), cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() == ".Bytes" || p.Last().String() == ".Fixed" || p.Last().String() == ".Capacity"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("stats (-want +got)\n%s", diff)
	}
	now := after(70 * time.Second)
	want := map[string]cache.Freshness{
		"fresh": cache.Fresh, "once": cache.PrefetchDue, "due": cache.PrefetchDue, "said": cache.Fresh, "expired": cache.Absent,
		"turned": cache.PrefetchDue, "failed": cache.Failed,
	}
	got := map[string]cache.Freshness{}
	for name, key := range keys {
		at := now
		if name == "failed" {
			at = after(108*time.Second - 1)
		}
		var msg []byte
		msg, got[name] = d.Lookup(key, at, nil)
		if name == "turned" {
			a := answerTo(key, time.Minute, set(1, 3, 4)...)
			if diff := cmp.Diff([]uint32{0, 0, 0}, ttlsOf(a, msg)); diff != "" {
				t.Errorf("TTLs of 60 after 70 s (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff("bca", firsts(a, msg)); diff != "" {
				t.Errorf("rotation (-want +got)\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestResizedSizes resizes a full cache. A larger one keeps everything; a smaller one is full of used
// entries. Shards that are merged move one after the other, so that the last one's answers evict the
// first one's.
func TestResizedSizes(t *testing.T) {
	t.Parallel()
	const n = 20_000
	tests := []struct {
		name     string
		size     int64
		atLeast  float64 // part of the answers that were asked for
		complete bool
	}{
		{name: "larger", size: 8 << 20, atLeast: 1, complete: true},
		{name: "the same", size: 4 << 20, atLeast: 0.95},
		{name: "half", size: 2 << 20, atLeast: 0.45},
		{name: "the least", size: cache.MinSize, atLeast: 0.2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := cache.New(cache.Config{Size: 4 << 20}, epoch)
			if err != nil {
				t.Fatal(err)
			}
			fill(c, "cold", n, epoch)
			for i := range n / 2 {
				key := nth("hot", i)
				c.Put(key, plain(key, time.Hour, 100), epoch)
				c.Lookup(key, epoch, nil)
			}
			hot, before := held(c, "hot", n/2), c.Stats()
			proven := map[int]bool{}
			for i := range n / 2 {
				proven[i] = c.InMain(nth("hot", i))
			}
			d, err := c.Resize(cache.Config{Size: tt.size}, epoch)
			if err != nil {
				t.Fatal(err)
			}
			check(t, d)
			if got := held(d, "hot", n/2); float64(got) < tt.atLeast*float64(hot) {
				t.Errorf("%d of %d used answers are left, want %v of them", got, hot, tt.atLeast)
			}
			for i := range n / 2 {
				if key := nth("hot", i); tt.complete && proven[i] && !d.InMain(key) {
					t.Fatalf("%q was in the main log", key)
				}
			}
			if after := d.Stats(); tt.complete && before.Entries != after.Entries {
				t.Errorf("%d of %d answers are left", after.Entries, before.Entries)
			}
			if s := d.Stats(); s.Capacity > tt.size || !tt.complete && s.Bytes < tt.size*8/10 {
				t.Errorf("size %d: %+v", tt.size, s)
			}
		})
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	check(t, d)
	if s := d.Stats(); s.Evictions == 0 || s.Entries == 0 || s.Entries+int64(s.Evictions) != before {
		t.Errorf("from %d entries: %+v", before, s)
	}
}

// TestStoredAgain replaces an answer by ones of growing and shrinking length. The adjacent entries do
// not change.
func TestStoredAgain(t *testing.T) {
	t.Parallel()
	c := newTiny(t, 1<<15)
	key, neighbours := keyOf("a.", 1, 0), [][]byte{keyOf("b.", 1, 0), keyOf("c.", 1, 0)}
	full := func(key []byte, n int, fill byte) *cache.Answer {
		return answerTo(key, time.Minute, rr{rrtype: 16, ttl: 60, rdata: bytes.Repeat([]byte{fill}, n)})
	}
	for i := range 100 {
		n := i
		if i > 50 {
			n = 100 - i
		}
		c.Put(neighbours[0], full(neighbours[0], 30, 'b'), epoch)
		c.Put(key, full(key, n, 'a'), epoch)
		c.Put(neighbours[1], full(neighbours[1], 30, 'c'), epoch)
		for _, want := range []*cache.Answer{full(key, n, 'a'), full(neighbours[0], 30, 'b'), full(neighbours[1], 30, 'c')} {
			asked := append(bytes.Clone(want.Msg[12:17]), 0)
			got, _ := c.Lookup(asked, epoch, nil)
			if diff := cmp.Diff(want.Msg, got); diff != "" {
				t.Fatalf("with %d bytes, %q (-want +got)\n%s", n, asked, diff)
			}
		}
		check(t, c)
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
			c, err := cache.New(cache.Config{Size: 8 << 20}, epoch)
			if err != nil {
				t.Fatal(err)
			}
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
			d, err := c.Resize(cache.Config{Size: tt.size}, epoch)
			if err != nil {
				t.Fatal(err)
			}
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
	first, err := cache.New(cache.Config{Size: 8 << 20}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	fill(first, "n", 1000, epoch)
	svc := []byte("svc")
	c := first
	for _, size := range []int64{2 << 20, 16 << 20, 1 << 20, 8 << 20, 8 << 20, 3 << 20} {
		d, err := c.Resize(cache.Config{Size: size}, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if want, got := c.Shards(), c.Released(); got != want {
			t.Errorf("%d of %d shards freed their memory", got, want)
		}
		c = d
	}
	if got := held(first, "n", 1000); got != 1000 {
		t.Errorf("%d of 1000 answers are left", got)
	}
	key := keyOf("a.", 1, 0)
	a := plain(key, time.Hour, 4)
	a.Owner, a.QueriedAt = svc, epoch
	first.Put(key, a, epoch)
	if got := freshness(c, key, epoch); got != cache.Fresh {
		t.Errorf("put into the first: %d, want fresh", got)
	}
	first.SetServeStale(hourly)
	if got := freshness(c, key, after(time.Hour)); got != cache.Stale {
		t.Errorf("settings of the first: %d, want stale", got)
	}
	first.OwnerChanged(svc, epoch)
	if got := freshness(c, key, epoch); got != cache.Absent {
		t.Errorf("events of the first: %d, want absent", got)
	}
	d, err := first.Resize(cache.Config{Size: 4 << 20}, epoch) // what is nothing any more
	if err != nil {
		t.Fatal(err)
	}
	if c.Released() != c.Shards() || d.Released() != 0 {
		t.Errorf("the first was resized, not the last")
	}
	if diff := cmp.Diff(d.Stats(), first.Stats()); diff != "" {
		t.Errorf("stats (-want +got)\n%s", diff)
	}
	if got := first.Flush([]byte{0}); got != 1000 { // what is outdated did not move
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
		d, err := c.Resize(cache.Config{Size: cache.MinSize << (i * 7 % 5)}, epoch)
		if err != nil {
			t.Fatal(err)
		}
		c = d
	}
	done.Store(true)
	group.Wait()
	if got := c.Stats().Entries; got != workers*names {
		t.Errorf("%d answers are left, want %d", got, workers*names)
	}
	check(t, c)
}
