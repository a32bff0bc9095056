// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

// TestAllocs is not parallel: it counts the allocations of the whole process.
func TestAllocs(t *testing.T) {
	c := newStale(t, hourly)
	c.SetPrefetch(cache.Prefetch{Hits: 1, Remaining: 0.5})
	key, failed, absent, due := nth("a", 1), nth("a", 2), nth("a", 3), nth("a", 4)
	a := answerTo(key, time.Hour, set(28, 4, 16)...)
	a.RotateCount = 4
	c.Put(key, a, epoch)
	failure := answerTo(failed, 0).Msg
	c.PutFailure(failed, failure, 10*time.Second, 10*time.Second, epoch)
	soon := plain(due, time.Hour, 100)
	late, denied, below, svc := nth("a", 5), keyOf("denied.", 1, 0), keyOf("d.c.b.a.denied.", 28, 0), []byte("svc")
	other := []byte("other")
	c.Put(late, plain(late, time.Second, 100), epoch)
	denial := plain(denied, time.Hour, 100)
	denial.AllTypes, denial.Owner, denial.QueriedAt = true, svc, epoch
	c.Put(denied, denial, epoch)
	subnet := append(bytes.Clone(key), 0, 1, 8, 0, 10)
	c.Put(subnet, a, epoch)
	dst := make([]byte, 0, 4096)
	find := func(key []byte, at time.Duration, want cache.Freshness) func() {
		now := after(at)
		return func() {
			if _, got := c.Lookup(key, now, dst); got != want {
				t.Errorf("%q: %d, want %d", key, got, want)
			}
		}
	}
	findDue := find(due, 50*time.Minute, cache.PrefetchDue)
	tests := []struct {
		name string
		run  func()
	}{
		{name: "fresh", run: find(key, time.Second, cache.Fresh)},
		{name: "failed", run: find(failed, time.Second, cache.Failed)},
		{name: "absent", run: find(absent, time.Second, cache.Absent)},
		{name: "expired", run: find(failed, time.Hour, cache.Absent)},
		{name: "put again, due again", run: func() { c.Put(due, soon, epoch); findDue() }},
		{name: "failure again", run: func() { c.PutFailure(failed, failure, time.Second, 10*time.Second, epoch) }},
		{name: "failure behind an answer", run: func() { c.PutFailure(key, failure, time.Second, time.Second, epoch) }},
		{name: "late", run: find(late, time.Minute, cache.Stale)},
		{name: "late, given", run: func() {
			if _, ok := c.LookupStale(late, after(time.Minute), dst); !ok {
				t.Error("LookupStale found nothing")
			}
		}},
		{name: "put to rest", run: func() { c.DelayRefresh(late, after(time.Hour), after(time.Minute)) }},
		{name: "rests", run: find(late, 2*time.Minute, cache.StaleBackoff)},
		{name: "failure behind a late answer", run: func() { c.PutFailure(late, failure, time.Second, time.Second, after(time.Hour)) }},
		{name: "denied", run: find(keyOf("denied.", 15, 0), time.Second, cache.Fresh)},
		{name: "denied below", run: func() {
			if _, ok := c.LookupNXDomainCut(below[:len(below)-3], 1, 0, epoch, dst); !ok {
				t.Error("no denial of an ancestor")
			}
		}},
		{name: "denied again", run: func() { c.Put(denied, denial, epoch) }},
		{name: "with a subnet", run: find(subnet, time.Second, cache.Fresh)},
		{name: "event", run: func() { c.OwnerChanged(other, epoch); c.ChangedSince(svc, epoch) }},
		{name: "removed", run: func() { c.Put(due, soon, epoch); c.Remove(due) }},
		{name: "stats", run: func() { _ = c.Stats() }},
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, 0, testing.AllocsPerRun(100, tt.run))
	}
}

// benchmarkNames is the number of names, as on a busy node.
const benchmarkNames = 1 << 14

// benchmarkCache returns a cache with two addresses for every name but the last.
func benchmarkCache(b *testing.B, kept bool) (c *cache.Cache, keys [][]byte) {
	b.Helper()
	c = newWith(b, cache.Config{Size: 64 << 20, Prefetch: cache.Prefetch{Hits: 2, Remaining: 0.1}})
	for i := range benchmarkNames {
		keys = append(keys, nth("host", i))
		a := answerTo(keys[i], time.Hour, set(1, 2, 4)...)
		a.RotateCount = 2
		if a.Kept = kept; kept {
			a.Owner = keys[i][:len(keys[i])-3]
		}
		c.Put(keys[i], a, epoch)
	}
	return c, keys
}

func BenchmarkLookup(b *testing.B) {
	c, hits := benchmarkCache(b, false)
	vouched, kept := benchmarkCache(b, true)
	var misses [][]byte
	for i := range benchmarkNames {
		misses = append(misses, nth("gone", i))
	}
	now := after(time.Minute)
	vouched.Vouch(now, true)
	for _, bm := range []struct {
		name string
		of   *cache.Cache
		keys [][]byte
		want cache.Freshness
	}{
		{name: "hit", of: c, keys: hits, want: cache.Fresh},
		{name: "kept hit", of: vouched, keys: kept, want: cache.Fresh},
		{name: "miss", of: c, keys: misses, want: cache.Absent},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]byte, 0, 512)
			i := 0
			for b.Loop() {
				if _, got := bm.of.Lookup(bm.keys[i%benchmarkNames], now, dst); got != bm.want {
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
					if _, got := bm.of.Lookup(bm.keys[i%benchmarkNames], now, dst); got != bm.want {
						b.Errorf("%d, want %d", got, bm.want)
						return
					}
					i++
				}
			})
		})
	}
}

// BenchmarkDenial looks up names that do not exist, and names four labels below unknown names.
func BenchmarkDenial(b *testing.B) {
	c, _ := benchmarkCache(b, false)
	var asked, below [][]byte
	for i := range benchmarkNames {
		a, key := nth("denied", i), keyOf(fmt.Sprintf("denied%07d.example.", i), 28, 0)
		denial := plain(a, time.Hour, 60)
		denial.AllTypes = true
		c.Put(a, denial, epoch)
		asked = append(asked, key)
		below = append(below, keyOf(fmt.Sprintf("d.c.b.a.gone%07d.example.", i), 1, 0))
	}
	now := after(time.Minute)
	dst := make([]byte, 0, 512)
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, got := c.Lookup(asked[i%benchmarkNames], now, dst); got != cache.Fresh {
				b.Fatalf("%d, want fresh", got)
			}
			i++
		}
	})
	b.Run("miss", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			key := below[i%benchmarkNames]
			if _, got := c.Lookup(key, now, dst); got != cache.Absent {
				b.Fatalf("%d, want absent", got)
			}
			if _, ok := c.LookupNXDomainCut(key[:len(key)-3], 9, 0, now, dst); ok {
				b.Fatal("denied")
			}
			i++
		}
	})
}

func BenchmarkPut(b *testing.B) {
	c, keys := benchmarkCache(b, false)
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
