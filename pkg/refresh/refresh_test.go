// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An upstream puts its answer into a cache as soon as it is asked.
type upstream struct {
	cache  *cache.Cache
	answer *cache.Answer // its message has no question; nil: it fails
	panics bool
	asked  []time.Time
	each   map[string][]time.Time // by name and type
}

func newUpstream(t *testing.T, answer *cache.Answer) *upstream {
	t.Helper()
	c, err := cache.New(cache.Config{Size: cache.MinSize, ServeStale: cache.ServeStale{Window: time.Minute, TTL: 30 * time.Second}}, time.Now())
	assert.NoError(t, err)
	return &upstream{cache: c, answer: answer, each: map[string][]time.Time{}}
}

// lasting is an answer without records.
func lasting(life time.Duration, rcode byte) *cache.Answer {
	return &cache.Answer{Msg: []byte{0, 0, 0x81, 0x80 | rcode, 0, 1, 0, 0, 0, 0, 0, 0}, Lifetime: life}
}

func (u *upstream) ask(name []byte, rrtype uint16) string {
	if strings.HasPrefix(string(name[1:]), "local") {
		return "zone"
	}
	now := time.Now()
	u.asked = append(u.asked, now)
	key := binary.BigEndian.AppendUint16(append([]byte{}, name...), rrtype)
	u.each[string(key)] = append(u.each[string(key)], now)
	if u.panics {
		panic("a bug")
	}
	if u.answer == nil {
		u.cache.PutFailure(append(key, 0), append([]byte{0, 0, 0x81, 0x82, 0, 1, 0, 0, 0, 0, 0, 0}, append(key, 0, 1)...), time.Second, time.Second, now)
		return ""
	}
	a := *u.answer
	a.Msg = append(append(append([]byte{}, a.Msg...), key...), 0, 1)
	u.cache.Put(append(key, 0), &a, now)
	return ""
}

// start runs a Refresher for names until stop is called.
func (u *upstream) start(t *testing.T, names ...string) (r *refresh.Refresher, stop func()) {
	t.Helper()
	r, err := refresh.New(refresh.Config{
		Names: names, Ask: u.ask, Cache: func() *cache.Cache { return u.cache }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	assert.NoError(t, err)
	u.cache.SetPinned(r.Names(), 24*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, func() {
		cancel()
		assert.NoError(t, <-ended)
	}
}

// many returns n names.
func many(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%d.example.", i))
	}
	return names
}

// TestAsksBeforeTheAnswerExpires checks how often each question is asked, and for how long an answer is missing.
func TestAsksBeforeTheAnswerExpires(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		life        time.Duration
		rcode       byte
		least, most int // queries for each question in an hour
		fresh       bool
	}{
		{name: "TTL of a day", life: 24 * time.Hour, least: 1, most: 1, fresh: true},
		{name: "TTL of five minutes", life: 5 * time.Minute, least: 16, most: 20, fresh: true},
		{name: "TTL of 30s", life: 30 * time.Second, least: 150, most: 200, fresh: true},
		{name: "TTL of a second, which a lying upstream may give", life: time.Second, least: 180, most: 240},
		{name: "denied", life: time.Hour, rcode: wire.RcodeNXDomain, least: 60, most: 90},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t, lasting(tt.life, tt.rcode))
				r, stop := u.start(t, "www.example.")
				time.Sleep(10 * time.Second)
				late := 0
				for range 3600 {
					time.Sleep(time.Second)
					for _, a := range r.Answers(time.Now()) {
						if a.State != cache.Fresh.String() {
							late++
						}
					}
				}
				stop()
				for question, asked := range u.each {
					if n := len(asked); n < tt.least || n > tt.most {
						t.Errorf("%q asked %d times in an hour, want %d to %d", question, n, tt.least, tt.most)
					}
				}
				if (late == 0) != tt.fresh {
					t.Errorf("not fresh for %d s", late)
				}
			})
		})
	}
}

