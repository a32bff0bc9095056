// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	pace       = 50 * time.Millisecond // between two queries
	look       = time.Minute           // longest time between two looks at a question
	firstPause = 20 * time.Second      // between two queries for one question, or up to a quarter less
	lastPause  = time.Minute           // the same, after failures
)

// Config configures a Refresher.
type Config struct {
	Names []string // absolute, lower-case
	// Ask asks upstream for the records of a type that a name has, see [resolve.Resolver.Refresh].
	Ask   func(name []byte, rrtype uint16) (instead string)
	Cache func() *cache.Cache // in use
	Now   func() time.Time
	Log   *slog.Logger
}

// A Refresher asks for the addresses of some names.
type Refresher struct {
	ask    func(name []byte, rrtype uint16) string
	cache  func() *cache.Cache
	names  [][]byte // canonical wire form
	now    func() time.Time
	log    *slog.Logger
	panics atomic.Uint64

	mu        sync.Mutex // guards questions
	questions []question
}

// A question is A or AAAA of a name.
type question struct {
	name    string
	key     []byte // cache key
	rrtype  uint16
	instead string    // what answers the name, without the cache; empty: the cache does
	asked   int       // how often
	askedAt time.Time // the last time
	next    time.Time // when to look at it
	pause   time.Duration
}

// New returns a Refresher, which does nothing until it runs.
func New(cfg Config) (*Refresher, error) {
	r := &Refresher{ask: cfg.Ask, cache: cfg.Cache, now: cfg.Now, log: cfg.Log}
	names := slices.Compact(slices.Sorted(slices.Values(cfg.Names)))
	for _, name := range names {
		wireForm, err := wire.AppendName(nil, name)
		if err != nil {
			return nil, err
		}
		r.names = append(r.names, wireForm)
		for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
			asks := wire.Question{Type: rrtype}
			r.questions = append(r.questions, question{name: name, key: asks.AppendKey(nil, wireForm), rrtype: rrtype})
		}
	}
	return r, nil
}

// Names returns the names in canonical wire form, for [cache.Cache.SetPinned]. The caller must not change them. A nil Refresher has none.
func (r *Refresher) Names() [][]byte {
	if r == nil {
		return nil
	}
	return r.names
}

// Run asks until ctx ends, and then returns nil.
func (r *Refresher) Run(ctx context.Context) error {
	guard := panics.Guard{Where: "cache.keep", Log: r.log, Count: &r.panics}
	for ctx.Err() == nil {
		wait := pace
		_ = guard.Do(ctx, func() error {
			wait = r.step(r.now())
			return nil
		})
		_ = retry.Sleep(ctx, wait)
	}
	return nil
}

// step looks at the question whose time has come first, if there is one, and returns the time until it must be called again.
func (r *Refresher) step(now time.Time) time.Duration {
	r.mu.Lock()
	q := &r.questions[0]
	for i := range r.questions {
		if r.questions[i].next.Before(q.next) {
			q = &r.questions[i]
		}
	}
	if wait := q.next.Sub(now); wait > 0 {
		r.mu.Unlock()
		return wait
	}
	due := q.look(r.cache(), now)
	r.mu.Unlock()
	if !due {
		return 0
	}
	instead := r.ask(q.key[:len(q.key)-3], q.rrtype)
	r.mu.Lock()
	defer r.mu.Unlock()
	q.instead = instead
	return pace
}

// look reports whether the question must be asked now, and sets the time of the next look.
func (q *question) look(c *cache.Cache, now time.Time) bool {
	e, held := c.Peek(q.key, now)
	if held && e.Vouched { // by the server that reports its changes
		q.pause, q.next = 0, now.Add(look)
		return false
	}
	if held && e.State <= cache.PrefetchDue && e.Rcode == wire.RcodeSuccess {
		q.pause = 0
		if left := e.Left - (e.Age+e.Left)/4; left > 0 {
			q.next = now.Add(min(look, max(pace, left-spread(left/8))))
			return false
		}
	}
	if held && q.asked > 0 && e.Rcode == wire.RcodeSuccess && now.Sub(q.askedAt) >= e.Age {
		q.pause = 0 // answered since, with a short TTL
	}
	q.pause = min(lastPause, max(firstPause, 2*q.pause))
	q.asked++
	q.askedAt, q.next = now, now.Add(q.pause-spread(q.pause/4))
	return true
}

// spread returns a random part of d.
func spread(d time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(d) + 1)) //nolint:gosec // not for security
}

// An Answer is what the cache has for a question.
type Answer struct {
	Name  string // absolute
	Type  uint16
	State string        // the state of the entry (a [cache.Freshness]), StateDenied, StateLarge, or what answers the name without the cache
	Local bool          // State is the latter
	Age   time.Duration // since upstream gave the answer
	Left  time.Duration // until it expires; negative: since then
	Held  bool          // Local, or pinned: an outage of upstreams does not remove it
	Asked int           // queries to upstream so far
}

// States of an [Answer] that is not pinned.
const (
	StateDenied = "denied" // upstream says that the name does not exist
	StateLarge  = "large"  // the answer takes more than 4 KiB
)

// Answers returns the state of each question. A nil Refresher has none.
func (r *Refresher) Answers(now time.Time) []Answer {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	questions := slices.Clone(r.questions)
	r.mu.Unlock()
	c := r.cache()
	answers := make([]Answer, 0, len(questions))
	for i := range questions {
		q := &questions[i]
		a := Answer{Name: q.name, Type: q.rrtype, State: q.instead, Local: q.instead != "", Held: q.instead != "", Asked: q.asked}
		if e, held := c.Peek(q.key, now); !a.Local {
			a.State = cache.Absent.String()
			if held && e.State < cache.Expired && e.State != cache.Failed {
				a.State, a.Age, a.Left, a.Held = e.State.String(), e.Age, e.Left, e.Pinned
				switch {
				case e.Rcode != wire.RcodeSuccess:
					a.State = StateDenied
				case !e.Pinned:
					a.State = StateLarge
				}
			}
		}
		answers = append(answers, a)
	}
	return answers
}
