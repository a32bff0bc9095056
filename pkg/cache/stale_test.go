// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
)

// hourly is how the tests below give answers past their time.
var hourly = cache.Stale{For: time.Hour, TTL: 30 * time.Second}

// newStale makes a cache of the least size that gives answers past their time.
func newStale(tb testing.TB, s cache.Stale) *cache.Cache {
	tb.Helper()
	c, err := cache.New(cache.Config{Size: cache.MinSize, Stale: s}, epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// A move is something that happens to the question a. A in a cache, which has an answer
// from the start, for 10 s.
type move struct {
	at   time.Duration
	do   func(c *cache.Cache, key []byte, now time.Time) // nil: nothing
	want cache.Freshness                                 // of a lookup right after
}

func fail(c *cache.Cache, key []byte, now time.Time) {
	c.PutFailure(key, answerTo(key, 0).Msg, time.Second, 5*time.Second, now)
}

func restFor(d time.Duration) func(c *cache.Cache, key []byte, now time.Time) {
	return func(c *cache.Cache, key []byte, now time.Time) { c.Rest(key, now.Add(d), now) }
}

func putFor(life time.Duration) func(c *cache.Cache, key []byte, now time.Time) {
	return func(c *cache.Cache, key []byte, now time.Time) { c.Put(key, plain(key, life, 4), now) }
}

func TestStale(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		name  string
		stale cache.Stale
		moves []move
	}{
		{name: "off", moves: []move{
			{at: 10*s - 1, want: cache.Fresh},
			{at: 10 * s, want: cache.Absent},
			{at: 11 * s, do: restFor(s), want: cache.Absent},
			{at: 12 * s, do: fail, want: cache.Failed},
		}},
		{name: "late until it is too late", stale: hourly, moves: []move{
			{at: 10*s - 1, want: cache.Fresh},
			{at: 10 * s, want: cache.Late},
			{at: 11 * s, want: cache.Late},
			{at: 10*s + time.Hour - 1, want: cache.Late},
			{at: 10*s + time.Hour, want: cache.Absent},
		}},
		{name: "overdue", stale: hourly, moves: []move{
			{at: 11 * s, want: cache.Late},
			{at: 11*s + 200*ms, do: restFor(3 * s), want: cache.Resting},
			{at: 14*s + 200*ms - 1, want: cache.Resting},
			{at: 14*s + 200*ms, want: cache.Late},
		}},
		{name: "overdue, to less than a millisecond", stale: hourly, moves: []move{
			{at: 11 * s, do: restFor(1), want: cache.Resting},
			{at: 11*s + ms - 1, want: cache.Resting},
			{at: 11*s + ms, want: cache.Late},
		}},
		{name: "overdue twice, the longer counts", stale: hourly, moves: []move{
			{at: 11 * s, do: restFor(3 * s), want: cache.Resting},
			{at: 12 * s, do: restFor(s), want: cache.Resting},
			{at: 14*s - 1, want: cache.Resting},
			{at: 14 * s, want: cache.Late},
		}},
		{name: "overdue until a moment that is over", stale: hourly, moves: []move{
			{at: 11 * s, do: restFor(-s), want: cache.Late},
		}},
		{name: "fresh answers do not rest", stale: hourly, moves: []move{
			{at: 9 * s, do: restFor(5 * s), want: cache.Fresh},
			{at: 10 * s, want: cache.Late},
		}},
		{name: "rests past its use", stale: cache.Stale{For: 2 * s, TTL: s}, moves: []move{
			{at: 11 * s, do: restFor(time.Hour), want: cache.Resting},
			{at: 12 * s, want: cache.Absent},
		}},
		{name: "failures, each rest twice the last up to the TTL", stale: cache.Stale{For: time.Hour, TTL: 5 * s}, moves: []move{
			{at: 10 * s, do: fail, want: cache.Resting},
			{at: 11*s - 1, want: cache.Resting},
			{at: 11 * s, want: cache.Late},
			{at: 20 * s, do: fail, want: cache.Resting},
			{at: 22*s - 1, want: cache.Resting},
			{at: 22 * s, do: fail, want: cache.Resting},
			{at: 26*s - 1, want: cache.Resting},
			{at: 26 * s, do: fail, want: cache.Resting},
			{at: 31*s - 1, want: cache.Resting},
			{at: 31 * s, want: cache.Late},
			{at: 40 * s, do: fail, want: cache.Resting},
			{at: 45*s - 1, want: cache.Resting},
			{at: 45 * s, want: cache.Late},
		}},
		{name: "overdue is no failure", stale: hourly, moves: []move{
			{at: 10 * s, do: restFor(s), want: cache.Resting},
			{at: 12 * s, do: restFor(s), want: cache.Resting},
			{at: 14 * s, do: fail, want: cache.Resting},
			{at: 15 * s, want: cache.Late},
		}},
		{name: "a failure ends the rest of one overdue", stale: hourly, moves: []move{
			{at: 10 * s, do: restFor(5 * s), want: cache.Resting},
			{at: 11 * s, do: fail, want: cache.Resting},
			{at: 12 * s, want: cache.Late},
		}},
		{name: "failures while it was fresh count", stale: hourly, moves: []move{
			{at: 9*s + 500*ms, do: fail, want: cache.Fresh},
			{at: 10 * s, want: cache.Resting},
			{at: 10*s + 500*ms, want: cache.Late},
			{at: 11 * s, do: fail, want: cache.Resting},
			{at: 13*s - 1, want: cache.Resting},
			{at: 13 * s, want: cache.Late},
		}},
		{name: "an answer begins anew", stale: hourly, moves: []move{
			{at: 10 * s, do: fail, want: cache.Resting},
			{at: 11 * s, do: fail, want: cache.Resting},
			{at: 12 * s, do: putFor(s), want: cache.Fresh},
			{at: 13 * s, want: cache.Late},
			{at: 13 * s, do: fail, want: cache.Resting},
			{at: 14 * s, want: cache.Late},
		}},
		{name: "too late, then failed, then answered", stale: cache.Stale{For: 2 * s, TTL: s}, moves: []move{
			{at: 12 * s, do: fail, want: cache.Failed},
			{at: 13 * s, want: cache.Absent}, // a failure past its time is nothing
			{at: 14 * s, do: putFor(s), want: cache.Fresh},
			{at: 15 * s, want: cache.Late},
		}},
		{name: "an answer that may not be kept takes the late one away", stale: hourly, moves: []move{
			{at: 11 * s, do: putFor(0), want: cache.Absent},
		}},
		{name: "removed", stale: hourly, moves: []move{
			{at: 11 * s, do: func(c *cache.Cache, key []byte, _ time.Time) { c.Remove(key) }, want: cache.Absent},
			{at: 11 * s, do: fail, want: cache.Failed},
		}},
		{name: "turned off and on", stale: hourly, moves: []move{
			{at: 11 * s, do: func(c *cache.Cache, _ []byte, _ time.Time) { c.SetStale(cache.Stale{}) }, want: cache.Absent},
			{at: 11 * s, do: func(c *cache.Cache, _ []byte, _ time.Time) { c.SetStale(hourly) }, want: cache.Late},
		}},
		{name: "longer than there is, shorter than nothing", stale: cache.Stale{For: 1 << 62, TTL: -1}, moves: []move{
			{at: 10*s + cache.MaxStale - 2*ms, want: cache.Late},
			{at: 10*s + cache.MaxStale - ms, do: fail, want: cache.Late},
			{at: 10*s + cache.MaxStale, want: cache.Absent},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, tt.stale)
			key := keyOf("a.", 1, 0)
			c.Put(key, plain(key, 10*time.Second, 4), epoch)
			for i, m := range tt.moves {
				if m.do != nil {
					m.do(c, key, after(m.at))
				}
				msg, got := c.Lookup(key, after(m.at), nil)
				if got != m.want {
					t.Fatalf("move %d, at %v: %d, want %d", i, m.at, got, m.want)
				}
				if none := got == cache.Absent || got == cache.Late; none != (len(msg) == 0) {
					t.Fatalf("move %d, at %v: %d gives %x", i, m.at, got, msg)
				}
			}
			check(t, c)
		})
	}
}

