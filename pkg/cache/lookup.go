// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Freshness is the result of a lookup, and the state of an entry.
type Freshness uint8

// Results of a lookup.
const (
	Absent       Freshness = iota // no usable entry
	Fresh                         // an answer
	PrefetchDue                   // a fresh answer that the caller should refresh; returned once per stored answer
	Failed                        // a cached failure (RFC 9520)
	Stale                         // an expired answer, not appended: the caller should query upstream first
	StaleBackoff                  // an expired answer, appended: a refresh failed or timed out recently
	Expired                       // state of an entry that Lookup calls absent: expired for too long
	Outdated                      // state of an entry that Lookup calls absent: older than its owner's last change
)

// String returns the word for the state of an entry in status pages and explanations.
func (f Freshness) String() string {
	return [...]string{"absent", "fresh", "due", "failed", "stale", "resting", "expired", "outdated"}[f]
}

// Lookup appends the answer stored under key to dst. It counts the TTLs down to now and rotates the
// address records by one more place than last time. An answer in backoff gets the stale TTL. The
// header's ID and flags and the question's case are as stored. Lookup keeps no reference to dst.
//
// It prefers, in this order: the fresh answer to the question, the fresh denial of its name, the later
// of the two if stale, the cached failure.
func (c *Cache) Lookup(key []byte, now time.Time, dst []byte) ([]byte, Freshness) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	start := len(dst)
	e, found := s.selectEntry(&k, at)
	switch found {
	case Fresh, Failed:
		s.stats.Hits++
		if hits := e.touch(); found == Fresh && s.prefetchDue(e, hits, at) {
			found = PrefetchDue
		}
		dst = e.appendAnswer(dst, s.age(e, at))
	case StaleBackoff:
		s.stats.Stale++
		e.touch()
		e[offFlags] |= flagStaleUsed
		dst = e.appendStale(dst, s.staleTTL.Load())
	default:
		s.countMiss(e, found)
		s.mu.Unlock()
		return dst, found
	}
	e.setQuestionType(dst[start:], &k)
	s.mu.Unlock()
	return dst, found
}

// countMiss counts a lookup without an answer. e is the unusable entry, if there is one.
func (s *shard) countMiss(e entry, found Freshness) {
	s.stats.Misses++
	switch {
	case e == nil:
	case found == Stale:
		s.stats.Expired++
		e.touch()
		e[offFlags] |= flagStaleUsed
	case s.outdated(e):
		s.stats.Invalidated++
	default:
		s.stats.Expired++
	}
}

// selectEntry returns the entry for the question of k. With Absent the entry is nil or unusable.
func (s *shard) selectEntry(k *key, at int64) (entry, Freshness) {
	e, _, ok := s.find(k, k.rrtype)
	if !ok {
		return s.selectWithDenial(k, nil, Absent, at)
	}
	if at < e.end() && e[offFlags]&flagFailure == 0 && e.owner() == 0 { // fast path, same result as state
		return e, Fresh
	}
	state := s.state(e, at)
	if state == Fresh {
		return e, Fresh
	}
	return s.selectWithDenial(k, e, state, at)
}

// selectWithDenial chooses between e, which is not fresh, and the denial of the name.
func (s *shard) selectWithDenial(k *key, e entry, state Freshness, at int64) (entry, Freshness) {
	denial, _, ok := s.find(k, denialType)
	if !ok {
		return e, state
	}
	switch found := s.state(denial, at); {
	case found == Fresh, e == nil, found != Absent && (state == Absent || state == Failed || e.stored() <= denial.stored()):
		return denial, found
	default:
		return e, state
	}
}

// state returns the freshness of e at the time at, without PrefetchDue.
func (s *shard) state(e entry, at int64) Freshness {
	if s.outdated(e) {
		return Absent
	}
	overdue := at - s.end(e)
	failure := e[offFlags]&flagFailure != 0
	switch {
	case overdue < 0 && failure:
		return Failed
	case overdue < 0:
		return Fresh
	case failure || overdue >= s.staleFor(e):
		return Absent
	case at < e.backoffEnd():
		return StaleBackoff
	default:
		return Stale
	}
}

// outdated reports whether e predates its owner's last change.
func (s *shard) outdated(e entry) bool {
	switch tag := e.owner(); {
	case tag == 0:
		return false
	case e.kept():
		return e.stored() <= s.owners[tag-1].Load()
	default:
		return s.predatesChange(tag, e.queriedAt())
	}
}

