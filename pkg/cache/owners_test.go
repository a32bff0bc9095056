// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

func TestOwners(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	svc, other := []byte("\x03svc\x02ns\x00"), []byte("\x05other\x02ns\x00")
	type event struct {
		at    time.Duration
		owner []byte
	}
	tests := []struct {
		name   string
		owner  []byte // of an answer that is stored at 10 s, for 100 s
		asked  time.Duration
		before []event // that it was stored
		after  []event
		want   cache.Freshness // at 20 s
		stats  cache.Stats     // Invalidated and Outdated
	}{
		{name: "no event", owner: svc, asked: 9 * s, want: cache.Fresh},
		{name: "an event", owner: svc, asked: 9 * s, after: []event{{11 * s, svc}}, stats: cache.Stats{Invalidated: 1}},
		{name: "an event at once", owner: svc, asked: 9 * s, after: []event{{10 * s, svc}}, stats: cache.Stats{Invalidated: 1}},
		{name: "another's event", owner: svc, asked: 9 * s, after: []event{{11 * s, other}}, want: cache.Fresh},
		{name: "no owner", asked: 9 * s, after: []event{{11 * s, svc}, {11 * s, nil}}, want: cache.Fresh},
		{name: "asked a second after the event", owner: svc, asked: 9 * s, before: []event{{8 * s, svc}}, want: cache.Fresh},
		{name: "asked sooner after the event", owner: svc, asked: 9*s - 1, before: []event{{8 * s, svc}}, stats: cache.Stats{Outdated: 1}},
		{name: "asked before the event", owner: svc, asked: 9 * s, before: []event{{9500 * ms, svc}}, stats: cache.Stats{Outdated: 1}},
		{name: "the last event counts", owner: svc, asked: 9 * s, before: []event{{9500 * ms, svc}, {2 * s, svc}}, stats: cache.Stats{Outdated: 1}},
		{name: "an event heard of late", owner: svc, asked: 9 * s, after: []event{{8 * s, svc}}, want: cache.Fresh},
		{name: "an event heard of late, too near", owner: svc, asked: 9 * s, after: []event{{8*s + 100*ms, svc}}, stats: cache.Stats{Invalidated: 1}},
		{name: "two events", owner: svc, asked: 9 * s, after: []event{{11 * s, svc}, {12 * s, svc}}, stats: cache.Stats{Invalidated: 1}},
		{name: "asked 25.5 s ago", owner: svc, asked: -15500 * ms, want: cache.Fresh},
		{name: "asked longer ago than an entry can tell", owner: svc, asked: -15501 * ms, stats: cache.Stats{Outdated: 1}},
		{name: "asked by a clock that is ahead", owner: svc, asked: 11 * s, after: []event{{9 * s, svc}}, want: cache.Fresh},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			if c.Tag(svc) == c.Tag(other) {
				c = newStale(t, hourly) // another seed, so another place for each
			}
			key := keyOf("x.svc.ns.", 1, 0)
			for _, e := range tt.before {
				c.OwnerChanged(e.owner, after(e.at))
			}
			a := plain(key, 100*time.Second, 4)
			a.Owner, a.QueriedAt = tt.owner, after(tt.asked)
			c.Put(key, a, after(10*time.Second))
			for _, e := range tt.after {
				c.OwnerChanged(e.owner, after(e.at))
			}
			if got := freshness(c, key, after(20*time.Second)); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
			if got := c.Stats(); got.Invalidated != tt.stats.Invalidated || got.Outdated != tt.stats.Outdated {
				t.Errorf("%+v, want %+v", got, tt.stats)
			}
			check(t, c)
		})
	}
}

// TestOwnersStale changes the owner of a stale answer, one in backoff, a denial and one before a failure.
// None of them is returned afterwards.
func TestOwnersStale(t *testing.T) {
	t.Parallel()
	const s = time.Second
	svc, key := []byte("\x03svc\x02ns\x00"), keyOf("svc.ns.", 1, 0)
	put := func(denies bool) *cache.Cache {
		c := newStale(t, hourly)
		a := plain(key, 10*s, 4)
		a.Owner, a.QueriedAt, a.NXDomain = svc, epoch, denies
		c.Put(key, a, epoch)
		return c
	}
	for _, denies := range []bool{false, true} {
		c := put(denies)
		c.DelayRefresh(key, after(30*s), after(20*s))
		c.OwnerChanged(svc, after(20*s))
		if got := freshness(c, key, after(21*s)); got != cache.Absent {
			t.Errorf("denial %t: %d, want absent", denies, got)
		}
		if msg, ok := c.LookupStale(key, after(21*s), nil); ok {
			t.Errorf("denial %t: LookupStale returned %x", denies, msg)
		}
		below := keyOf("x.svc.ns.", 1)
		if msg, ok := c.LookupNXDomainCut(below[:len(below)-2], 1, 0, after(s), nil); ok {
			t.Errorf("denial %t: denies names below: %x", denies, msg)
		}
		fail(c, key, after(22*s))
		if got := freshness(c, key, after(22*s)); got != cache.Failed {
			t.Errorf("denial %t, then a failure: %d, want failed", denies, got)
		}
		check(t, c)
	}
	// An outdated address does not contradict a denial.
	c := put(false)
	c.OwnerChanged(svc, after(s))
	mx := keyOf("svc.ns.", 15, 0)
	denial := authority(plain(mx, 100*s, 4), 3)
	denial.NXDomain = true
	c.Put(mx, denial, after(5*s))
	if got := freshness(c, keyOf("svc.ns.", 28, 0), after(5*s)); got != cache.Fresh {
		t.Errorf("denial of all types: %d, want fresh", got)
	}
}

func TestChangedSince(t *testing.T) {
	t.Parallel()
	const s = time.Second
	c := newStale(t, hourly)
	svc := []byte("\x03svc\x02ns\x00")
	if c.ChangedSince(svc, after(-time.Hour)) {
		t.Error("outdated without a change")
	}
	c.OwnerChanged(svc, after(10*s))
	c.OwnerChanged(svc, after(9*s))
	for since, want := range map[time.Duration]bool{0: true, 10*s - 1: true, 10 * s: false, 11 * s: false} {
		if got := c.ChangedSince(svc, after(since)); got != want {
			t.Errorf("since %v: %t, want %t", since, got, want)
		}
	}
}

// TestOutdatedEvictions changes the owner of everything in a full cache. The entries are evicted without
// a second chance, though they were used.
func TestOutdatedEvictions(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	fillMainLog(t, c)
	const n = 300
	svc := []byte("\x03svc\x02ns\x00")
	for i := range n {
		key := nth("svc", i)
		a := plain(key, time.Hour, 100)
		a.Owner, a.QueriedAt = svc, epoch
		c.Put(key, a, epoch)
		for range 5 {
			c.Lookup(key, epoch, nil)
		}
	}
	if got := held(c, "svc", n); got != n {
		t.Fatalf("%d of %d are held", got, n)
	}
	c.OwnerChanged(svc, after(time.Second))
	before := c.Stats()
	for i := 0; held(c, "svc", n) > 0; i++ {
		if i == many {
			t.Fatalf("%d of %d are never dropped", held(c, "svc", n), n)
		}
		key := nth("new", i)
		c.Put(key, plain(key, time.Hour, 100), after(2*time.Second))
		c.Lookup(key, after(2*time.Second), nil)
	}
	if got := c.Stats().Expirations - before.Expirations; got != n {
		t.Errorf("%d expirations, want %d", got, n)
	}
}