// TestStaleAnswer looks at what is given past its time: another TTL, the next address,
// everything else as it was.
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
				t.Fatal("nothing late is given")
			}
			return msg
		},
		"Lookup": func() []byte {
			msg, found := c.Lookup(key, now, []byte("x"))
			if found != cache.Resting {
				t.Fatalf("%d, want resting", found)
			}
			return msg
		},
	}
	firstsOf := ""
	for i, name := range []string{"LookupStale", "LookupStale", "Lookup", "Lookup"} {
		if i == 2 {
			c.Rest(key, now.Add(time.Second), now)
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

// TestLookupStaleOther gives what is not late, to those whose flight came to nothing
// while others had luck, or none.
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

// TestLateEvictions has answers go past their time, of which half are asked for since,
// and then puts other ones until the late ones that nobody asked for are gone. The late
// ones that are asked for stay as well as the live ones: but for a few whose turn it was
// when everything around them was asked for too.
func TestLateEvictions(t *testing.T) {
	t.Parallel()
	c := newStale(t, hourly)
	warm(t, c)
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
			t.Fatalf("%d of %d late answers are never dropped", held(c, "late", n), n)
		}
		lookAll()
		for j := range 100 {
			key := nth("new", 100*i+j)
			c.Put(key, plain(key, time.Hour, 100), now)
			c.Lookup(key, now, nil)
		}
	}
	if live, asked := held(c, "live", n), held(c, "asked", n); live < n*95/100 || asked < n*95/100 {
		t.Errorf("%d of %d live answers are left, and %d late ones that were asked for", live, n, asked)
	}
	check(t, c)
}

// TestLateStayWhereThereIsRoom puts more than the small log holds. What is past its time
// stays nevertheless, though nobody asked for it since, for the main log has room that was
// never used.
func TestLateStayWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stale cache.Stale
		want  int
	}{
		{name: "given past their time", stale: hourly, want: 1000},
		{name: "not given past their time", want: 0},
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
				t.Errorf("%d late answers are left, want %d: %+v", held(c, "late", 1000), tt.want, s)
			}
			check(t, c)
		})
	}
}
