// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// pinnedKeys returns the keys of the address queries for n names, A and AAAA in turns, and pins them for a day.
func pinnedKeys(c *cache.Cache, n int) (keys [][]byte) {
	var names [][]byte
	for i := range n {
		for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
			keys = append(keys, keyOf(fmt.Sprintf("pinned%d.example.", i), rrtype, 0))
		}
		names = append(names, name(keys[2*i]))
	}
	c.SetPinned(names, 24*time.Hour)
	return keys
}

// countPresent returns how many of the keys have an answer, fresh or stale.
func countPresent(c *cache.Cache, keys [][]byte, now time.Time) (n int) {
	for _, key := range keys {
		if e, ok := c.Peek(key, now); ok && e.State < cache.Expired && e.Pinned {
			n++
		}
	}
	return n
}

// TestPinnedStays fills the smallest cache over and over, with small answers and with the largest ones, while the largest pinned
// answers to the most names are in its one shard. They all stay, fresh and stale, and every other answer still finds room.
func TestPinnedStays(t *testing.T) {
	t.Parallel()
	for _, state := range []struct {
		name string
		at   time.Duration
	}{{"fresh", time.Second}, {"stale", time.Hour}} {
		for _, size := range []int{20, 3900, 180 << 10 / 3, 65000} {
			t.Run(fmt.Sprintf("%s, %d bytes", state.name, size), func(t *testing.T) {
				t.Parallel()
				c := newStale(t, hourly)
				fillMainLog(t, c)
				keys := pinnedKeys(c, cache.MaxPinnedNames)
				for _, key := range keys {
					c.Put(key, plain(key, time.Minute, 3900), after(0))
				}
				for i := range max(200, 5<<20/size) {
					key := nth("flood", i)
					c.Put(key, plain(key, time.Hour, size), after(state.at))
					if f := freshness(c, key, after(state.at)); f != cache.Fresh {
						t.Fatalf("answer %d is %s, want fresh", i, f)
					}
				}
				if n := countPresent(c, keys, after(state.at)); n != len(keys) {
					t.Errorf("%d of %d pinned answers are left", n, len(keys))
				}
				check(t, c)
			})
		}
	}
}

// TestPinnedWindow checks how long a pinned answer may be served.
func TestPinnedWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stale cache.ServeStale
		want  time.Duration // after the expiry; then it is absent
	}{
		{"longer than others", hourly, 24 * time.Hour},
		{"without stale answers of others", cache.ServeStale{TTL: 30 * time.Second}, 24 * time.Hour},
		{"never shorter than others", cache.ServeStale{Window: 48 * time.Hour, TTL: time.Second}, 48 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, tt.stale)
			key := pinnedKeys(c, 1)[0]
			c.Put(key, plain(key, 10*time.Second, 4), after(0))
			if f := freshness(c, key, after(10*time.Second+tt.want-1)); f != cache.Stale {
				t.Errorf("at the end of its window it is %s", f)
			}
			if f := freshness(c, key, after(10*time.Second+tt.want)); f != cache.Absent {
				t.Errorf("after its window it is %s", f)
			}
			c.SetPinned(nil, 24*time.Hour)
			if f := freshness(c, key, after(10*time.Second+tt.want-1)); (f == cache.Stale) != (tt.stale.Window == tt.want) {
				t.Errorf("released, it is %s at the end of that window", f)
			}
		})
	}
}

// TestPinnedOnly checks which answers are pinned. What a client chooses, such as type, DO bit or subnet, must not fill the cache with
// pinned answers.
func TestPinnedOnly(t *testing.T) {
	t.Parallel()
	const www = "pinned0.example."
	a := keyOf(www, wire.TypeA, 0)
	nodata := answerTo(a, time.Minute, rr{rrtype: wire.TypeSOA, ttl: 60, rdata: make([]byte, 22)})
	for _, tt := range []struct {
		name   string
		key    []byte
		answer *cache.Answer // nil: one record
		want   bool
	}{
		{name: "A", key: a, want: true},
		{name: "AAAA", key: keyOf(www, wire.TypeAAAA, 0), want: true},
		{name: "no data of the type", key: a, answer: nodata, want: true},
		{name: "another name", key: keyOf("x.example.", wire.TypeA, 0)},
		{name: "a name below", key: keyOf("x."+www, wire.TypeA, 0)},
		{name: "the name above", key: keyOf("example.", wire.TypeA, 0)},
		{name: "TXT", key: keyOf(www, 16, 0)},
		{name: "with the DO bit", key: keyOf(www, wire.TypeA, 1)},
		{name: "with a client subnet", key: keyOf(www, wire.TypeA, 0, 0, 1, 24, 0, 10, 0, 0)},
		{name: "larger than 4 KiB", key: a, answer: plain(a, time.Minute, 4096)},
		{name: "NXDOMAIN", key: a, answer: denialOf(a, time.Minute)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			pinnedKeys(c, 1)
			if tt.answer == nil {
				tt.answer = plain(tt.key, time.Minute, 4)
			}
			c.Put(tt.key, tt.answer, after(0))
			if e, ok := c.Peek(tt.key, after(0)); !ok || e.Pinned != tt.want {
				t.Errorf("stored %t, pinned %t, want %t", ok, e.Pinned, tt.want)
			}
		})
	}
}

