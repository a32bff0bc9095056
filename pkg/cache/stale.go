// SPDX-License-Identifier: Apache-2.0

package cache

import "time"

// Stale says how answers past their time are given (RFC 8767).
type Stale struct {
	For time.Duration // how long past its time an answer may be given, MaxStale at most; 0: never
	TTL time.Duration // that it is given with, whole seconds, and the most a failed refresh lets it rest
}

// MaxStale is the longest Stale.For: what an entry's moment of rest can tell.
const MaxStale = 30 * 24 * time.Hour

// restUnit is the precision of an entry's rest, rounded up.
const restUnit = time.Millisecond

// SetStale changes how answers past their time are given, from the next lookup on.
func (c *Cache) SetStale(s Stale) {
	c.staleFor.Store(int64(min(MaxStale, max(0, s.For))))
	c.staleTTL.Store(uint32(min(MaxStale, max(0, s.TTL)) / time.Second))
}

// LookupStale appends the answer that may be given to the question of key for want
// of a better one, as Lookup appends one that rests. If a fresh one has come meanwhile
// it is that. It counts no hit. False: there is none.
func (c *Cache) LookupStale(key []byte, now time.Time, dst []byte) ([]byte, bool) {
	k, at := c.key(key), c.at(now)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	start := len(dst)
	e, found := s.choose(&k, at)
	switch found {
	case Fresh:
		dst = e.appendAnswer(dst, at)
	case Late, Resting:
		s.stats.Stale++
		dst = e.appendStale(dst, s.staleTTL.Load())
	default:
		return dst, false
	}
	e.answer(dst[start:], &k)
	return dst, true
}

// Rest makes Lookup give the answer to the question of key, if it is past its time, at
// once until the given moment. It does not count as a failure, each of which makes the
// rest longer.
func (c *Cache) Rest(key []byte, until, now time.Time) {
	k, at := c.key(key), c.at(now)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	s.ofQuestion(&k, func(e entry) {
		if state := s.state(e, at); state == Late || state == Resting {
			e.restUntil(max(e.rest(), c.at(until)))
		}
	})
}

// ofQuestion calls f with what is stored under k and with the denial of its name.
func (s *shard) ofQuestion(k *key, f func(entry)) {
	if e, _, ok := s.find(k, k.rrtype); ok {
		f(e)
	}
	if k.rrtype == denied {
		return
	}
	if e, _, ok := s.find(k, denied); ok {
		f(e)
	}
}

// tire notes that there was no answer in place of what may still be given to the
// question of k, and puts it to rest: for first, and twice as long each time. It tells
// whether there is something that may be given.
func (s *shard) tire(k *key, first time.Duration, at int64) (usable bool) {
	s.ofQuestion(k, func(e entry) {
		switch s.state(e, at) {
		case Fresh, Late, Resting:
			usable = true
			rest, limit := int64(first), int64(s.staleTTL.Load())*int64(time.Second)
			for n := e[offFailures]; n > 0 && rest < limit; n-- {
				rest *= 2
			}
			if e[offFailures]++; e[offFailures] == 0 {
				e[offFailures]--
			}
			e.restUntil(at + min(rest, limit))
		default:
		}
	})
	return usable
}
