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

// MinSize is the smallest budget in bytes: one shard that can hold the largest answer.
const MinSize = 1 << 20

// MaxSize is the largest budget in bytes. The offsets of an index can address twice as much.
const MaxSize = 1 << 40

// maxShards bounds the number of shards. With 64, two CPUs contend for a lock in one of 64 lookups.
const maxShards = 64

// Config configures a Cache.
type Config struct {
	Size       int64      // bytes in total, MinSize to MaxSize
	Prefetch   Prefetch   // zero: no prefetching
	ServeStale ServeStale // zero: no stale answers
}

// Prefetch says when an answer is refreshed before it expires.
type Prefetch struct {
	Hits      int     // minimum uses of the answer since it was stored, 65535 at most; 0: no prefetching
	Remaining float64 // maximum remaining part of its lifetime, 0 to 1
}

// A Cache is safe for concurrent use.
type Cache struct {
	*shared

	shards []*shard

	resizing  sync.Mutex // guards successor, and serializes calls of Resize
	successor *Cache     // the resized cache that replaced this one; nil: none
}

// shared is the state that a cache has in common with its successors.
type shared struct {
	seed      maphash.Seed
	epoch     time.Time    // origin of stored times
	suspended atomic.Int64 // ns that the machine was suspended since epoch; [time.Time] does not count them

	prefetchHits      atomic.Uint32 // Prefetch.Hits
	prefetchRemaining atomic.Uint32 // Prefetch.Remaining in parts of prefetchUnit
	staleTTL          atomic.Uint32 // ServeStale.TTL in seconds
	staleWindow       atomic.Int64  // ServeStale.Window

	pinned       atomic.Pointer[pins] // see pinned.go; nil: none
	pinnedWindow atomic.Int64         // how long after its expiry a pinned answer may be used, in ns

	changed atomic.Pointer[func(name []byte)] // see Observe; nil: none

	vouched, vouchedDenials atomic.Int64 // time of the last Vouch, and of the last one for denials, in ns since the epoch

	// owners holds the time of each owner's last change, in ns since the epoch, by the hash of its
	// name. Readers take no lock.
	owners [ownerSlots]atomic.Int64
}

// prefetchUnit is the precision of Prefetch.Remaining.
const prefetchUnit = 1 << 16

// maxHits is the largest hit count of an entry.
const maxHits = 1<<16 - 1

// New returns an empty cache. It reserves the memory at once; the kernel backs it as it fills.
func New(cfg Config, now time.Time) (*Cache, error) {
	n, size, err := shardsOf(cfg.Size)
	if err != nil {
		return nil, err
	}
	c, err := newShared(now).build(n, size)
	if err != nil {
		return nil, err
	}
	c.SetPrefetch(cfg.Prefetch)
	c.SetServeStale(cfg.ServeStale)
	return c, nil
}

// pageBits is the number of offset bits within a memory page.
const pageBits = 12

// shardsOf returns the number of shards of a cache and the size of each in bytes: an odd number of
// pages. Shards are adjacent in memory. With a power of two as their distance, the same page of each
// would compete for one TLB set, which costs a lookup a sixth of its time.
func shardsOf(budget int64) (n, size int, err error) {
	if budget < MinSize {
		return 0, 0, fmt.Errorf("cache size %d bytes is below the minimum of %d", budget, MinSize)
	}
	if budget > MaxSize {
		return 0, 0, fmt.Errorf("cache size %d bytes is above the maximum of %d", budget, int64(MaxSize))
	}
	n = min(maxShards, 1<<(bits.Len64(uint64(budget/MinSize))-1))
	pages := int((budget-ownersLen)/int64(n)) >> pageBits
	return n, (pages - 1 + pages&1) << pageBits, nil
}

func newShared(epoch time.Time) *shared {
	sh := &shared{seed: maphash.MakeSeed(), epoch: epoch}
	for i := range sh.owners {
		sh.owners[i].Store(math.MinInt64)
	}
	sh.vouched.Store(longAgo)
	sh.vouchedDenials.Store(longAgo)
	return sh
}

// build returns an empty cache of n shards, a power of two, of size bytes each.
func (sh *shared) build(n, size int) (*Cache, error) {
	c := &Cache{shared: sh, shards: make([]*shard, n)}
	for i := range c.shards {
		s, err := newShard(sh, size)
		if err != nil {
			return nil, fmt.Errorf("reserving %d bytes: %w", n*size, err)
		}
		c.shards[i] = s
	}
	return c, nil
}

