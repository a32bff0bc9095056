// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An Answer is what is stored.
type Answer struct {
	Msg  []byte        // whole message, no OPT record, question in canonical spelling
	TTLs []uint16      // offsets of the TTL fields in Msg, ascending
	Life time.Duration // how long it may be used, whole seconds
	// Rotate is the run of TTLs, first and count, whose records are one address
	// set of equal RDATA length; a count below 2 means that none is.
	RotateFirst, RotateCount int

	NXDomain bool      // it denies the question's name itself, not the target of an alias
	Owner    []byte    // name of what it changes with, for Changed; nil: nothing
	Asked    time.Time // when upstream was asked; of use with Owner only
}

// Put stores a under key, which must be its question's name, type and whatever
// else tells answers apart. An older answer is replaced, and so is the denial of the
// name. A denial of the name is stored for all types, unless a fresh address of it is
// held, as upstreams have it that deny one family and have the other (RFC 4074 section
// 4.2). Nothing of a or key is kept. An answer that no shard can hold is counted and
// left out, and one whose owner changed too lately is too.
func (c *Cache) Put(key []byte, a *Answer, now time.Time) {
	k, at := c.key(key), c.at(now)
	birth, ok := c.birth(a, at)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	s.now = at
	switch {
	case !ok:
		s.stats.Outdated++
	case a.NXDomain && !s.contradicts(&k):
		if k.rrtype != denied {
			s.remove(&k, k.rrtype)
		}
		s.store(&k, denied, a, flagDenied, birth)
	case k.rrtype == denied:
		s.stats.Rejected++ // what is no denial would pass for one
	default:
		s.remove(&k, denied)
		s.store(&k, k.rrtype, a, 0, birth)
	}
}

// contradicts tells whether there is a fresh address of the name that the question of k,
// which is for something else, finds denied.
func (s *shard) contradicts(k *key) bool {
	if k.rrtype == denied {
		return false
	}
	for _, rrtype := range [...]uint16{wire.TypeA, wire.TypeAAAA} {
		if rrtype == k.rrtype {
			continue
		}
		if e, _, ok := s.find(k, rrtype); ok && s.state(e, s.now) == Fresh && e.positive() {
			return true
		}
	}
	return false
}

// positive tells whether the entry's answer has records that say that its name exists.
func (e entry) positive() bool {
	msg := e.msg()
	return msg[3]&0x0f == wire.RcodeSuccess && binary.BigEndian.Uint16(msg[6:]) > 0
}

// PutFailure remembers under key that there was no answer: for first at first,
// and for twice as long each time the next failure follows within the time the
// last was remembered for, up to limit (RFC 9520 section 3.2). An answer that
// may still be used is never replaced by it: it is put to rest, for first and then twice
// as long each time, up to Stale.TTL.
func (c *Cache) PutFailure(key, msg []byte, first, limit time.Duration, now time.Time) {
	a := Answer{Msg: msg, Life: first}
	k, at := c.key(key), c.at(now)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	s.now = at
	if s.tire(&k, first, at) || k.rrtype == denied {
		return
	}
	if e, _, ok := s.find(&k, k.rrtype); ok && e[offFlags]&flagFailure != 0 && at < e.end()+e.life() {
		a.Life = min(2*time.Duration(e.life()), limit)
	}
	s.store(&k, k.rrtype, &a, flagFailure, birth{})
}
