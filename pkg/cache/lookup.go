// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Freshness is what Lookup found.
type Freshness uint8

// The kinds of freshness.
const (
	Absent  Freshness = iota // nothing that may be used
	Fresh                    // an answer
	Due                      // an answer whose refresh the caller should start; said once per stored answer
	Failed                   // a remembered failure (RFC 9520)
	Late                     // an answer past its time, not appended: upstream is to be asked first
	Resting                  // an answer past its time, appended, whose refresh failed or was overdue a moment ago
)

// Lookup appends the answer stored under key to dst, with its TTLs counted down
// to now and its address records rotated by one more place than last time; one that
// rests has the TTLs that answers past their time are given with. The header's ID and
// flags and the question's spelling are the stored ones. It keeps no reference to dst.
//
// In this order it is: the fresh answer to the question, the fresh denial of its name,
// the later of the two past their time, the remembered failure.
func (c *Cache) Lookup(key []byte, now time.Time, dst []byte) ([]byte, Freshness) {
	k, at := c.key(key), c.at(now)
	s := c.lock(k.low)
	start := len(dst)
	e, found := s.choose(&k, at)
	switch found {
	case Fresh:
		s.stats.Hits++
		if hits := e.touch(); s.becomesDue(e, hits, at) {
			found = Due
		}
		dst = e.appendAnswer(dst, at)
	case Failed:
		s.stats.Hits++
		e.touch()
		dst = e.appendAnswer(dst, at)
	case Resting:
		s.stats.Stale++
		e.touch()
		e[offFlags] |= flagAsked
		dst = e.appendStale(dst, s.staleTTL.Load())
	default:
		s.missed(e, found)
		s.mu.Unlock()
		return dst, found
	}
	e.answer(dst[start:], &k)
	s.mu.Unlock()
	return dst, found
}

// missed counts a lookup that gives nothing, though it may have found e.
func (s *shard) missed(e entry, found Freshness) {
	s.stats.Misses++
	switch {
	case e == nil:
	case found == Late:
		s.stats.Expired++
		e.touch()
		e[offFlags] |= flagAsked
	case s.outdated(e):
		s.stats.Invalidated++
	default:
		s.stats.Expired++
	}
}

// choose finds what the question of k gets. What is of no use is given with Absent, if
// there is something.
func (s *shard) choose(k *key, at int64) (entry, Freshness) {
	e, _, ok := s.find(k, k.rrtype)
	if !ok {
		return s.chooseDenial(k, nil, Absent, at)
	}
	if at < e.end() && e[offFlags]&flagFailure == 0 && e.owner() == 0 { // nearly always: state would say so too
		return e, Fresh
	}
	state := s.state(e, at)
	if state == Fresh {
		return e, Fresh
	}
	return s.chooseDenial(k, e, state, at)
}

// chooseDenial is what the question of k gets that has e, which is not fresh.
func (s *shard) chooseDenial(k *key, e entry, state Freshness, at int64) (entry, Freshness) {
	denial, _, ok := s.find(k, denied)
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

// state is what e is good for at the moment at: anything but Due.
func (s *shard) state(e entry, at int64) Freshness {
	if s.outdated(e) {
		return Absent
	}
	late := at - e.end()
	failure := e[offFlags]&flagFailure != 0
	switch {
	case late < 0 && failure:
		return Failed
	case late < 0:
		return Fresh
	case failure || late >= s.staleFor.Load():
		return Absent
	case at < e.rest():
		return Resting
	default:
		return Late
	}
}

// outdated tells whether e is older than its owner's last event.
func (s *shard) outdated(e entry) bool {
	tag := e.owner()
	return tag != 0 && s.owners.outdated(tag, e.asked())
}

// touch counts a use of e and gives how many there were since it was stored.
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

// becomesDue tells whether e, which is fresh, is to be refreshed, for the first time.
func (s *shard) becomesDue(e entry, hits uint16, at int64) bool {
	due := s.dueHits.Load()
	if due == 0 || uint32(hits) < due || e[offFlags]&flagDue != 0 {
		return false
	}
	if float64(e.end()-at) >= float64(e.life())*float64(s.dueRemaining.Load())/dueUnit {
		return false
	}
	e[offFlags] |= flagDue
	return true
}

// LookupCut appends the denial, as it is stored, of an ancestor of name, which is
// canonical and in wire form: no name is below one that does not exist (RFC 8020). Of
// the ancestors only those of at least floor octets count, and never the root. The key
// flags are those of the question. Its own question has the type 0.
func (c *Cache) LookupCut(name []byte, floor int, flags byte, now time.Time, dst []byte) ([]byte, bool) {
	var room [wire.MaxName + 3]byte
	raw, at := append(append(room[:0], name...), 0, denied, flags), c.at(now)
	for {
		raw = raw[1+int(raw[0]):]
		if n := len(raw) - 3; n < floor || n < 2 {
			return dst, false
		}
		k := c.key(raw)
		s := c.lock(k.low)
		if e, _, ok := s.find(&k, denied); ok && s.state(e, at) == Fresh {
			s.stats.Cut++
			e.touch()
			dst = e.appendAnswer(dst, at)
			s.mu.Unlock()
			return dst, true
		}
		s.mu.Unlock()
	}
}
