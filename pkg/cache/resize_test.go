// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"math"
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
		{name: "too small", size: cache.MinSize - 1, want: "cache size 1048575 bytes: the least is 1048576"},
		{name: "nothing", want: "cache size 0 bytes: the least is 1048576"},
		{name: "negative", size: math.MinInt64, want: "cache size -9223372036854775808 bytes: the least is 1048576"},
		{name: "too large", size: cache.MaxSize + 1, want: "cache size 1099511627777 bytes: the most is 1099511627776"},
		{name: "far too much", size: math.MaxInt64, want: "cache size 9223372036854775807 bytes: the most is 1099511627776"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := cache.New(cache.Config{Size: tt.size}, epoch)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got error %v, want %q", err, tt.want)
			}
			c := newCache(t, cache.Prefetch{})
			if _, err := c.Resized(cache.Config{Size: tt.size}, epoch); err == nil || err.Error() != tt.want {
				t.Errorf("resized: got error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestCapacity fills caches of odd sizes with answers too large to use up the
// index. What they take stays in the budget, and most of the budget is used.
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

// TestResizedState moves answers in every state to a larger cache. Nothing that
// an observer can see changes but the counts.
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

	d, err := c.Resized(cache.Config{Size: 4 << 20, Prefetch: p}, after(20*time.Second))
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
		"fresh": cache.Fresh, "once": cache.Due, "due": cache.Due, "said": cache.Fresh, "expired": cache.Absent,
		"turned": cache.Due, "failed": cache.Failed,
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

// TestResizedSizes resizes a full cache. A larger one has everything; a smaller
// one is full, and of what was asked for. Shards that become one come one after
// the other, so that the last one's answers push out the first one's.
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
			hot := held(c, "hot", n/2)
			d, err := c.Resized(cache.Config{Size: tt.size}, epoch)
			if err != nil {
				t.Fatal(err)
			}
			check(t, d)
			if got := held(d, "hot", n/2); float64(got) < tt.atLeast*float64(hot) {
				t.Errorf("%d of %d answers that were asked for are left, want %v of them", got, hot, tt.atLeast)
			}
			for i := range n / 2 {
				if key := nth("hot", i); tt.complete && c.InMain(key) && !d.InMain(key) {
					t.Fatalf("%q was in the main log", key)
				}
			}
			if before, after := c.Stats(), d.Stats(); tt.complete && before.Entries != after.Entries {
				t.Errorf("%d of %d answers are left", after.Entries, before.Entries)
			}
			if s := d.Stats(); s.Capacity > tt.size || !tt.complete && s.Bytes < tt.size*8/10 {
				t.Errorf("size %d: %+v", tt.size, s)
			}
		})
	}
}

// TestResizedTooSmall leaves out an answer that the new shards cannot hold.
func TestResizedTooSmall(t *testing.T) {
	t.Parallel()
	c := newTiny(t, 1<<14)
	large, little := keyOf("large.", 1, 0), keyOf("little.", 1, 0)
	c.Put(large, plain(large, time.Minute, 2000), epoch)
	c.Put(little, plain(little, time.Minute, 20), epoch)
	d, err := c.ResizedTiny(1<<12, 2, epoch)
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
	d, err := c.ResizedTiny(1<<12, 1, epoch)
	if err != nil {
		t.Fatal(err)
	}
	check(t, d)
	if s := d.Stats(); s.Evictions == 0 || s.Entries == 0 || s.Entries+int64(s.Evictions) != c.Stats().Entries {
		t.Errorf("from %d entries: %+v", c.Stats().Entries, s)
	}
}

// TestStoredAgain stores answers of growing and shrinking length between two
// neighbours, whose bytes stay theirs.
func TestStoredAgain(t *testing.T) {
	t.Parallel()
	c := newTiny(t, 1<<15)
	key, neighbours := keyOf("a.", 1, 0), [][]byte{keyOf("b.", 1, 0), keyOf("c.", 1, 0)}
	full := func(key []byte, n int, octet byte) *cache.Answer {
		return answerTo(key, time.Minute, rr{rrtype: 16, ttl: 60, rdata: bytes.Repeat([]byte{octet}, n)})
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
				t.Fatalf("with %d octets, %q (-want +got)\n%s", n, asked, diff)
			}
		}
		check(t, c)
	}
}