// touch counts a use of e and returns the uses since it was stored.
func (e entry) touch() uint16 {
	if f := e[offFreq]; f < maxFreq {
		e[offFreq] = f + 1
	}
	hits := e.hits()
	if hits < maxHits {
		hits++
		e.setHits(hits)
	}
	return hits
}

// prefetchDue reports whether a fresh e should be refreshed. It returns true once per entry.
func (s *shard) prefetchDue(e entry, hits uint16, at int64) bool {
	due := s.prefetchHits.Load()
	if due == 0 || uint32(hits) < due || e[offFlags]&(flagPrefetched|flagKept) != 0 {
		return false
	}
	if float64(e.end()-at) >= float64(e.lifetime())*float64(s.prefetchRemaining.Load())/prefetchUnit {
		return false
	}
	e[offFlags] |= flagPrefetched
	return true
}

// LookupNXDomainCut appends the stored denial of an ancestor of name, which is canonical and in wire
// form: no name exists below one that does not exist (RFC 8020). It considers only ancestors of at
// least floor bytes, and never the root. flags are the key flags of the question. The question of the
// appended message has any type.
func (c *Cache) LookupNXDomainCut(name []byte, floor int, flags byte, now time.Time, dst []byte) ([]byte, bool) {
	var room [wire.MaxName + 3]byte
	raw, at := append(append(room[:0], name...), 0, denialType, flags), c.nanos(now)
	for {
		raw = raw[1+int(raw[0]):]
		if n := len(raw) - 3; n < floor || n < 2 {
			return dst, false
		}
		k := c.key(raw)
		s := c.lockShard(k.shardBits)
		if e := s.denialOfName(&k, at); e != nil {
			s.stats.NXDomainCut++
			e.touch()
			dst = e.appendAnswer(dst, s.age(e, at))
			s.mu.Unlock()
			return dst, true
		}
		s.mu.Unlock()
	}
}

// denialOfName returns the fresh denial of the name of k for all types, or for an address type, nil if there is none. A
// fresh answer of an address type contradicts it: some servers deny one address family of a name that has the other (RFC
// 4074 section 4.2).
func (s *shard) denialOfName(k *key, at int64) (denial entry) {
	for _, rrtype := range [...]uint16{denialType, wire.TypeA, wire.TypeAAAA} {
		e, _, ok := s.find(k, rrtype)
		switch {
		case !ok || s.state(e, at) != Fresh:
		case rrtype == denialType || e.deniesName():
			denial = e
		default:
			return nil
		}
	}
	return denial
}

// deniesName reports whether e says that its name does not exist, and not that the target of an alias does not.
func (e entry) deniesName() bool {
	msg := e.msg()
	return msg[3]&0x0f == wire.RcodeNXDomain && binary.BigEndian.Uint16(msg[6:]) == 0
}

// ServeStale configures the use of expired answers (RFC 8767).
type ServeStale struct {
	Window time.Duration // time after expiry in which an answer may be used, MaxStaleWindow at most; 0: never
	TTL    time.Duration // TTL of stale answers, whole seconds; also the maximum backoff after failed refreshes
}

// MaxStaleWindow is the largest ServeStale.Window. An entry's backoff field can represent 49 days after expiry.
const MaxStaleWindow = 30 * 24 * time.Hour

// backoffUnit is the precision of an entry's backoff, rounded up.
const backoffUnit = time.Millisecond

// SetPrefetch changes the prefetch settings from the next lookup on.
func (c *Cache) SetPrefetch(p Prefetch) {
	c.prefetchHits.Store(uint32(min(maxHits, max(0, p.Hits))))
	c.prefetchRemaining.Store(uint32(min(1, max(0, p.Remaining)) * prefetchUnit))
}

// SetServeStale changes the settings for stale answers from the next lookup on.
func (c *Cache) SetServeStale(s ServeStale) {
	c.staleWindow.Store(int64(min(MaxStaleWindow, max(0, s.Window))))
	c.staleTTL.Store(uint32(min(MaxStaleWindow, max(0, s.TTL)) / time.Second))
}

// LookupStale appends the stale answer to the question of key, with the stale TTL. If a fresh answer
// has arrived in the meantime it appends that. It counts no hit. It returns false if there is no
// answer.
func (c *Cache) LookupStale(key []byte, now time.Time, dst []byte) ([]byte, bool) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	start := len(dst)
	e, found := s.selectEntry(&k, at)
	switch found {
	case Fresh:
		dst = e.appendAnswer(dst, s.age(e, at))
	case Stale, StaleBackoff:
		s.stats.Stale++
		dst = e.appendStale(dst, s.staleTTL.Load())
	default:
		return dst, false
	}
	e.setQuestionType(dst[start:], &k)
	return dst, true
}

