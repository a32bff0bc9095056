// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// name returns the name of a key.
func name(key []byte) []byte { return key[:questionLen(key)-2] }

// denialOf returns the denial of key's name, with an opaque record of life as its TTL.
func denialOf(key []byte, life time.Duration) *cache.Answer {
	a := plain(key, life, 20)
	a.Msg[3] |= wire.RcodeNXDomain
	a.AllTypes = true
	return a
}

// TestInspectStates inspects an entry in each state.
func TestInspectStates(t *testing.T) {
	t.Parallel()
	owner := name(keyOf("svc.example.", 0))
	type view struct {
		Type      uint16
		State     string
		Rcode     int
		Age, Left time.Duration
		Hits      int
		TTLs      []uint32
	}
	key := keyOf("a.svc.example.", wire.TypeA, 0)
	for _, tc := range []struct {
		name string
		do   func(c *cache.Cache)
		at   time.Duration
		want []view
	}{
		{"nothing", func(*cache.Cache) {}, 0, nil},
		{"another name", func(c *cache.Cache) {
			other := keyOf("b.svc.example.", wire.TypeA, 0)
			c.Put(other, plain(other, time.Minute, 4), epoch)
		}, 0, nil},
		{"just stored", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
		}, 0, []view{{1, "fresh", 0, 0, time.Minute, 0, []uint32{60}}}},
		{"asked for", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
			c.Lookup(key, after(time.Second), nil)
		}, 12 * time.Second, []view{{1, "fresh", 0, 12 * time.Second, 48 * time.Second, 1, []uint32{48}}}},
		{"due", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
			c.Lookup(key, after(time.Second), nil)
			c.Lookup(key, after(58*time.Second), nil)
		}, 58 * time.Second, []view{{1, "due", 0, 58 * time.Second, 2 * time.Second, 2, []uint32{2}}}},
		{"stale", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
		}, 70 * time.Second, []view{{1, "stale", 0, 70 * time.Second, -10 * time.Second, 0, []uint32{0}}}},
		{"resting", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
			c.DelayRefresh(key, after(80*time.Second), after(70*time.Second))
		}, 71 * time.Second, []view{{1, "resting", 0, 71 * time.Second, -11 * time.Second, 0, []uint32{0}}}},
		{"too old to be of use", func(c *cache.Cache) {
			c.Put(key, plain(key, time.Minute, 4), epoch)
		}, 2 * time.Hour, []view{{1, "expired", 0, 2 * time.Hour, time.Minute - 2*time.Hour, 0, []uint32{0}}}},
		{"a failure", func(c *cache.Cache) {
			a := answerTo(key, time.Second)
			a.Msg[3] |= wire.RcodeServFail
			c.PutFailure(key, a.Msg, time.Second, time.Minute, epoch)
		}, 500 * time.Millisecond, []view{{1, "failed", 2, 500 * time.Millisecond, 500 * time.Millisecond, 0, nil}}},
		{"a failure that is over", func(c *cache.Cache) {
			c.PutFailure(key, answerTo(key, time.Second).Msg, time.Second, time.Minute, epoch)
		}, 2 * time.Second, []view{{1, "expired", 0, 2 * time.Second, -time.Second, 0, nil}}},
		{"changed by its owner", func(c *cache.Cache) {
			a := plain(key, time.Minute, 4)
			a.Owner, a.QueriedAt = owner, epoch
			c.Put(key, a, epoch)
			c.OwnerChanged(owner, after(time.Second))
		}, 2 * time.Second, []view{{1, "outdated", 0, 2 * time.Second, 58 * time.Second, 0, []uint32{58}}}},
		{"a name that does not exist", func(c *cache.Cache) {
			c.Put(key, denialOf(key, time.Minute), epoch)
		}, time.Second, []view{{0, "fresh", 3, time.Second, 59 * time.Second, 0, []uint32{59}}}},
		{"two types", func(c *cache.Cache) {
			six := keyOf("a.svc.example.", wire.TypeAAAA, 0)
			c.Put(six, plain(six, 30*time.Second, 16), epoch)
			c.Put(key, plain(key, time.Minute, 4), epoch)
		}, time.Second, []view{
			{1, "fresh", 0, time.Second, 59 * time.Second, 0, []uint32{59}},
			{28, "fresh", 0, time.Second, 29 * time.Second, 0, []uint32{29}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, cache.Prefetch{Hits: 2, Remaining: 0.1})
			c.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second})
			tc.do(c)
			before := c.Stats()
			var got []view
			for range 2 { // it changes nothing
				got = nil
				for _, e := range c.Inspect(name(key), after(tc.at)) {
					if !bytes.Equal(e.Name, name(key)) || e.Size < len(e.Msg) {
						t.Errorf("name %q, %d bytes for a message of %d", e.Name, e.Size, len(e.Msg))
					}
					got = append(got, view{e.Type, e.State.String(), e.Rcode, e.Age, e.Left, e.Hits, ttlsIn(e.Msg)})
				}
			}
			assert.Same(t, "result", tc.want, got)
			if diff := gocmp.Diff(before, c.Stats()); diff != "" {
				t.Errorf("Inspect changed the stats (-before +after):\n%s", diff)
			}
		})
	}
}

