// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
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
	Stale    Stale    // zero: no answer is given past its time
}

// Prefetch says when an answer is due for a refresh before it expires.
type Prefetch struct {
	Hits      int     // times it was asked for since it was stored, more than 65535 count as 65535; 0: never due
	Remaining float64 // part of its lifetime that is left, 0 to 1
}

// A Cache is safe for use by many goroutines.
type Cache struct {
	*shared

	shards []*shard

	resizing sync.Mutex // guards next
	next     *Cache     // what it was resized to; nil: it was not
}

// shared is what a cache has in common with those that it is resized to.
type shared struct {
	seed  maphash.Seed
	epoch time.Time    // zero of the stored times
	slept atomic.Int64 // suspends since then, in ns, which [time.Time] does not count

	dueHits      atomic.Uint32 // Prefetch.Hits
	dueRemaining atomic.Uint32 // Prefetch.Remaining in parts of dueUnit
	staleTTL     atomic.Uint32 // Stale.TTL in seconds
	staleFor     atomic.Int64  // Stale.For

	owners owners
}

// dueUnit is the precision of Prefetch.Remaining.
const dueUnit = 1 << 16

// maxHits is where an entry stops to count.
const maxHits = 1<<16 - 1

// New makes an empty cache. Memory is reserved at once and used as it fills.
func New(cfg Config, now time.Time) (*Cache, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c, err := newShared(now).build(cfg.shards())
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes: %w", cfg.Size, err)
	}
	c.SetPrefetch(cfg.Prefetch)
	c.SetStale(cfg.Stale)
	return c, nil
}

func (cfg *Config) check() error {
	if cfg.Size < MinSize {
		return fmt.Errorf("cache size %d bytes: the least is %d", cfg.Size, MinSize)
	}
	if cfg.Size > MaxSize {
		return fmt.Errorf("cache size %d bytes: the most is %d", cfg.Size, int64(MaxSize))
	}
	return nil
}

// pageBits are those of an offset in a page of memory.
const pageBits = 12

// shards is how many shards make a cache of this size, and the bytes of each: an odd
// number of pages. They lie side by side, and with a power of two between them the same
// page of each would compete with the others for one place in the CPU's translation
// buffer, which costs a lookup a sixth of its time.
func (cfg *Config) shards() (n, size int) {
	n = min(maxShards, 1<<(bits.Len64(uint64(cfg.Size/MinSize))-1))
	pages := int((cfg.Size-ownersLen)/int64(n)) >> pageBits
	return n, (pages - 1 + pages&1) << pageBits
}

func newShared(epoch time.Time) *shared {
	sh := &shared{seed: maphash.MakeSeed(), epoch: epoch}
	sh.owners.init()
	return sh
}

// build makes an empty cache of n shards, a power of two, of size bytes each.
func (sh *shared) build(n, size int) (*Cache, error) {
	c := &Cache{shared: sh, shards: make([]*shard, n)}
	for i := range c.shards {
		s, err := newShard(sh, size)
		if err != nil {
			return nil, err
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

// at is a moment as entries have it.
func (sh *shared) at(now time.Time) int64 { return int64(now.Sub(sh.epoch)) + sh.slept.Load() }

// Slept adds the length of a suspend to the age of every entry: the monotonic clock of [time.Time] stands still in one
// (CLOCK_MONOTONIC). What upstream was asked before counts as asked before every event then.
func (c *Cache) Slept(d time.Duration) {
	for i := range c.owners {
		moment := &c.owners[i]
		for last := moment.Load(); last != math.MinInt64 && !moment.CompareAndSwap(last, last+int64(d)); {
			last = moment.Load()
		}
	}
	c.slept.Add(int64(d))
}

// lock gives the shard with the low bits of a name's hash, locked, of the cache that c
// has become.
func (c *Cache) lock(low uint64) *shard {
	for {
		s := c.shards[low&uint64(len(c.shards)-1)]
		s.mu.Lock()
		if s.next == nil {
			return s
		}
		c = s.next
		s.mu.Unlock()
	}
}

// visit calls f for each shard, locked, of c or of the cache that it has become.
func (c *Cache) visit(f func(*shard)) {
	for c != nil {
		var next *Cache
		for _, s := range c.shards {
			s.mu.Lock()
			if s.next == nil {
				f(s)
			} else {
				next = s.next
			}
			s.mu.Unlock()
		}
		c = next
	}
}