// DelayRefresh puts the stale answer to the question of key into backoff until the given time: Lookup
// appends it at once. It does not count as a failed refresh, so the next backoff is not longer.
func (c *Cache) DelayRefresh(key []byte, until, now time.Time) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.forQuestion(&k, func(e entry) {
		if state := s.state(e, at); state == Stale || state == StaleBackoff {
			e.setBackoff(max(e.backoffEnd(), c.nanos(until)))
		}
	})
}

// forQuestion calls f with the entry under k and with the denial of its name.
func (s *shard) forQuestion(k *key, f func(entry)) {
	if e, _, ok := s.find(k, k.rrtype); ok {
		f(e)
	}
	if k.rrtype == denialType {
		return
	}
	if e, _, ok := s.find(k, denialType); ok {
		f(e)
	}
}

// recordFailure puts the usable answers to the question of k into backoff: for first, and twice as long
// after each further failure, up to the stale TTL. It reports whether there is a usable answer.
func (s *shard) recordFailure(k *key, first time.Duration, at int64) (usable bool) {
	s.forQuestion(k, func(e entry) {
		switch s.state(e, at) {
		case Fresh, Stale, StaleBackoff:
			usable = true
			rest, limit := int64(first), int64(s.staleTTL.Load())*int64(time.Second)
			for n := e[offFailures]; n > 0 && rest < limit; n-- {
				rest *= 2
			}
			if e[offFailures]++; e[offFailures] == 0 {
				e[offFailures]--
			}
			e.setBackoff(at + min(rest, limit))
		default:
		}
	})
	return usable
}

// An Answer is an answer to store.
type Answer struct {
	Msg      []byte        // whole message, no OPT record, question in canonical case
	TTLs     []uint16      // offsets of the TTL fields in Msg, ascending
	Lifetime time.Duration // whole seconds
	// RotateFirst and RotateCount are the run of TTLs whose records form one address set
	// with equal RDATA length; a count below 2 means none.
	RotateFirst, RotateCount int

	Kept      bool      // stays fresh while it is vouched for, see Cache.Vouch; only with Owner
	AllTypes  bool      // a denial of the question's name for all types; otherwise of its type alone
	Owner     []byte    // name of the object that the answer depends on, for OwnerChanged; nil: none
	QueriedAt time.Time // when upstream was queried; zero: when the answer is stored; used only with Owner
}

// Put stores a under key, which must contain the name and type of its question and everything else
// that answers depend on. It replaces an older answer and the denial of the name for all types. Put keeps
// no reference to a or key. It counts and drops an answer that is too large, lives less than a second, answers type 0 alone,
// has too long a key, or whose owner changed too recently. For a kept answer that is a change since it was received.
func (c *Cache) Put(key []byte, a *Answer, now time.Time) {
	k, at := c.key(key), c.nanos(now)
	tag, queryAge, ok := c.owner(a, at)
	c.notify(k.raw[:k.nameLen])
	defer c.notify(k.raw[:k.nameLen])
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.now = at
	var e entry
	switch {
	case !ok:
		s.stats.Outdated++
	case a.AllTypes:
		if k.rrtype != denialType {
			s.remove(&k, k.rrtype)
		}
		e = s.store(&k, denialType, a, flagDenial)
	case k.rrtype == denialType:
		s.stats.Rejected++ // an entry of this type would be mistaken for a denial
	default:
		s.remove(&k, denialType)
		e = s.store(&k, k.rrtype, a, 0)
	}
	if e != nil {
		e.setOwner(tag, queryAge)
		if a.Kept && tag != 0 {
			e[offFlags] |= flagKept
		}
		if s.pinned.Load() != nil {
			s.pin(e)
		}
	}
}

// PutFailure caches a failure under key for the duration first. If the previous failure is valid, or
// expired less than its own duration ago, the new one is cached for twice as long, up to limit (RFC 9520
// section 3.2). PutFailure never replaces a usable answer. That answer goes into backoff instead: for
// first, and twice as long after each further failure, up to ServeStale.TTL.
func (c *Cache) PutFailure(key, msg []byte, first, limit time.Duration, now time.Time) {
	a := Answer{Msg: msg, Lifetime: first}
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.now = at
	if s.recordFailure(&k, first, at) || k.rrtype == denialType {
		return
	}
	if e, _, ok := s.find(&k, k.rrtype); ok && e[offFlags]&flagFailure != 0 && at < e.end()+e.lifetime() {
		a.Lifetime = min(2*time.Duration(e.lifetime()), limit)
	}
	s.store(&k, k.rrtype, &a, flagFailure)
}