// ttlsIn reads the TTLs of a message of plain or denialOf.
func ttlsIn(msg []byte) (ttls []uint32) {
	key := msg[wire.HeaderLen:]
	off := wire.HeaderLen + questionLen(key) + 2 // behind the class
	for range binary.BigEndian.Uint16(msg[6:]) {
		ttls = append(ttls, binary.BigEndian.Uint32(msg[off+6:]))
		off += 12 + int(binary.BigEndian.Uint16(msg[off+10:]))
	}
	return ttls
}

// TestInspectKeys distinguishes entries of one name and type.
func TestInspectKeys(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	subnet := []byte{0, 1, 24, 0, 192, 0, 2}
	tails := [][]byte{{0}, {1}, {2}, {3}, {4}, append([]byte{1}, subnet...)}
	for _, tail := range tails {
		key := keyOf("a.example.", wire.TypeA, tail...)
		c.Put(key, plain(key, time.Minute, 4), epoch)
	}
	type view struct {
		DO, CD  bool
		Outside bool
		Subnet  []byte
	}
	var got []view
	for _, e := range c.Inspect(name(keyOf("a.example.", 0)), epoch) {
		got = append(got, view{e.DO, e.CD, e.Outside, e.Subnet})
	}
	want := []view{{}, {Outside: true}, {CD: true}, {DO: true}, {DO: true, Subnet: subnet}, {DO: true, CD: true}}
	assert.Same(t, "result", want, got)
}

// TestInspectBounds inspects a name with many client subnets.
func TestInspectBounds(t *testing.T) {
	t.Parallel()
	c := newSized(t, 64<<20)
	for i := range 300 {
		key := keyOf("a.example.", wire.TypeTXT, 0, 0, 1, 32, 0, 192, 0, byte(i>>8), byte(i))
		c.Put(key, plain(key, time.Minute, 60_000), epoch)
	}
	list, size := c.Inspect(name(keyOf("a.example.", 0)), epoch), 0
	for _, e := range list {
		size += len(e.Msg)
	}
	if len(list) == 0 || len(list) > 256 || size == 0 || size > 1<<20 {
		t.Errorf("%d entries with %d bytes of messages, want up to 256 and 1 MiB", len(list), size)
	}
}

