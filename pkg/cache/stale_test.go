// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
)

// hourly is the stale configuration of the tests below.
var hourly = cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}

// A staleStep is one operation on the question a. A of a cache, which starts with an answer of 10 s.
type staleStep struct {
	at   time.Duration
	do   func(c *cache.Cache, key []byte, now time.Time) // nil: nothing
	want cache.Freshness                                 // of a lookup right after
}

func fail(c *cache.Cache, key []byte, now time.Time) {
	c.PutFailure(key, answerTo(key, 0).Msg, time.Second, 5*time.Second, now)
}

func delayFor(d time.Duration) func(c *cache.Cache, key []byte, now time.Time) {
	return func(c *cache.Cache, key []byte, now time.Time) { c.DelayRefresh(key, now.Add(d), now) }
}

// TestStale checks the ends of times; TestAgainstModel checks the order of events.
func TestStale(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		name  string
		stale cache.ServeStale
		steps []staleStep
	}{
		{name: "stale until the window ends", stale: hourly, steps: []staleStep{
			{at: 10*s - 1, want: cache.Fresh},
			{at: 10 * s, want: cache.Stale},
			{at: 11 * s, want: cache.Stale},
			{at: 10*s + time.Hour - 1, want: cache.Stale},
			{at: 10*s + time.Hour, want: cache.Absent},
		}},
		{name: "delayed, to less than a millisecond", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: delayFor(1), want: cache.StaleBackoff},
			{at: 11*s + ms - 1, want: cache.StaleBackoff},
			{at: 11*s + ms, want: cache.Stale},
		}},
		{name: "backoff beyond the window", stale: cache.ServeStale{Window: 2 * s, TTL: s}, steps: []staleStep{
			{at: 11 * s, do: delayFor(time.Hour), want: cache.StaleBackoff},
			{at: 12 * s, want: cache.Absent},
		}},
		{name: "failures double the backoff up to the TTL", stale: cache.ServeStale{Window: time.Hour, TTL: 5 * s}, steps: []staleStep{
			{at: 10 * s, do: fail, want: cache.StaleBackoff},
			{at: 11*s - 1, want: cache.StaleBackoff},
			{at: 11 * s, want: cache.Stale},
			{at: 20 * s, do: fail, want: cache.StaleBackoff},
			{at: 22*s - 1, want: cache.StaleBackoff},
			{at: 22 * s, do: fail, want: cache.StaleBackoff},
			{at: 26*s - 1, want: cache.StaleBackoff},
			{at: 26 * s, do: fail, want: cache.StaleBackoff},
			{at: 31*s - 1, want: cache.StaleBackoff},
			{at: 31 * s, want: cache.Stale},
			{at: 40 * s, do: fail, want: cache.StaleBackoff},
			{at: 45*s - 1, want: cache.StaleBackoff},
			{at: 45 * s, want: cache.Stale},
		}},
		{name: "out of range", stale: cache.ServeStale{Window: 1 << 62, TTL: -1}, steps: []staleStep{
			{at: 10*s + cache.MaxStaleWindow - 2*ms, want: cache.Stale},
			{at: 10*s + cache.MaxStaleWindow - ms, do: fail, want: cache.Stale},
			{at: 10*s + cache.MaxStaleWindow, want: cache.Absent},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, tt.stale)
			key := keyOf("a.", 1, 0)
			c.Put(key, plain(key, 10*time.Second, 4), epoch)
			for i, m := range tt.steps {
				if m.do != nil {
					m.do(c, key, after(m.at))
				}
				msg, got := c.Lookup(key, after(m.at), nil)
				if got != m.want {
					t.Fatalf("step %d, at %v: %d, want %d", i, m.at, got, m.want)
				}
				if none := got == cache.Absent || got == cache.Stale; none != (len(msg) == 0) {
					t.Fatalf("step %d, at %v: %d returns %x", i, m.at, got, msg)
				}
			}
			check(t, c)
		})
	}
}

// TestStaleEvictions lets answers expire, uses half of them, and stores others until the unused stale ones
// are evicted. Used stale answers stay like fresh ones, except for a few.
func TestStaleEvictions(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	fillMainLog(t, c)
	const n = 300
	put := func(prefix string, life time.Duration) {
		for i := range n {
			key := nth(prefix, i)
			c.Put(key, plain(key, life, 100), epoch)
			c.Lookup(key, epoch, nil)
		}
	}
	put("late", 10*time.Second)
	put("asked", 10*time.Second)
	put("live", time.Hour)
	now := after(time.Minute)
	lookAll := func() {
		for i := range n {
			c.Lookup(nth("asked", i), now, nil)
			c.Lookup(nth("live", i), now, nil)
		}
	}
	for i := 0; held(c, "late", n) > 0; i++ {
		if i == many {
			t.Fatalf("%d of %d stale answers are never evicted", held(c, "late", n), n)
		}
		lookAll()
		for j := range 100 {
			key := nth("new", 100*i+j)
			c.Put(key, plain(key, time.Hour, 100), now)
			c.Lookup(key, now, nil)
		}
	}
	if live, asked := held(c, "live", n), held(c, "asked", n); live < n*95/100 || asked < n*95/100 {
		t.Errorf("%d of %d fresh answers are left, and %d used stale ones", live, n, asked)
	}
	check(t, c)
}

// TestStaleStayWithRoom stores more than the small log holds. Unused stale answers stay, because the main
// log has space that was never used.
func TestStaleStayWithRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stale cache.ServeStale
		want  int
	}{
		{name: "stale answers on", stale: hourly, want: 1000},
		{name: "stale answers off", want: 0},
	} {
		c := newStale(t, tt.stale)
		for i := range 1000 {
			key := nth("late", i)
			c.Put(key, plain(key, time.Second, 100), epoch)
		}
		for i := range 1000 {
			key := nth("new", i)
			c.Put(key, plain(key, time.Hour, 100), after(time.Minute))
		}
		if s := c.Stats(); held(c, "late", 1000) < tt.want || s.Evictions > 0 || tt.want == 0 && s.Expirations == 0 {
			t.Errorf("%s: %d stale answers are left, want %d: %+v", tt.name, held(c, "late", 1000), tt.want, s)
		}
		check(t, c)
	}
}
