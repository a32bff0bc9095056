// SPDX-License-Identifier: Apache-2.0

package cache

// Stats is the sum over all shards, since the cache was made. Hits, Misses and
// Insertions count calls, Expired the misses that found an answer past its time.
type Stats struct {
	Hits, Misses, Expired uint64
	Insertions            uint64
	Evictions             uint64 // answers that could still be used and had to go
	Expirations           uint64 // answers past their time, or their owner's, whose bytes were freed
	Rejected              uint64 // answers that no shard can hold
	Stale                 uint64 // answers given past their time; neither hits nor misses
	Cut                   uint64 // answers of LookupCut, each after a miss
	Invalidated           uint64 // misses that found an answer older than its owner's last event
	Outdated              uint64 // answers left out because their owner changed too lately
	Removed               uint64 // answers taken out by Remove, Flush and FlushName
	Entries               int64
	Bytes                 int64 // what the entries take, headers included
	Fixed                 int64 // what indices, ghosts and owners take
	Capacity              int64 // the budget
}

// Stats sums up the shards, each under its own lock.
func (c *Cache) Stats() Stats {
	sum := Stats{Fixed: ownersLen, Capacity: ownersLen}
	c.visit(func(s *shard) {
		sum.Hits += s.stats.Hits
		sum.Misses += s.stats.Misses
		sum.Expired += s.stats.Expired
		sum.Insertions += s.stats.Insertions
		sum.Evictions += s.stats.Evictions
		sum.Expirations += s.stats.Expirations
		sum.Rejected += s.stats.Rejected
		sum.Stale += s.stats.Stale
		sum.Cut += s.stats.Cut
		sum.Invalidated += s.stats.Invalidated
		sum.Outdated += s.stats.Outdated
		sum.Removed += s.stats.Removed
		sum.Entries += int64(s.index.count)
		sum.Bytes += int64(s.live)
		sum.Fixed += int64(s.fixed())
		sum.Capacity += int64(s.fixed() + len(s.arena))
	})
	return sum
}
