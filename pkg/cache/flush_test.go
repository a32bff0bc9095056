// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

func TestFlush(t *testing.T) {
	t.Parallel()
	texts := []string{".", "example.", "www.example.", "a.www.example.", "ww.example.", "bexample.", "a.bexample.", "example.org.", "aexample.www."}
	wire := func(name string) []byte { return nameOf(keyOf(name, 1)) }
	tests := []struct {
		name string
		do   func(c *cache.Cache) int
		want []string // names that are left
	}{
		{name: "a name", do: func(c *cache.Cache) int { return c.FlushName(wire("www.example.")) }, want: slices.Delete(slices.Clone(texts), 2, 3)},
		{name: "a name that is not there", do: func(c *cache.Cache) int { return c.FlushName(wire("x.")) }, want: texts},
		{name: "the root's name", do: func(c *cache.Cache) int { return c.FlushName(wire(".")) }, want: texts[1:]},
		{name: "a zone", do: func(c *cache.Cache) int { return c.Flush(wire("example.")) }, want: []string{".", "bexample.", "a.bexample.", "example.org.", "aexample.www."}},
		{name: "a zone whose own name is not there", do: func(c *cache.Cache) int { return c.Flush(wire("org.")) }, want: slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return s == "example.org." })},
		{name: "a zone that is not there", do: func(c *cache.Cache) int { return c.Flush(wire("xample.")) }, want: texts},
		{name: "all", do: func(c *cache.Cache) int { return c.Flush([]byte{0}) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := cache.New(cache.Config{Size: 4 * cache.MinSize}, epoch)
			if err != nil {
				t.Fatal(err)
			}
			keysOf := func(name string) [][]byte {
				return [][]byte{keyOf(name, 1, 0), keyOf(name, 1, 1), keyOf(name, 28, 0, 0, 1, 8, 0, 10), keyOf(name, 15, 3)}
			}
			for _, name := range texts {
				for i, key := range keysOf(name) {
					a := plain(key, time.Minute, 20)
					if i == 3 {
						a.NXDomain = true
					}
					c.Put(key, a, epoch)
				}
			}
			flushed := tt.do(c)
			if want := 4 * (len(texts) - len(tt.want)); flushed != want || c.Stats().Removed != uint64(want) || c.Stats().Entries != int64(4*len(tt.want)) {
				t.Errorf("%d flushed, want %d: %+v", flushed, want, c.Stats())
			}
			var left []string
			for _, name := range texts {
				there := 0
				for _, key := range keysOf(name) {
					if freshness(c, key, epoch) == cache.Fresh {
						there++
					}
				}
				if there == 4 {
					left = append(left, name)
				} else if there > 0 {
					t.Errorf("%s: %d of 4 are left", name, there)
				}
			}
			if diff := cmp.Diff(tt.want, left); diff != "" {
				t.Errorf("left (-want +got)\n%s", diff)
			}
			check(t, c)
		})
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	for _, s := range []upstreamAnswer{{0, "data", keyMX}, {0, "nxdomain", keyA}, {0, "data", keyDO}} {
		s.put(t, c)
	}
	c.Remove(keyMX)
	c.Remove(keyMX)
	for key, want := range map[string]cache.Freshness{string(keyMX): cache.Absent, string(keyA): cache.Absent, string(keyDO): cache.Fresh} {
		if got := freshness(c, []byte(key), epoch); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
	if got := c.Stats(); got.Removed != 2 || got.Entries != 1 {
		t.Errorf("%+v", got)
	}
	check(t, c)
}

// TestFlushReusesSpace fills and flushes a cache repeatedly.
func TestFlushReusesSpace(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	for range 5 {
		fill(c, "n", 20_000, epoch)
		if got, want := c.Flush([]byte{0}), 20_000; got == 0 || got > want {
			t.Errorf("%d flushed", got)
		}
		if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 {
			t.Errorf("%+v", s)
		}
		check(t, c)
	}
	fill(c, "n", 20_000, epoch)
	if s := c.Stats(); s.Bytes < cache.MinSize*7/10 {
		t.Errorf("%+v", s)
	}
}
