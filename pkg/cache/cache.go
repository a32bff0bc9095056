// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"
)

// MinSize is the smallest budget, in bytes: one shard that still holds the
// largest answer there is.
const MinSize = 1 << 20

// MaxSize is the largest budget, in bytes. An index's offsets reach twice as far.
const MaxSize = 1 << 40

// maxShards bounds the shards. Sixty-four keep two CPUs from meeting at one
// lock in all but one of sixty-four lookups.
const maxShards = 64

// Config is what a cache is made from.
type Config struct {
	Size     int64    // bytes in all, MinSize to MaxSize
	Prefetch Prefetch // zero: no answer is ever due
}

// Prefetch says when an answer is due for a refresh before it expires.
type Prefetch struct {
	Hits      int     // times it was asked for since it was stored, more than 65535 count as 65535; 0: never due
	Remaining float64 // part of its lifetime that is left, 0 to 1
}

// Freshness is what Lookup found.
type Freshness uint8

// The kinds of freshness.
const (
	Absent Freshness = iota // nothing that may be used
	Fresh                   // an answer
	Due                     // an answer whose refresh the caller should start; said once per stored answer
	Failed                  // a remembered failure (RFC 9520)
)

// A Cache is safe for use by many goroutines.
type Cache struct {
	shards []*shard
	seed   maphash.Seed
	epoch  time.Time // zero of the stored times

	dueHits      atomic.Uint32 // Prefetch.Hits
	dueRemaining atomic.Uint32 // Prefetch.Remaining in parts of dueUnit
}

// dueUnit is the precision of Prefetch.Remaining.
const dueUnit = 1 << 16

// maxHits is where an entry stops to count.
const maxHits = 1<<16 - 1

// New makes an empty cache. Memory is reserved at once and used as it fills.
func New(cfg Config, now time.Time) (*Cache, error) {
	return build(cfg, maphash.MakeSeed(), now)
}

func build(cfg Config, seed maphash.Seed, epoch time.Time) (*Cache, error) {
	if cfg.Size < MinSize {
		return nil, fmt.Errorf("cache size %d bytes: the least is %d", cfg.Size, MinSize)
	}
	if cfg.Size > MaxSize {
		return nil, fmt.Errorf("cache size %d bytes: the most is %d", cfg.Size, int64(MaxSize))
	}
	n := min(maxShards, 1<<(bits.Len64(uint64(cfg.Size/MinSize))-1))
	c := &Cache{shards: make([]*shard, n), seed: seed, epoch: epoch}
	c.SetPrefetch(cfg.Prefetch)
	for i := range c.shards {
		s, err := newShard(int(cfg.Size / int64(n)))
		if err != nil {
			return nil, fmt.Errorf("reserving %d bytes: %w", cfg.Size, err)
		}
		c.shards[i] = s
	}
	return c, nil
}

// SetPrefetch changes when answers become due, from the next lookup on.
func (c *Cache) SetPrefetch(p Prefetch) {
	c.dueHits.Store(uint32(min(maxHits, max(0, p.Hits))))
	c.dueRemaining.Store(uint32(min(1, max(0, p.Remaining)) * dueUnit))
}

// Lookup appends the answer stored under key to dst, with its TTLs counted down
// to now and its address records rotated by one more place than last time. The
// header's ID and flags and the question's spelling are the stored ones. It
// keeps no reference to dst.
func (c *Cache) Lookup(key []byte, now time.Time, dst []byte) ([]byte, Freshness) {
	hash := maphash.Bytes(c.seed, key)
	at := int64(now.Sub(c.epoch))
	s := c.shard(hash)
	s.mu.Lock()
	e, _, ok := s.find(hash, key)
	if !ok {
		s.stats.Misses++
		s.mu.Unlock()
		return dst, Absent
	}
	if at >= e.end() {
		s.stats.Misses++
		s.stats.Expired++
		s.mu.Unlock()
		return dst, Absent
	}
	s.stats.Hits++
	freshness := c.touch(e, at)
	dst = e.appendAnswer(dst, at)
	s.mu.Unlock()
	return dst, freshness
}