// TestInspectKeepsRotation checks that Inspect does not rotate addresses.
func TestInspectKeepsRotation(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	key := keyOf("a.example.", wire.TypeA, 0)
	a := answerTo(key, time.Minute, rr{1, 60, []byte("one.")}, rr{1, 60, []byte("two.")}, rr{1, 60, []byte("tri.")})
	a.RotateFirst, a.RotateCount = 0, 3
	c.Put(key, a, epoch)
	for range 4 {
		seen := c.Inspect(name(key), epoch)
		got, _ := c.Lookup(key, epoch, nil)
		if diff := gocmp.Diff(rdataOf(a, got), rdataOf(a, seen[0].Msg)); diff != "" {
			t.Errorf("inspected before the lookup (-lookup +inspected):\n%s", diff)
		}
	}
}

// TestPeek checks that Peek returns the entry that Lookup uses.
func TestPeek(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	c.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second})
	a, txt := keyOf("a.example.", wire.TypeA, 0), keyOf("a.example.", wire.TypeTXT, 0)
	if _, ok := c.Peek(a, epoch); ok {
		t.Error("found in an empty cache")
	}
	c.Put(txt, plain(txt, 10*time.Second, 4), epoch)
	c.Put(a, denialOf(a, time.Minute), epoch)
	for _, key := range [][]byte{a, txt} {
		want := cache.Fresh
		e, ok := c.Peek(key, after(20*time.Second))
		if !ok || e.State != want || e.Type != 0 || e.Rcode != wire.RcodeNXDomain || e.Msg != nil {
			t.Errorf("%q: %+v, %t; want the denial of the name", key, e, ok)
		}
	}
	if got := c.Stats(); got.Hits+got.Misses != 0 {
		t.Errorf("Peek changed the stats: %+v", got)
	}
}

// TestTop compares Top with a sorted list.
func TestTop(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	c := newSized(t, 4<<20)
	type row struct {
		Name string
		Rank int
	}
	var hits, sizes []row
	for i := range 5000 {
		key := nth("n", i)
		c.Put(key, plain(key, time.Minute, random.IntN(100)), epoch)
		asked := int(random.ExpFloat64() * 5)
		for range asked {
			c.Lookup(key, epoch, nil)
		}
		hits = append(hits, row{string(name(key)), asked})
		sizes = append(sizes, row{string(name(key)), c.Inspect(name(key), epoch)[0].Size})
	}
	for bySize, all := range map[bool][]row{false: hits, true: sizes} {
		slices.SortFunc(all, func(a, b row) int { return cmp.Or(b.Rank-a.Rank, cmp.Compare(a.Name, b.Name)) })
		for _, n := range []int{0, 1, 2, 3, 20, 999, 5000, 6000} {
			top := c.Top(n, bySize, epoch)
			want := all[:min(n, len(all))]
			got := make([]int, 0, len(top))
			ranks := make([]int, 0, len(want))
			seen := map[string]bool{}
			for i, e := range top {
				rank := e.Hits
				if bySize {
					rank = e.Size
				}
				got, ranks = append(got, rank), append(ranks, want[i].Rank)
				if seen[string(e.Name)] {
					t.Errorf("%q twice", e.Name)
				}
				seen[string(e.Name)] = true
				// Any entries of the last rank may be in the list.
				if rank > want[len(want)-1].Rank && string(e.Name) != want[i].Name {
					t.Errorf("by size %t, place %d of %d: %q, want %q", bySize, i, n, e.Name, want[i].Name)
				}
			}
			if diff := gocmp.Diff(ranks, got); diff != "" || len(top) != len(want) {
				t.Errorf("%d by size %t: %d entries, want %d (-want +got):\n%s", n, bySize, len(top), len(want), diff)
			}
		}
	}
}

// BenchmarkTop scans a full cache of 64 MiB.
func BenchmarkTop(b *testing.B) {
	c := newSized(b, 64<<20)
	for i := range 400_000 {
		key := nth("n", i)
		c.Put(key, plain(key, time.Minute, 4), epoch)
	}
	b.ReportMetric(float64(c.Stats().Entries), "entries")
	for b.Loop() {
		c.Top(20, false, epoch)
	}
}
