// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
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
			assert.Same(t, "result", tt.want, freshness(c, key, after(20*time.Second)))
			if got := c.Stats(); got.Invalidated != tt.stats.Invalidated || got.Outdated != tt.stats.Outdated {
				t.Errorf("%+v, want %+v", got, tt.stats)
			}
			check(t, c)
		})
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
	assert.Same(t, "result", n, c.Stats().Expirations-before.Expirations)
}
