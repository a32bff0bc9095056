// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"math"
	"time"
)

// A kept answer came from a server that reports its changes, over a session that is open. While [Cache.Vouch] is called it does not
// expire, and clients get the TTLs that the server gave. Without such a call for keptFor its TTLs count from the last one.
//
// Whether an answer is kept now is not stored but follows from the time of the last call. So nothing has to run when a server falls
// silent. The flag is stored, and must be removed before calls mean another session: Unkeep and UnkeepAll do that.
//
// A kept answer was asked of the server that reports its changes. So the changes before it was received are in it, and
// propagationDelay does not apply.

// keptFor is how long one call of Vouch keeps the TTLs of kept answers from counting down.
const keptFor = 5 * time.Second

// longAgo is the time of the last call of Vouch, before the first one.
const longAgo = math.MinInt64 / 2

// Vouch says that no kept answer has changed by now, but for those reported to OwnerChanged. Without denials it says so only for
// answers with a record.
func (c *Cache) Vouch(now time.Time, denials bool) {
	at := c.nanos(now)
	c.vouched.Store(at)
	if denials {
		c.vouchedDenials.Store(at)
	}
}

// Unkeep makes the answer to the question of key an ordinary one, whose TTLs count from the last call of Vouch.
func (c *Cache) Unkeep(key []byte) {
	k := c.key(key)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	s.forQuestion(&k, s.unkeep)
}

// UnkeepAll makes all kept answers ordinary ones. It holds a shard's lock for about 20 µs at a time. Answers that are stored during
// the call may stay kept.
func (c *Cache) UnkeepAll() {
	for {
		c = c.current()
		for i := range c.shards {
			c.walk(uint64(i), (*shard).unkeep)
		}
		if c.current() == c {
			return
		}
	}
}

func (s *shard) unkeep(e entry) {
	if !e.kept() {
		return
	}
	if !s.outdated(e) { // otherwise the entry must stay older than the change
		confirmed := s.confirmed(e)
		binary.LittleEndian.PutUint64(e[offStored:], uint64(confirmed))
		e.setBackoff(0)
	}
	e[offFlags] &^= flagKept
}

// vouchedAt returns the last call of Vouch for e, in ns since the epoch.
func (s *shard) vouchedAt(e entry) int64 {
	if msg := e.msg(); msg[6]|msg[7] == 0 { // no answer records
		return s.vouchedDenials.Load()
	}
	return s.vouched.Load()
}

// confirmed returns when the server last confirmed e, in ns since the epoch: by the answer itself, or by vouching for it.
func (s *shard) confirmed(e entry) int64 {
	if e.kept() {
		return max(e.stored(), s.vouchedAt(e))
	}
	return e.stored()
}

// end returns the expiry time of e, in ns since the epoch. For a kept e it is that without further calls of Vouch.
func (s *shard) end(e entry) int64 {
	if e.kept() {
		return max(e.end(), s.vouchedAt(e)+max(int64(keptFor), e.lifetime()))
	}
	return e.end()
}

// keptAge is age for a kept e.
func (s *shard) keptAge(e entry, at int64) int64 {
	if at-s.vouchedAt(e) < int64(keptFor) {
		return 0
	}
	return at - s.confirmed(e)
}
