// SPDX-License-Identifier: Apache-2.0

package cache

import "time"

// Observe registers changed, which is called when the answers of a name may change, before an answer is replaced, and with nil
// after the answers of many names changed. The expiry of an answer is no change. changed must be quick and must not keep name. A
// nil function removes it.
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

// Validity returns how long Lookup will return the same fresh answer to the question of key: its age, and the time until it
// expires or must be refreshed. It returns false without a fresh answer.
func (c *Cache) Validity(key []byte, now time.Time) (age, left time.Duration, ok bool) {
	k, at := c.key(key), c.nanos(now)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	e, found := s.selectEntry(&k, at)
	if found != Fresh {
		return 0, 0, false
	}
	left = time.Duration(e.end() - at)
	due := time.Duration(float64(e.lifetime()) * float64(s.prefetchRemaining.Load()) / prefetchUnit)
	if s.prefetchHits.Load() != 0 && e[offFlags]&flagPrefetched == 0 && left > due {
		left -= due
	}
	return time.Duration(at - e.stored()), left, true
}

// AddHits counts n uses of the answer to the question of key, which were answered from a copy of it.
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
