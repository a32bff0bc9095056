// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// An ask is one lookup and what it should find.
type ask struct {
	at   time.Duration
	want cache.Freshness
}

func TestDue(t *testing.T) {
	t.Parallel()
	const s = time.Second
	tenth := cache.Prefetch{Hits: 2, Remaining: 0.1}
	tests := []struct {
		name     string
		prefetch cache.Prefetch
		asks     []ask // of an answer that lives for 100 s
	}{
		{name: "off", asks: []ask{{0, cache.Fresh}, {99 * s, cache.Fresh}, {99 * s, cache.Fresh}, {100 * s, cache.Absent}}},
		{name: "asked once", prefetch: tenth, asks: []ask{{99 * s, cache.Fresh}}},
		{name: "time left", prefetch: tenth, asks: []ask{{0, cache.Fresh}, {1 * s, cache.Fresh}, {90 * s, cache.Fresh}}},
		{name: "said once", prefetch: tenth, asks: []ask{{0, cache.Fresh}, {91 * s, cache.PrefetchDue}, {92 * s, cache.Fresh}, {99 * s, cache.Fresh}}},
		{name: "both late", prefetch: tenth, asks: []ask{{95 * s, cache.Fresh}, {95 * s, cache.PrefetchDue}, {95 * s, cache.Fresh}}},
		{name: "not past its end", prefetch: tenth, asks: []ask{{0, cache.Fresh}, {0, cache.Fresh}, {100 * s, cache.Absent}}},
		{name: "one hit, whole life", prefetch: cache.Prefetch{Hits: 1, Remaining: 1}, asks: []ask{{0, cache.Fresh}, {time.Millisecond, cache.PrefetchDue}, {s, cache.Fresh}}},
		{name: "nothing left", prefetch: cache.Prefetch{Hits: 1}, asks: []ask{{99 * s, cache.Fresh}, {100*s - 1, cache.Fresh}}},
		{name: "less than nothing", prefetch: cache.Prefetch{Hits: -1, Remaining: -1}, asks: []ask{{0, cache.Fresh}, {99 * s, cache.Fresh}}},
		{name: "more than all", prefetch: cache.Prefetch{Hits: 1, Remaining: 7}, asks: []ask{{s, cache.PrefetchDue}, {s, cache.Fresh}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, tt.prefetch)
			key := keyOf("a.", 1, 0)
			for range 2 { // an answer stored again is due again
				c.Put(key, plain(key, 100*time.Second, 4), epoch)
				var got []ask
				for _, a := range tt.asks {
					got = append(got, ask{a.at, freshness(c, key, after(a.at))})
				}
				if diff := cmp.Diff(tt.asks, got, cmp.AllowUnexported(ask{})); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// TestDueHitsLarge configures more hits than an entry counts.
func TestDueHitsLarge(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{Hits: 1_000_000, Remaining: 0.5})
	key := keyOf("a.", 1, 0)
	c.Put(key, plain(key, 100*time.Second, 4), epoch)
	for i := 1; i < 1<<16-1; i++ {
		if got := freshness(c, key, after(60*time.Second)); got != cache.Fresh {
			t.Fatalf("lookup %d: %d, want fresh", i, got)
		}
	}
	for range 10 { // too early: the count stays where it ends
		if got := freshness(c, key, epoch); got != cache.Fresh {
			t.Fatalf("early: %d, want fresh", got)
		}
	}
	if got := freshness(c, key, after(60*time.Second)); got != cache.PrefetchDue {
		t.Errorf("lookup 65546: %d, want due", got)
	}
}

func TestSetPrefetch(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	key := keyOf("a.", 1, 0)
	c.Put(key, plain(key, 100*time.Second, 4), epoch)
	now := after(60 * time.Second)
	if got := freshness(c, key, now); got != cache.Fresh {
		t.Fatalf("off: %d, want fresh", got)
	}
	c.SetPrefetch(cache.Prefetch{Hits: 2, Remaining: 0.5})
	if got := freshness(c, key, now); got != cache.PrefetchDue {
		t.Errorf("on: %d, want due", got)
	}
}

// A failing is one PutFailure, and when the failure was remembered until.
type failing struct {
	at, until time.Duration
}

func TestFailures(t *testing.T) {
	t.Parallel()
	const s = time.Second
	tests := []struct {
		name         string
		first, limit time.Duration
		want         []failing
	}{
		{
			name: "doubling up to the limit", first: s, limit: 5 * s,
			want: []failing{{0, s}, {s, 3 * s}, {3 * s, 7 * s}, {7 * s, 12 * s}, {12 * s, 17 * s}},
		},
		{
			name: "while the last is still remembered", first: s, limit: 5 * s,
			want: []failing{{0, s}, {s / 2, 2*s + s/2}, {s, 5 * s}},
		},
		{
			name: "just soon enough", first: s, limit: 5 * s,
			want: []failing{{0, s}, {2*s - 1, 4*s - 1}},
		},
		{
			name: "too late to count as the next", first: s, limit: 5 * s,
			want: []failing{{0, s}, {2 * s, 3 * s}, {3 * s, 5 * s}, {7 * s, 8 * s}},
		},
		{
			name: "a limit of the first", first: 2 * s, limit: 2 * s,
			want: []failing{{0, 2 * s}, {2 * s, 4 * s}, {4 * s, 6 * s}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, cache.Prefetch{Hits: 1, Remaining: 1})
			key := keyOf("a.", 1, 0)
			msg := answerTo(key, 0).Msg
			var got []failing
			for _, f := range tt.want {
				c.PutFailure(key, msg, tt.first, tt.limit, after(f.at))
				got = append(got, failing{f.at, failedUntil(t, c, key, f.at)})
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(failing{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// failedUntil finds, to half a second, when the failure under key is forgotten.
func failedUntil(t *testing.T, c *cache.Cache, key []byte, at time.Duration) time.Duration {
	t.Helper()
	end := at
	for freshness(c, key, after(end)) == cache.Failed {
		if end += time.Second / 2; end > at+time.Minute {
			t.Fatal("remembered for more than a minute")
		}
	}
	if got := freshness(c, key, after(end-1)); got != cache.Failed {
		t.Fatalf("an instant before %v: %d, want failed", end, got)
	}
	return end
}

// TestFailureAndAnswer mixes both under one key.
func TestFailureAndAnswer(t *testing.T) {
	t.Parallel()
	c := newCache(t, cache.Prefetch{})
	key := keyOf("a.", 1, 0)
	failure := answerTo(key, 0).Msg
	fail := func(at time.Duration) { c.PutFailure(key, failure, time.Second, 5*time.Second, after(at)) }
	put := func(at time.Duration) { c.Put(key, plain(key, 10*time.Second, 4), after(at)) }
	find := func(at time.Duration, want cache.Freshness) {
		t.Helper()
		if got := freshness(c, key, after(at)); got != want {
			t.Errorf("at %v: %d, want %d", at, got, want)
		}
	}
	const s = time.Second
	put(0)
	fail(9 * s)
	find(10*s-1, cache.Fresh) // a usable answer stays
	fail(10 * s)
	find(10*s, cache.Failed) // one past its time does not
	fail(11 * s)
	find(13*s-1, cache.Failed)
	put(12 * s)
	find(12*s, cache.Fresh) // a failure never stands in an answer's way
	fail(22 * s)
	find(23*s-1, cache.Failed)
	find(23*s, cache.Absent) // and the answer began the count anew
}