// touch counts a hit on e and says how fresh it is.
func (c *Cache) touch(e entry, at int64) Freshness {
	if f := e[offFreq]; f < maxFreq {
		e[offFreq] = f + 1
	}
	hits := e.hits()
	if hits < maxHits {
		hits++
		e.setHits(hits)
	}
	flags := e[offFlags]
	if flags&flagFailure != 0 {
		return Failed
	}
	due := c.dueHits.Load()
	if due == 0 || uint32(hits) < due || flags&flagDue != 0 {
		return Fresh
	}
	if float64(e.end()-at) >= float64(e.life())*float64(c.dueRemaining.Load())/dueUnit {
		return Fresh
	}
	e[offFlags] = flags | flagDue
	return Due
}

// An Answer is what is stored.
type Answer struct {
	Msg  []byte        // whole message, no OPT record, question in canonical spelling
	TTLs []uint16      // offsets of the TTL fields in Msg, ascending
	Life time.Duration // how long it may be used, whole seconds
	// Rotate is the run of TTLs, first and count, whose records are one address
	// set of equal RDATA length; a count below 2 means that none is.
	RotateFirst, RotateCount int
}

// Put stores a under key, which must be its question's name, type and whatever
// else tells answers apart. An older answer is replaced. Nothing of a or key is
// kept. An answer that no shard can hold is counted and left out.
func (c *Cache) Put(key []byte, a *Answer, now time.Time) {
	hash := maphash.Bytes(c.seed, key)
	s := c.shard(hash)
	s.mu.Lock()
	s.store(hash, key, a, 0, int64(now.Sub(c.epoch)))
	s.mu.Unlock()
}

// PutFailure remembers under key that there was no answer: for first at first,
// and for twice as long each time the next failure follows within the time the
// last was remembered for, up to limit (RFC 9520 section 3.2). An answer that
// may still be used is never replaced by it.
func (c *Cache) PutFailure(key, msg []byte, first, limit time.Duration, now time.Time) {
	a := Answer{Msg: msg, Life: first}
	hash := maphash.Bytes(c.seed, key)
	at := int64(now.Sub(c.epoch))
	s := c.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, _, ok := s.find(hash, key); ok {
		failed := e[offFlags]&flagFailure != 0
		if !failed && at < e.end() {
			return
		}
		if failed && at < e.end()+e.life() {
			a.Life = min(2*time.Duration(e.life()), limit)
		}
	}
	s.store(hash, key, &a, flagFailure, at)
}

func (c *Cache) shard(hash uint64) *shard {
	return c.shards[hash&uint64(len(c.shards)-1)]
}

// Resized makes a cache of another size with the answers of c that fit and may
// still be used. What is put into c meanwhile may be missing there.
func (c *Cache) Resized(cfg Config, now time.Time) (*Cache, error) {
	d, err := build(cfg, c.seed, c.epoch)
	if err != nil {
		return nil, err
	}
	c.copyTo(d, now)
	return d, nil
}

func (c *Cache) copyTo(d *Cache, now time.Time) {
	at := int64(now.Sub(c.epoch))
	for _, s := range c.shards {
		s.mu.Lock()
		s.each(func(e entry, proven bool) {
			if at >= e.end() {
				return
			}
			t := d.shard(e.hash())
			t.mu.Lock()
			t.now = at
			t.add(e, proven)
			t.mu.Unlock()
		})
		s.mu.Unlock()
	}
}

// Stats is the sum over all shards, since the cache was made. Hits, Misses and
// Insertions count calls, Expired the misses that found an answer past its time.
type Stats struct {
	Hits, Misses, Expired uint64
	Insertions            uint64
	Evictions             uint64 // answers that could still be used and had to go
	Expirations           uint64 // answers past their time whose bytes were freed
	Rejected              uint64 // answers larger than a shard can hold
	Entries               int64
	Bytes                 int64 // what the entries take, headers included
	Fixed                 int64 // what index and ghosts take
	Capacity              int64 // the budget
}

// Stats sums up the shards, each under its own lock.
func (c *Cache) Stats() Stats {
	var sum Stats
	for _, s := range c.shards {
		s.mu.Lock()
		sum.Hits += s.stats.Hits
		sum.Misses += s.stats.Misses
		sum.Expired += s.stats.Expired
		sum.Insertions += s.stats.Insertions
		sum.Evictions += s.stats.Evictions
		sum.Expirations += s.stats.Expirations
		sum.Rejected += s.stats.Rejected
		sum.Entries += int64(s.index.count)
		sum.Bytes += int64(s.live)
		sum.Fixed += int64(s.fixed())
		sum.Capacity += int64(s.fixed() + len(s.arena))
		s.mu.Unlock()
	}
	return sum
}
