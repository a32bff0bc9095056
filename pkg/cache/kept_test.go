// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

var (
	keptKey   = keyOf("x.svc.ns.", 1, 0)
	keptOwner = []byte("\x03svc\x02ns\x00")
)

// keep stores a kept answer, a denial if it has no record, at a time since the start.
func keep(c *cache.Cache, denial bool, life, at time.Duration) {
	a := plain(keptKey, life, 4)
	if denial { // the record is in the authority section
		a.Msg[7], a.Msg[9] = 0, 1
	}
	a.Owner, a.Kept = keptOwner, true
	c.Put(keptKey, a, after(at))
}

// ttlOf returns the TTL of the answer in seconds, and -1 if there is no fresh one.
func ttlOf(c *cache.Cache, at time.Duration) int {
	msg, found := c.Lookup(keptKey, after(at), nil)
	if found != cache.Fresh {
		return -1
	}
	ttl := len(msg) - 4 - 6
	return int(msg[ttl+2])<<8 | int(msg[ttl+3])
}

// TestKept stores a kept answer at 10 s and reads its TTL.
func TestKept(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type vouch struct {
		at      time.Duration
		denials bool
	}
	tests := []struct {
		name    string
		life    time.Duration
		denial  bool
		vouched []vouch
		changed []time.Duration // before and after it is stored
		ended   time.Duration   // 0: never
		want    map[time.Duration]int
	}{
		{name: "not vouched for", life: 5 * s, want: map[time.Duration]int{10 * s: 5, 14 * s: 1, 15 * s: -1}},
		{
			name: "vouched for", life: 5 * s, vouched: []vouch{{9 * s, true}, {14 * s, true}, {18 * s, true}},
			want: map[time.Duration]int{13999 * time.Millisecond: 5, 16 * s: 5, 22999 * time.Millisecond: 5, 23 * s: -1},
		},
		{
			name: "a lifetime below 5 s", life: s, vouched: []vouch{{9 * s, true}, {12 * s, true}},
			want: map[time.Duration]int{11 * s: 1, 16999 * time.Millisecond: 1, 17 * s: -1},
		},
		{
			name: "a longer lifetime", life: 30 * s, vouched: []vouch{{100 * s, true}},
			want: map[time.Duration]int{104999 * time.Millisecond: 30, 105 * s: 25, 129 * s: 1, 130 * s: -1},
		},
		{
			name: "a denial, vouched for like any answer", life: 5 * s, denial: true, vouched: []vouch{{12 * s, true}, {16 * s, true}},
			want: map[time.Duration]int{20 * s: 5, 21 * s: -1},
		},
		{
			name: "a denial, and the view is old", life: 5 * s, denial: true, vouched: []vouch{{12 * s, true}, {16 * s, false}},
			want: map[time.Duration]int{16 * s: 5, 17 * s: -1},
		},
		{
			name: "an answer, and the view is old", life: 5 * s, vouched: []vouch{{12 * s, true}, {16 * s, false}},
			want: map[time.Duration]int{20 * s: 5, 21 * s: -1},
		},
		{
			name: "changed just before", life: 5 * s, vouched: []vouch{{12 * s, true}}, changed: []time.Duration{10*s - 1},
			want: map[time.Duration]int{10 * s: 5, 16 * s: 5},
		},
		{
			name: "changed later", life: 5 * s, vouched: []vouch{{12 * s, true}}, changed: []time.Duration{11 * s},
			want: map[time.Duration]int{11 * s: -1, 16 * s: -1},
		},
		{
			name: "changed at the same time, in doubt", life: 5 * s, vouched: []vouch{{12 * s, true}}, changed: []time.Duration{10 * s},
			want: map[time.Duration]int{10 * s: -1},
		},
		{
			name: "no longer kept", life: 30 * s, vouched: []vouch{{100 * s, true}}, ended: 101 * s,
			want: map[time.Duration]int{103 * s: 27, 129 * s: 1, 130 * s: -1},
		},
		{
			name: "a change, then no longer kept", life: 30 * s, vouched: []vouch{{100 * s, true}}, changed: []time.Duration{50 * s}, ended: 101 * s,
			want: map[time.Duration]int{103 * s: -1},
		},
		{
			name: "no longer kept, then vouched for by another session", life: 5 * s,
			vouched: []vouch{{12 * s, true}, {30 * s, true}}, ended: 13 * s,
			want: map[time.Duration]int{16 * s: 1, 17 * s: -1, 31 * s: -1},
		},
	}
	for _, tt := range tests {
		for _, all := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				c := newStale(t, cache.ServeStale{})
				steps := map[time.Duration][]func(at time.Duration){10 * s: {func(at time.Duration) { keep(c, tt.denial, tt.life, at) }}}
				add := func(at time.Duration, f func(at time.Duration)) { steps[at] = append(steps[at], f) }
				for _, v := range tt.vouched {
					add(v.at, func(at time.Duration) { c.Vouch(after(at), v.denials) })
				}
				for _, at := range tt.changed {
					add(at, func(at time.Duration) { c.OwnerChanged(keptOwner, after(at)) })
				}
				if tt.ended > 0 {
					add(tt.ended, func(time.Duration) {
						if all {
							c.UnkeepAll()
						} else {
							c.Unkeep(keptKey)
						}
					})
				}
				for at, want := range tt.want {
					add(at, func(at time.Duration) { assert.Same(t, "TTL at "+at.String(), want, ttlOf(c, at)) })
				}
				order := make([]time.Duration, 0, len(steps))
				for at := range steps {
					order = append(order, at)
				}
				slices.Sort(order)
				for _, at := range order {
					for _, step := range steps[at] {
						step(at)
					}
				}
			})
		}
	}
}