// AddSuspend adds the length d of a suspend to the age of every entry, because the monotonic clock of
// [time.Time] (CLOCK_MONOTONIC) stops during a suspend. Stored answers that were queried less than d
// after their owner's last change count as older than the change.
func (c *Cache) AddSuspend(d time.Duration) {
	for i := range c.owners {
		c.owners[i].Add(int64(d)) // the time of an owner that never changed stays long past
	}
	c.suspended.Add(int64(d))
}

// eachShard calls f for each shard of c, locked. Where entries moved to a successor, f gets its shards instead.
func (c *Cache) eachShard(f func(*shard)) {
	for c != nil {
		var next *Cache
		for _, s := range c.shards {
			s.mu.Lock()
			if s.successor == nil {
				f(s)
			} else {
				next = s.successor
			}
			s.mu.Unlock()
		}
		c = next
	}
}

// Stats sums the counters of all shards since the cache was made. Hits, Misses and Insertions count
// calls; Expired counts the misses that found an expired answer.
type Stats struct {
	Hits, Misses, Expired uint64
	Insertions            uint64
	Evictions             uint64 // unexpired answers that were evicted; by Resize also stale ones
	Expirations           uint64 // expired or invalidated answers whose bytes were freed
	Rejected              uint64 // answers that cannot be stored, for example too large ones
	Stale                 uint64 // stale answers returned; neither hits nor misses
	NXDomainCut           uint64 // answers of LookupNXDomainCut, each after a miss
	Invalidated           uint64 // misses that found an answer older than its owner's last change
	Outdated              uint64 // answers not stored because their owner changed too recently
	Removed               uint64 // answers removed by Remove and Flush
	Entries               int64
	Bytes                 int64 // bytes of the entries, headers included
	Fixed                 int64 // bytes of indexes, ghosts and owners
	Capacity              int64 // the budget in bytes
}

// Stats sums the counters. It locks one shard at a time.
func (c *Cache) Stats() Stats {
	sum := Stats{Fixed: ownersLen, Capacity: ownersLen}
	c.eachShard(func(s *shard) {
		sum.Hits += s.stats.Hits
		sum.Misses += s.stats.Misses
		sum.Expired += s.stats.Expired
		sum.Insertions += s.stats.Insertions
		sum.Evictions += s.stats.Evictions
		sum.Expirations += s.stats.Expirations
		sum.Rejected += s.stats.Rejected
		sum.Stale += s.stats.Stale
		sum.NXDomainCut += s.stats.NXDomainCut
		sum.Invalidated += s.stats.Invalidated
		sum.Outdated += s.stats.Outdated
		sum.Removed += s.stats.Removed
		sum.Entries += int64(s.index.count)
		sum.Bytes += int64(s.liveBytes)
		sum.Fixed += int64(s.fixedBytes())
		sum.Capacity += int64(s.fixedBytes() + len(s.arena))
	})
	return sum
}

// ownerSlots is the size of the owner table. Owners that share a slot invalidate each other's answers,
// which costs an upstream query.
const ownerSlots = 4096

// propagationDelay is how long after a change of an owner an upstream may still give the old answer: its watch of the
// cluster can lag behind this agent's.
const propagationDelay = time.Second

// queryAgeUnit is the precision of an entry's query age, rounded up.
const queryAgeUnit = 100 * time.Millisecond

// ownersLen is the size of the owner table in bytes. It counts against the budget.
const ownersLen = 8 * ownerSlots

// predatesChange reports whether an answer queried at asked may predate the last change of the owner.
func (sh *shared) predatesChange(tag uint16, asked int64) bool {
	return asked < sh.owners[tag-1].Load()+int64(propagationDelay)
}

// tag returns the owner's slot plus one.
func (sh *shared) tag(owner []byte) uint16 {
	return uint16(maphash.Bytes(sh.seed, owner)%ownerSlots) + 1
}

// OwnerChanged invalidates all answers of owner. It also keeps Put from storing answers that were
// queried before now, or within propagationDelay after it.
func (c *Cache) OwnerChanged(owner []byte, now time.Time) {
	c.notify(owner)
	defer c.notify(owner)
	moment, at := &c.owners[c.tag(owner)-1], c.nanos(now)
	for {
		last := moment.Load()
		if at <= last || moment.CompareAndSwap(last, at) {
			return
		}
	}
}

// ChangedSince reports whether owner changed after since.
func (c *Cache) ChangedSince(owner []byte, since time.Time) bool {
	return c.owners[c.tag(owner)-1].Load() > c.nanos(since)
}
