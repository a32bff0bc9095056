// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// dump returns a copy of each record of Dump.
func dump(tb testing.TB, c *cache.Cache, most int64, now time.Time) [][]byte {
	tb.Helper()
	var records [][]byte
	size := int64(0)
	n, err := c.Dump(most, now, func(record []byte) error {
		records = append(records, bytes.Clone(record))
		size += int64(len(binary.AppendUvarint(nil, uint64(len(record)))) + len(record))
		return nil
	})
	if err != nil || n != len(records) {
		tb.Fatalf("%d records, Dump returned %d: %v", len(records), n, err)
	}
	if size > most {
		tb.Fatalf("%d bytes, want at most %d", size, most)
	}
	return records
}

// everything exceeds the size of all caches in these tests.
const everything = 1 << 40

// restart returns the cache of the next process, which starts after the time away.
func restart(tb testing.TB, records [][]byte, away time.Duration, now time.Time, owner func([]byte) []byte) *cache.Cache {
	tb.Helper()
	c, err := cache.New(cache.Config{Size: 4 * cache.MinSize, ServeStale: cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}}, now)
	assert.NoError(tb, err)
	if _, err := c.Restore(slices.Values(records), away, now, owner); err != nil {
		tb.Fatal(err)
	}
	check(tb, c)
	return c
}

// staleCache returns a cache with a stale window of one hour.
func staleCache(tb testing.TB) *cache.Cache {
	tb.Helper()
	return newWith(tb, cache.Config{Size: 4 * cache.MinSize, ServeStale: cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}})
}

// soaDenial returns the denial of key's name.
func soaDenial(key []byte, life time.Duration) *cache.Answer {
	a := answerTo(key, life, rr{rrtype: wire.TypeSOA, ttl: uint32(life / time.Second), rdata: append([]byte{0, 0}, make([]byte, 20)...)})
	binary.BigEndian.PutUint16(a.Msg[6:], 0)
	binary.BigEndian.PutUint16(a.Msg[8:], 1)
	a.Msg[3] |= wire.RcodeNXDomain
	a.AllTypes = true
	return a
}

// TestDumpKeepsMostUsed prefers used entries when not all fit.
func TestDumpKeepsMostUsed(t *testing.T) {
	t.Parallel()
	for _, most := range []int64{0, 1, 1000, 40_000, 200_000} {
		c := staleCache(t)
		const entries = 4000
		for i := range entries {
			key := nth("n", i)
			c.Put(key, plain(key, time.Hour, 100), epoch)
			if i%10 == 0 {
				for range 1 + i%50 {
					freshness(c, key, epoch)
				}
			}
		}
		records := dump(t, c, most, epoch)
		d := restart(t, records, 0, epoch, nil)
		asked, other := 0, 0
		for i := range entries {
			if freshness(d, nth("n", i), epoch) == cache.Fresh {
				if i%10 == 0 {
					asked++
				} else {
					other++
				}
			}
		}
		t.Logf("%d bytes: %d used, %d others", most, asked, other)
		switch {
		case most <= 1000 && asked+other > 8, most > 1000 && asked+other < int64Count(most, 220):
			t.Errorf("%d bytes: %d entries", most, asked+other)
		case most == 40_000 && other > asked/10, most == 200_000 && asked < entries/10-8:
			t.Errorf("%d bytes: %d used and %d others", most, asked, other)
		}
	}
}

func int64Count(buf, each int64) int { return int(buf / each) }

// TestDumpError ends with the first error of emit.
func TestDumpError(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	for i := range 100 {
		key := nth("n", i)
		c.Put(key, plain(key, time.Minute, 10), epoch)
	}
	full := errors.New("full")
	for most := range 100 {
		calls := 0
		n, err := c.Dump(everything, epoch, func([]byte) error {
			if calls == most {
				return full
			}
			calls++
			return nil
		})
		if !errors.Is(err, full) || n != most || calls != most {
			t.Errorf("full after %d: %d, %d calls, error %v", most, n, calls, err)
		}
	}
}

// TestDumpAfterResize dumps the successor of a resized cache.
func TestDumpAfterResize(t *testing.T) {
	t.Parallel()
	c := staleCache(t)
	key := nth("n", 1)
	c.Put(key, plain(key, time.Minute, 10), epoch)
	if _, err := c.Resize(cache.MinSize, epoch); err != nil {
		t.Fatal(err)
	}
	assert.Same(t, "result", 1, len(dump(t, c, everything, epoch)))
}

// TestDumpInParallel dumps while answers are stored and evicted. Every dump can be restored.
func TestDumpInParallel(t *testing.T) {
	t.Parallel()
	c, err := cache.NewTiny(16<<10, 4, epoch)
	assert.NoError(t, err)
	c.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second})
	var wg sync.WaitGroup
	done := make(chan struct{})
	for w := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			var dst []byte
			for {
				select {
				case <-done:
					return
				default:
				}
				key := nth("n", rnd.IntN(400))
				if rnd.IntN(3) == 0 {
					c.Put(key, plain(key, time.Minute, rnd.IntN(200)), epoch)
				} else {
					dst, _ = c.Lookup(key, epoch, dst[:0])
				}
			}
		})
	}
	most := 0
	for range 100 {
		records := dump(t, c, 20<<10, epoch)
		most = max(most, len(records))
		d := restart(t, records, 0, epoch, nil)
		if got := d.Stats().Entries; got > int64(len(records)) {
			t.Fatalf("%d entries of %d records", got, len(records))
		}
	}
	close(done)
	wg.Wait()
	if most < 50 {
		t.Errorf("%d records at most", most)
	}
}

// fullCache returns a full cache, with some entries used.
func fullCache(tb testing.TB, size int64) *cache.Cache {
	tb.Helper()
	c := newWith(tb, cache.Config{Size: size, ServeStale: cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}})
	for i := range int(size / 250) {
		key := nth("n", i)
		a := answerTo(key, time.Hour, rr{rrtype: wire.TypeA, ttl: 3600, rdata: []byte{1, 2, 3, 4}}, rr{rrtype: wire.TypeA, ttl: 3600, rdata: []byte{1, 2, 3, 5}})
		a.RotateCount = 2
		c.Put(key, a, epoch)
		for range i & (i >> 3) & 7 {
			freshness(c, key, epoch)
		}
	}
	return c
}

func BenchmarkDump(b *testing.B) {
	c := fullCache(b, 64<<20)
	b.Run("dump", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Dump(16<<20, epoch, func([]byte) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	var records [][]byte
	if _, err := c.Dump(16<<20, epoch, func(record []byte) error {
		records = append(records, bytes.Clone(record))
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d := newSized(b, 64<<20)
			if _, err := d.Restore(slices.Values(records), 0, epoch, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