// TestKeptElsewhere reads a kept answer, vouched for at 100 s, in the ways other than Lookup.
func TestKeptElsewhere(t *testing.T) {
	t.Parallel()
	const s = time.Second
	make10 := func(t *testing.T) *cache.Cache {
		t.Helper()
		c := newWith(t, cache.Config{Size: cache.MinSize, Prefetch: cache.Prefetch{Hits: 1, Remaining: 0.5}})
		keep(c, false, 30*s, 10*s)
		c.Vouch(after(100*s), true)
		return c
	}
	t.Run("validity", func(t *testing.T) {
		t.Parallel()
		c := make10(t)
		age, left, ok := c.Validity(keptKey, after(103*s))
		if age != 0 || left != 27*s || !ok {
			t.Errorf("age %s, left %s (%t), want 0, 27s", age, left, ok)
		}
		age, left, ok = c.Validity(keptKey, after(106*s))
		if age != 6*s || left != 24*s || !ok {
			t.Errorf("age %s, left %s (%t), want 6s, 24s", age, left, ok)
		}
	})
	t.Run("no prefetch", func(t *testing.T) {
		t.Parallel()
		assert.Same(t, "result", cache.Fresh, freshness(make10(t), keptKey, after(125*s)))
	})
	t.Run("entries", func(t *testing.T) {
		t.Parallel()
		e, ok := make10(t).Peek(keptKey, after(103*s))
		if !ok || !e.Kept || !e.Vouched || e.Age != 93*s || e.Left != 27*s || e.State != cache.Fresh {
			t.Errorf("%+v", e)
		}
		if e, ok = make10(t).Peek(keptKey, after(105*s)); !ok || !e.Kept || e.Vouched {
			t.Errorf("5 s after the last call: %+v", e)
		}
	})
	t.Run("a resized cache", func(t *testing.T) {
		t.Parallel()
		c, err := make10(t).Resize(4*cache.MinSize, after(101*s))
		assert.NoError(t, err)
		assert.Same(t, "TTL", 30, ttlOf(c, 103*s))
		c.UnkeepAll()
		assert.Same(t, "TTL", 27, ttlOf(c, 103*s))
	})
	t.Run("no longer kept, while the cache is resized", func(t *testing.T) {
		t.Parallel()
		for range 20 {
			c := newWith(t, cache.Config{Size: 4 * cache.MinSize})
			const names = 1000
			for i := range names {
				key := keyOf(fmt.Sprintf("n%d.svc.ns.", i), 1, 0)
				a := plain(key, 5*s, 4)
				a.Owner, a.Kept = keptOwner, true
				c.Put(key, a, after(10*s))
			}
			resized := make(chan *cache.Cache)
			go func() {
				next, err := c.Resize(8*cache.MinSize, after(11*s))
				assert.NoError(t, err)
				resized <- next
			}()
			c.UnkeepAll()
			next := <-resized
			next.Vouch(after(30*s), true)
			for i := range names {
				if e, ok := next.Peek(keyOf(fmt.Sprintf("n%d.svc.ns.", i), 1, 0), after(30*s)); ok && e.Kept {
					t.Fatalf("the answer to name %d is kept", i)
				}
			}
		}
	})
	t.Run("a dump", func(t *testing.T) {
		t.Parallel()
		records := dump(t, make10(t), everything, after(103*s))
		c := newStale(t, cache.ServeStale{})
		_, err := c.Restore(slices.Values(records), 0, after(103*s), func([]byte) []byte { return keptOwner })
		assert.NoError(t, err)
		c.Vouch(after(104*s), true)
		assert.Same(t, "TTL", 26, ttlOf(c, 104*s))
		assert.Same(t, "TTL", -1, ttlOf(c, 130*s))
	})
	t.Run("without an owner", func(t *testing.T) {
		t.Parallel()
		c := newStale(t, cache.ServeStale{})
		a := plain(keptKey, 5*s, 4)
		a.Kept = true
		c.Put(keptKey, a, after(10*s))
		c.Vouch(after(14*s), true)
		assert.Same(t, "TTL", -1, ttlOf(c, 15*s))
	})
	t.Run("the host was suspended", func(t *testing.T) {
		t.Parallel()
		c := make10(t)
		c.AddSuspend(time.Hour)
		assert.Same(t, "TTL", -1, ttlOf(c, 101*s))
	})
}
