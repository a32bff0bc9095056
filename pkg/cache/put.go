// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An Answer is an answer to store.
type Answer struct {
	Msg      []byte        // whole message, no OPT record, question in canonical case
	TTLs     []uint16      // offsets of the TTL fields in Msg, ascending
	Lifetime time.Duration // whole seconds
	// RotateFirst and RotateCount are the run of TTLs whose records form one address set
	// with equal RDATA length; a count below 2 means none.
	RotateFirst, RotateCount int

	NXDomain  bool      // denies the question's name itself, not the target of an alias
	Owner     []byte    // name of the object that the answer depends on, for OwnerChanged; nil: none
	QueriedAt time.Time // when upstream was queried; used only with Owner
}

// Put stores a under key, which must contain the name and type of its question and everything else
// that answers depend on. It replaces an older answer and the denial of the name. A denial of the name
// is stored for all types, unless a fresh address of the name is cached: some servers answer NXDOMAIN
// for one address family and data for the other (RFC 4074 section 4.2). Put keeps no reference to a or
// key. It counts and drops answers that no shard can hold and those whose owner changed too recently.
func (c *Cache) Put(key []byte, a *Answer, now time.Time) {
	k, at := c.key(key), c.nanos(now)
	from, ok := c.origin(a, at)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.now = at
	switch {
	case !ok:
		s.stats.Outdated++
	case a.NXDomain && !s.hasFreshAddress(&k):
		if k.rrtype != denialType {
			s.remove(&k, k.rrtype)
		}
		s.store(&k, denialType, a, flagDenial, from)
	case k.rrtype == denialType:
		s.stats.Rejected++ // would be mistaken for a denial
	default:
		s.remove(&k, denialType)
		s.store(&k, k.rrtype, a, 0, from)
	}
}

// hasFreshAddress reports whether a fresh address of another type contradicts a denial for k.
func (s *shard) hasFreshAddress(k *key) bool {
	if k.rrtype == denialType {
		return false
	}
	for _, rrtype := range [...]uint16{wire.TypeA, wire.TypeAAAA} {
		if rrtype == k.rrtype {
			continue
		}
		if e, _, ok := s.find(k, rrtype); ok && s.state(e, s.now) == Fresh && e.hasData() {
			return true
		}
	}
	return false
}

// hasData reports whether the answer proves that its name exists.
func (e entry) hasData() bool {
	msg := e.msg()
	return msg[3]&0x0f == wire.RcodeSuccess && binary.BigEndian.Uint16(msg[6:]) > 0
}

// PutFailure caches a failure under key: first for the duration first, then for twice as long each
// time the next failure follows within the duration of the last, up to limit (RFC 9520 section 3.2).
// It never replaces a usable answer; that answer goes into backoff instead, for first and then twice
// as long each time, up to ServeStale.TTL.
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
	s.store(&k, k.rrtype, &a, flagFailure, origin{})
}

// Remove removes the entry under key and the denial of its name.
func (c *Cache) Remove(key []byte) {
	k := c.key(key)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	for _, rrtype := range [...]uint16{k.rrtype, denialType} {
		if s.remove(&k, rrtype) {
			s.stats.Removed++
		}
	}
}

// Flush removes all entries at and below zone and returns their number. zone is canonical and in wire
// form; the root removes everything.
func (c *Cache) Flush(zone []byte) (n int) {
	c.eachShard(func(s *shard) {
		n += s.flush(func(name []byte) bool { return isWithin(name, zone) })
	})
	return n
}

// FlushName removes all entries of name, which is canonical and in wire form, and returns their
// number.
func (c *Cache) FlushName(name []byte) int {
	k := c.denialKey(name, nil)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	return s.flush(func(other []byte) bool { return bytes.Equal(name, other) })
}

// flush removes the entries whose name fits.
func (s *shard) flush(fits func(name []byte) bool) (n int) {
	s.each(func(off int, e entry, _ bool) {
		if fits(e.name()) {
			s.drop(off, e)
			n++
		}
	})
	s.stats.Removed += uint64(n)
	if s.index.count == 0 { // no live entry: reset the logs
		s.small, s.main = newRing(s.small.base, s.small.size), newRing(s.main.base, s.main.size)
	}
	return n
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

// drop marks the entry at off as dead.
func (s *shard) drop(off int, e entry) {
	e[offFlags] |= flagDead
	s.index.remove(e.hash(), off)
	s.liveBytes -= e.size()
}

// isWithin reports whether name is at or below zone.
func isWithin(name, zone []byte) bool {
	for len(name) > len(zone) {
		name = name[1+int(name[0]):]
	}
	return bytes.Equal(name, zone)
}
