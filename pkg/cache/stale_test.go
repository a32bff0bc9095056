// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// hourly is the stale configuration of the tests below.
var hourly = cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}

// newStale returns a cache of the minimum size that serves stale answers.
func newStale(tb testing.TB, s cache.ServeStale) *cache.Cache {
	tb.Helper()
	c, err := cache.New(cache.Config{Size: cache.MinSize, ServeStale: s}, epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

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

func putFor(life time.Duration) func(c *cache.Cache, key []byte, now time.Time) {
	return func(c *cache.Cache, key []byte, now time.Time) { c.Put(key, plain(key, life, 4), now) }
}

func TestStale(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		name  string
		stale cache.ServeStale
		steps []staleStep
	}{
		{name: "off", steps: []staleStep{
			{at: 10*s - 1, want: cache.Fresh},
			{at: 10 * s, want: cache.Absent},
			{at: 11 * s, do: delayFor(s), want: cache.Absent},
			{at: 12 * s, do: fail, want: cache.Failed},
		}},
		{name: "stale until the window ends", stale: hourly, steps: []staleStep{
			{at: 10*s - 1, want: cache.Fresh},
			{at: 10 * s, want: cache.Stale},
			{at: 11 * s, want: cache.Stale},
			{at: 10*s + time.Hour - 1, want: cache.Stale},
			{at: 10*s + time.Hour, want: cache.Absent},
		}},
		{name: "delayed", stale: hourly, steps: []staleStep{
			{at: 11 * s, want: cache.Stale},
			{at: 11*s + 200*ms, do: delayFor(3 * s), want: cache.StaleBackoff},
			{at: 14*s + 200*ms - 1, want: cache.StaleBackoff},
			{at: 14*s + 200*ms, want: cache.Stale},
		}},
		{name: "delayed, to less than a millisecond", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: delayFor(1), want: cache.StaleBackoff},
			{at: 11*s + ms - 1, want: cache.StaleBackoff},
			{at: 11*s + ms, want: cache.Stale},
		}},
		{name: "delayed twice, the longer counts", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: delayFor(3 * s), want: cache.StaleBackoff},
			{at: 12 * s, do: delayFor(s), want: cache.StaleBackoff},
			{at: 14*s - 1, want: cache.StaleBackoff},
			{at: 14 * s, want: cache.Stale},
		}},
		{name: "delayed until a time in the past", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: delayFor(-s), want: cache.Stale},
		}},
		{name: "fresh answers have no backoff", stale: hourly, steps: []staleStep{
			{at: 9 * s, do: delayFor(5 * s), want: cache.Fresh},
			{at: 10 * s, want: cache.Stale},
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
		{name: "a delay is no failure", stale: hourly, steps: []staleStep{
			{at: 10 * s, do: delayFor(s), want: cache.StaleBackoff},
			{at: 12 * s, do: delayFor(s), want: cache.StaleBackoff},
			{at: 14 * s, do: fail, want: cache.StaleBackoff},
			{at: 15 * s, want: cache.Stale},
		}},
		{name: "a failure replaces a delay", stale: hourly, steps: []staleStep{
			{at: 10 * s, do: delayFor(5 * s), want: cache.StaleBackoff},
			{at: 11 * s, do: fail, want: cache.StaleBackoff},
			{at: 12 * s, want: cache.Stale},
		}},
		{name: "failures while it was fresh count", stale: hourly, steps: []staleStep{
			{at: 9*s + 500*ms, do: fail, want: cache.Fresh},
			{at: 10 * s, want: cache.StaleBackoff},
			{at: 10*s + 500*ms, want: cache.Stale},
			{at: 11 * s, do: fail, want: cache.StaleBackoff},
			{at: 13*s - 1, want: cache.StaleBackoff},
			{at: 13 * s, want: cache.Stale},
		}},
		{name: "an answer resets the backoff", stale: hourly, steps: []staleStep{
			{at: 10 * s, do: fail, want: cache.StaleBackoff},
			{at: 11 * s, do: fail, want: cache.StaleBackoff},
			{at: 12 * s, do: putFor(s), want: cache.Fresh},
			{at: 13 * s, want: cache.Stale},
			{at: 13 * s, do: fail, want: cache.StaleBackoff},
			{at: 14 * s, want: cache.Stale},
		}},
		{name: "expired, then failed, then answered", stale: cache.ServeStale{Window: 2 * s, TTL: s}, steps: []staleStep{
			{at: 12 * s, do: fail, want: cache.Failed},
			{at: 13 * s, want: cache.Absent}, // a failure past its time is nothing
			{at: 14 * s, do: putFor(s), want: cache.Fresh},
			{at: 15 * s, want: cache.Stale},
		}},
		{name: "an answer that cannot be stored removes the stale one", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: putFor(0), want: cache.Absent},
		}},
		{name: "removed", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: func(c *cache.Cache, key []byte, _ time.Time) { c.Remove(key) }, want: cache.Absent},
			{at: 11 * s, do: fail, want: cache.Failed},
		}},
		{name: "disabled and enabled", stale: hourly, steps: []staleStep{
			{at: 11 * s, do: func(c *cache.Cache, _ []byte, _ time.Time) { c.SetServeStale(cache.ServeStale{}) }, want: cache.Absent},
			{at: 11 * s, do: func(c *cache.Cache, _ []byte, _ time.Time) { c.SetServeStale(hourly) }, want: cache.Stale},
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

// TestStaleAnswer checks a stale answer: the stale TTL, rotated addresses, otherwise unchanged.
func TestStaleAnswer(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	key := keyOf("a.", 1, 0)
	a := answerTo(key, 10*time.Second, append(set(1, 3, 4), rr{rrtype: 46, ttl: 10, rdata: []byte("signature")})...)
	a.RotateCount = 3
	c.Put(key, a, epoch)
	now := after(time.Minute)
	if got, ok := c.LookupStale(keyOf("b.", 1, 0), now, []byte("x")); ok || string(got) != "x" {
		t.Errorf("nothing: %q, %t", got, ok)
	}
	look := map[string]func() []byte{
		"LookupStale": func() []byte {
			msg, ok := c.LookupStale(key, now, []byte("x"))
			if !ok {
				t.Fatal("LookupStale found nothing")
			}
			return msg
		},
		"Lookup": func() []byte {
			msg, found := c.Lookup(key, now, []byte("x"))
			if found != cache.StaleBackoff {
				t.Fatalf("%d, want stale backoff", found)
			}
			return msg
		},
	}
	firstsOf := ""
	for i, name := range []string{"LookupStale", "LookupStale", "Lookup", "Lookup"} {
		if i == 2 {
			c.DelayRefresh(key, now.Add(time.Second), now)
		}
		msg := look[name]()
		if msg[0] != 'x' || len(msg) != 1+len(a.Msg) {
			t.Fatalf("%s: %q", name, msg)
		}
		if diff := cmp.Diff([]uint32{30, 30, 30, 30}, ttlsOf(a, msg[1:])); diff != "" {
			t.Errorf("%s: TTLs (-want +got)\n%s", name, diff)
		}
		firstsOf += firsts(a, msg[1:]) + " "
	}
	if diff := cmp.Diff("abcs bcas cabs abcs ", firstsOf); diff != "" {
		t.Errorf("rotation (-want +got)\n%s", diff)
	}
	if s := c.Stats(); s.Stale != 4 || s.Hits != 0 || s.Misses != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLookupStaleOther returns answers that are not stale to queries that failed while others succeeded
// or failed too.
func TestLookupStaleOther(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	fresh, failed := keyOf("fresh.", 1, 0), keyOf("failed.", 1, 0)
	a := plain(fresh, 10*time.Second, 4)
	c.Put(fresh, a, epoch)
	fail(c, failed, epoch)
	msg, ok := c.LookupStale(fresh, after(3*time.Second), nil)
	if !ok {
		t.Fatal("fresh: nothing")
	}
	if diff := cmp.Diff([]uint32{7}, ttlsOf(a, msg)); diff != "" {
		t.Errorf("fresh: TTLs (-want +got)\n%s", diff)
	}
	if msg, ok := c.LookupStale(failed, epoch, nil); ok || len(msg) > 0 {
		t.Errorf("failed: %x, %t", msg, ok)
	}
	if s := c.Stats(); s.Stale != 0 || s.Hits != 0 {
		t.Errorf("%+v", s)
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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
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
				t.Errorf("%d stale answers are left, want %d: %+v", held(c, "late", 1000), tt.want, s)
			}
			check(t, c)
		})
	}
}