// TestNoBurst checks the rate of all questions together: at the start, while upstreams fail for an hour, and after that.
func TestNoBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, lasting(time.Second, 0))
		r, stop := u.start(t, many(64)...)
		time.Sleep(time.Minute)
		u.answer = nil
		time.Sleep(time.Hour)
		failing := len(u.asked)
		u.answer = lasting(10*time.Minute, 0)
		time.Sleep(time.Minute)
		stop()
		for _, a := range r.Answers(time.Now()) {
			if a.State != cache.Fresh.String() {
				t.Errorf("%s is %s a minute after the outage", a.Name, a.State)
			}
		}
		for i := range u.asked {
			if j := i + 20; j < len(u.asked) && u.asked[j].Sub(u.asked[i]) < time.Second {
				t.Fatalf("21 queries within %s", u.asked[j].Sub(u.asked[i]))
			}
		}
		for question, asked := range u.each {
			for i := 1; i < len(asked); i++ {
				if pause := asked[i].Sub(asked[i-1]); pause < 15*time.Second {
					t.Fatalf("%q asked again after %s", question, pause)
				}
			}
		}
		if most := 128 * (3600/45 + 5 + 6); failing > most {
			t.Errorf("%d queries while upstreams failed, want at most %d", failing, most)
		}
		second := map[int64]int{}
		peak := 0
		for _, at := range u.asked[failing:] {
			second[at.Unix()]++
			peak = max(peak, second[at.Unix()])
		}
		if peak > 10 {
			t.Errorf("%d of %d queries after the outage in one second", peak, len(u.asked)-failing)
		}
	})
}

// TestAnswers checks the states.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		asked  string
		answer *cache.Answer
		then   func(u *upstream)
		want   refresh.Answer // without Name, Type and Asked
	}{
		{name: "fresh", answer: lasting(time.Hour, 0), want: refresh.Answer{State: "fresh", Age: 10 * time.Minute, Left: 50 * time.Minute, Held: true}},
		{name: "absent", want: refresh.Answer{State: "absent"}},
		{name: "denied", answer: lasting(time.Minute, wire.RcodeNXDomain), want: refresh.Answer{State: refresh.StateDenied}},
		{name: "large", answer: &cache.Answer{Msg: lasting(0, 0).Msg, Lifetime: time.Hour, TTLs: make([]uint16, 2048)}, want: refresh.Answer{State: refresh.StateLarge}},
		{name: "of the zone", asked: "local.example.", want: refresh.Answer{State: "zone", Local: true, Held: true}},
		{name: "flushed, asked again", answer: lasting(24*time.Hour, 0), then: func(u *upstream) { u.cache.Flush([]byte{0}, true) }, want: refresh.Answer{State: "fresh", Left: 24 * time.Hour, Held: true}},
		{name: "stale", answer: lasting(time.Hour, 0), then: func(u *upstream) {
			u.answer = nil
			time.Sleep(5 * time.Hour)
		}, want: refresh.Answer{State: "stale", Held: true, Age: 5*time.Hour + 11*time.Minute, Left: -4*time.Hour - 11*time.Minute}},
		{name: "after a bug", answer: lasting(time.Hour, 0), then: func(u *upstream) {
			u.panics = true
			u.cache.Flush([]byte{0}, true)
			time.Sleep(time.Hour)
			u.panics = false
		}, want: refresh.Answer{State: "fresh", Left: time.Hour, Held: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t, tt.answer)
				name := tt.asked
				if name == "" {
					name = "www.example."
				}
				r, stop := u.start(t, name)
				time.Sleep(10 * time.Minute)
				if tt.then != nil {
					tt.then(u)
					time.Sleep(time.Minute)
				}
				stop()
				for _, a := range r.Answers(time.Now()) {
					got := refresh.Answer{State: a.State, Local: a.Local, Age: a.Age.Round(time.Minute), Left: a.Left.Round(time.Minute), Held: a.Held}
					if got.State == "resting" {
						got.State = "stale"
					}
					if got.State == refresh.StateDenied || got.State == refresh.StateLarge || tt.then != nil && got.State == "fresh" {
						got.Age, got.Left = tt.want.Age, tt.want.Left // depends on the random part of pauses
					}
					assert.Same(t, fmt.Sprint(a.Type), tt.want, got)
				}
			})
		})
	}
}

// TestNames checks that a name that is listed twice is asked once.
func TestNames(t *testing.T) {
	t.Parallel()
	r, err := refresh.New(refresh.Config{Names: []string{"b.example.", "a.example.", "b.example."}})
	assert.NoError(t, err)
	if n := len(r.Names()); n != 2 {
		t.Errorf("%d names, want 2", n)
	}
	var none *refresh.Refresher
	if none.Names() != nil || none.Answers(time.Now()) != nil {
		t.Error("nil has names")
	}
}