// TestPinnedReplaced checks what takes the place of a pinned answer: only an answer.
func TestPinnedReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(c *cache.Cache, key []byte, now time.Time)
		want cache.Freshness
	}{
		{"a failure does not", fail, cache.Fresh},
		{"an answer that may not be stored ends its lifetime", func(c *cache.Cache, key []byte, now time.Time) { c.Supersede(key, now) }, cache.Stale},
		{"a new route ends its lifetime", func(c *cache.Cache, key []byte, now time.Time) { c.Expire(name(key), now) }, cache.Stale},
		{"an operator removes it", func(c *cache.Cache, key []byte, _ time.Time) { c.Flush(name(key), false) }, cache.Absent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			key := pinnedKeys(c, 1)[0]
			c.Put(key, plain(key, time.Minute, 4), after(0))
			tt.do(c, key, after(5*time.Second))
			if f := freshness(c, key, after(5*time.Second)); f != tt.want {
				t.Errorf("then it is %s, want %s", f, tt.want)
			}
		})
	}
	t.Run("a failure while stale does not", func(t *testing.T) {
		t.Parallel()
		c := newStale(t, hourly)
		key := pinnedKeys(c, 1)[0]
		c.Put(key, plain(key, time.Minute, 4), after(0))
		for at := time.Minute; at < 24*time.Hour; at += time.Minute {
			fail(c, key, after(at))
		}
		if f := freshness(c, key, after(24*time.Hour)); f != cache.Stale {
			t.Errorf("after a day of failures it is %s", f)
		}
	})
	t.Run("others are removed", func(t *testing.T) {
		t.Parallel()
		c := newStale(t, hourly)
		key := nth("other", 1)
		c.Put(key, plain(key, time.Minute, 4), after(0))
		c.Supersede(key, after(0))
		if f := freshness(c, key, after(0)); f != cache.Absent {
			t.Errorf("then it is %s", f)
		}
	})
}

// TestPinnedSurvives checks that the pinned answers are those that a small snapshot, a smaller cache after a restart, and a smaller
// cache after a reload have, with their age.
func TestPinnedSurvives(t *testing.T) {
	t.Parallel()
	c := newWith(t, cache.Config{Size: 4 << 20, ServeStale: hourly})
	keys := pinnedKeys(c, cache.MaxPinnedNames)
	for _, key := range keys {
		c.Put(key, plain(key, time.Minute, 2000), after(0))
	}
	for i := range 30_000 {
		key := nth("used", i)
		c.Put(key, plain(key, 10*time.Hour, 20), after(0))
		for range 4 {
			freshness(c, key, after(0))
		}
	}
	at := after(3 * time.Hour) // beyond the window of others
	records := dump(t, c, 1<<20, at)

	small := newStale(t, hourly)
	pinnedKeys(small, cache.MaxPinnedNames)
	if _, err := small.Restore(slices.Values(records), time.Hour, epoch, nil); err != nil {
		t.Fatal(err)
	}
	if n := countPresent(small, keys, epoch); n != len(keys) {
		t.Errorf("%d of %d pinned answers were restored", n, len(keys))
	}
	if e, _ := small.Peek(keys[0], epoch); e.Age != 4*time.Hour || e.State != cache.Stale {
		t.Errorf("restored %s, %s old, want stale and 4h", e.State, e.Age)
	}
	if n := countPresent(small, keys, after(20*time.Hour+time.Minute)); n != 0 {
		t.Errorf("a restart made the window of %d answers longer", n)
	}

	resized, err := c.Resize(cache.MinSize, at)
	if err != nil {
		t.Fatal(err)
	}
	if n := countPresent(resized, keys, at); n != len(keys) {
		t.Errorf("%d of %d pinned answers are in the smaller cache", n, len(keys))
	}
	check(t, resized)
}

// TestPinnedNamesAreBounded checks that names beyond the bound are not pinned.
func TestPinnedNamesAreBounded(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	keys := pinnedKeys(c, cache.MaxPinnedNames+1)
	for _, key := range keys {
		c.Put(key, plain(key, time.Minute, 4), after(0))
	}
	if n := countPresent(c, keys, after(0)); n != 2*cache.MaxPinnedNames {
		t.Errorf("%d answers are pinned, want %d", n, 2*cache.MaxPinnedNames)
	}
}
