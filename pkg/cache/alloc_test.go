// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

// TestAllocs is not parallel: it counts the allocations of the whole process.
func TestAllocs(t *testing.T) {
	c := newCache(t, cache.Prefetch{Hits: 1, Remaining: 0.5})
	key, failed, absent, due := nth("a", 1), nth("a", 2), nth("a", 3), nth("a", 4)
	a := answerTo(key, time.Hour, set(28, 4, 16)...)
	a.RotateCount = 4
	c.Put(key, a, epoch)
	failure := answerTo(failed, 0).Msg
	c.PutFailure(failed, failure, 10*time.Second, 10*time.Second, epoch)
	late := plain(due, time.Hour, 100)
	dst := make([]byte, 0, 4096)
	find := func(key []byte, at time.Duration, want cache.Freshness) func() {
		now := after(at)
		return func() {
			if _, got := c.Lookup(key, now, dst); got != want {
				t.Errorf("%q: %d, want %d", key, got, want)
			}
		}
	}
	findDue := find(due, 50*time.Minute, cache.Due)
	tests := []struct {
		name string
		run  func()
	}{
		{name: "fresh", run: find(key, time.Second, cache.Fresh)},
		{name: "failed", run: find(failed, time.Second, cache.Failed)},
		{name: "absent", run: find(absent, time.Second, cache.Absent)},
		{name: "past its time", run: find(failed, time.Hour, cache.Absent)},
		{name: "put again, due again", run: func() { c.Put(due, late, epoch); findDue() }},
		{name: "failure again", run: func() { c.PutFailure(failed, failure, time.Second, 10*time.Second, epoch) }},
		{name: "failure behind an answer", run: func() { c.PutFailure(key, failure, time.Second, time.Second, epoch) }},
		{name: "stats", run: func() { _ = c.Stats() }},
	}
	for _, tt := range tests {
		if got := testing.AllocsPerRun(100, tt.run); got != 0 {
			t.Errorf("%s: %v allocations, want 0", tt.name, got)
		}
	}
}

// benchmarkNames is how many names the benchmarks ask for: a busy node's.
const benchmarkNames = 1 << 14

// benchmarkCache has an answer of two addresses to every name but the last.
func benchmarkCache(b *testing.B) (c *cache.Cache, keys [][]byte) {
	b.Helper()
	c, err := cache.New(cache.Config{Size: 64 << 20, Prefetch: cache.Prefetch{Hits: 2, Remaining: 0.1}}, epoch)
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchmarkNames {
		keys = append(keys, nth("host", i))
		a := answerTo(keys[i], time.Hour, set(1, 2, 4)...)
		a.RotateCount = 2
		c.Put(keys[i], a, epoch)
	}
	return c, keys
}

func BenchmarkLookup(b *testing.B) {
	c, hits := benchmarkCache(b)
	var misses [][]byte
	for i := range benchmarkNames {
		misses = append(misses, nth("gone", i))
	}
	now := after(time.Minute)
	for _, bm := range []struct {
		name string
		keys [][]byte
		want cache.Freshness
	}{
		{name: "hit", keys: hits, want: cache.Fresh},
		{name: "miss", keys: misses, want: cache.Absent},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]byte, 0, 512)
			i := 0
			for b.Loop() {
				if _, got := c.Lookup(bm.keys[i%benchmarkNames], now, dst); got != bm.want {
					b.Fatalf("%d, want %d", got, bm.want)
				}
				i++
			}
		})
		b.Run(bm.name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			var starts atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				dst := make([]byte, 0, 512)
				i := int(starts.Add(benchmarkNames / 7))
				for pb.Next() {
					if _, got := c.Lookup(bm.keys[i%benchmarkNames], now, dst); got != bm.want {
						b.Errorf("%d, want %d", got, bm.want)
						return
					}
					i++
				}
			})
		})
	}
}

func BenchmarkPut(b *testing.B) {
	c, keys := benchmarkCache(b)
	b.Run("again", func(b *testing.B) {
		b.ReportAllocs()
		a := plain(keys[0], time.Hour, 30)
		for b.Loop() {
			c.Put(keys[0], a, epoch)
		}
	})
	b.Run("new", func(b *testing.B) { // of which each throws another out
		b.ReportAllocs()
		tail, i := append([]byte(nil), keys[0]...), uint64(0)
		a := plain(keys[0], time.Hour, 30)
		for b.Loop() {
			i++
			for j := range 7 { // the name's digits, in the key and in the answer
				digit := byte('a' + i>>(4*j)&15)
				tail[5+j], a.Msg[12+5+j] = digit, digit
			}
			c.Put(tail, a, epoch)
		}
	})
}