// Remove removes the entry under key and the denial of its name.
func (c *Cache) Remove(key []byte) {
	k := c.key(key)
	c.notify(k.raw[:k.nameLen])
	defer c.notify(k.raw[:k.nameLen])
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	for _, rrtype := range [...]uint16{k.rrtype, denialType} {
		if s.remove(&k, rrtype) {
			s.stats.Removed++
		}
	}
}

// Flush removes all entries of name, which is canonical and in wire form, and with below also those of the names below
// it: all for the root. It returns their number.
func (c *Cache) Flush(name []byte, below bool) (n int) {
	return c.Purge(func(entry, _ []byte) bool { return bytes.Equal(entry, name) || below && isWithin(entry, name) })
}

// Purge removes all entries for whose name, canonical and in wire form, and message match returns true. It returns their number.
func (c *Cache) Purge(match func(name, msg []byte) bool) (n int) {
	defer c.notify(nil)
	c.eachShard(func(s *shard) {
		was := n
		s.each(func(off int, e entry, _ bool) {
			if match(e.name(), e.msg()) {
				s.drop(off, e)
				n++
			}
		})
		s.stats.Removed += uint64(n - was)
		if s.index.count == 0 { // no live entry: reset the logs
			s.small, s.main = newRing(s.small.base, s.small.size), newRing(s.main.base, s.main.size)
		}
	})
	return n
}

// Expire ends the lifetime of all entries at and below zone, which is canonical and in wire form, and their backoff:
// the next query for each goes upstream. An answer may still be served stale.
func (c *Cache) Expire(zone []byte, now time.Time) {
	defer c.notify(nil)
	at := c.nanos(now)
	c.eachShard(func(s *shard) {
		s.each(func(_ int, e entry, _ bool) {
			if !isWithin(e.name(), zone) {
				return
			}
			s.expire(e, at)
		})
	})
}

// remove removes the entry under k, with rrtype in place of its own type, and reports whether there
// was one.
func (s *shard) remove(k *key, rrtype uint16) bool {
	e, off, ok := s.find(k, rrtype)
	if ok {
		s.drop(off, e)
	}
	return ok
}

// drop removes the entry at off from the index and marks it as dead.
func (s *shard) drop(off int, e entry) {
	e[offFlags] |= flagDead
	s.index.remove(e.hash(), off)
	s.liveBytes -= e.size()
}

// Observe registers changed, which is called when the answers of a name or of an owner may change: before an answer is replaced,
// and again after it, because a copy of the old one may have been made in between. It is called with nil after the answers of many
// names changed. The expiry of an answer is no change. changed must be quick and must not keep name. A nil function removes it. It
// stays registered after [Cache.Resize].
func (c *Cache) Observe(changed func(name []byte)) {
	if changed == nil {
		c.changed.Store(nil)
		return
	}
	c.changed.Store(&changed)
}

func (sh *shared) notify(name []byte) {
	if f := sh.changed.Load(); f != nil {
		(*f)(name)
	}
}

// Validity returns how long Lookup will return the same fresh answer to the question of key: the age by which its TTLs are counted
// down, and the time until it expires or must be refreshed, for a kept answer without further calls of Vouch. It returns false without a fresh answer.
func (c *Cache) Validity(key []byte, now time.Time) (age, left time.Duration, ok bool) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	e, found := s.selectEntry(&k, at)
	if found != Fresh {
		return 0, 0, false
	}
	left = time.Duration(s.end(e) - at)
	due := time.Duration(float64(e.lifetime()) * float64(s.prefetchRemaining.Load()) / prefetchUnit)
	if s.prefetchHits.Load() != 0 && e[offFlags]&(flagPrefetched|flagKept) == 0 && left > due {
		left -= due
	}
	return time.Duration(s.age(e, at)), left, true
}

// AddHits counts n uses of the answer to the question of key, for replies that were made from a copy of it.
func (c *Cache) AddHits(key []byte, n uint64) {
	k := c.key(key)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.stats.Hits += n
	s.forQuestion(&k, func(e entry) {
		e.setHits(uint16(min(maxHits, uint64(e.hits())+n)))
		e[offFreq] = byte(min(maxFreq, uint64(e[offFreq])+n))
	})
}

// isWithin reports whether name is at or below zone.
func isWithin(name, zone []byte) bool {
	for len(name) > len(zone) {
		name = name[1+int(name[0]):]
	}
	return bytes.Equal(name, zone)
}
