// SPDX-License-Identifier: Apache-2.0

package cache

import "bytes"

// Remove takes out what is stored under key, and the denial of its name.
func (c *Cache) Remove(key []byte) {
	k := c.key(key)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	for _, rrtype := range [...]uint16{k.rrtype, denied} {
		if s.remove(&k, rrtype) {
			s.stats.Removed++
		}
	}
}

// Flush takes out everything whose name is zone or below it, and returns how much.
// The zone is canonical and in wire form; the root's is everything.
func (c *Cache) Flush(zone []byte) (n int) {
	c.visit(func(s *shard) {
		n += s.flush(func(name []byte) bool { return isWithin(name, zone) })
	})
	return n
}

// FlushName takes out everything stored for name, which is canonical and in wire form,
// and returns how much.
func (c *Cache) FlushName(name []byte) int {
	k := c.denialKey(name, nil)
	s := c.lock(k.low)
	defer s.mu.Unlock()
	return s.flush(func(other []byte) bool { return bytes.Equal(name, other) })
}

// flush takes out every entry whose name fits.
func (s *shard) flush(fits func(name []byte) bool) (n int) {
	s.each(func(off int, e entry, _ bool) {
		if fits(e.name()) {
			s.drop(off, e)
			n++
		}
	})
	s.stats.Removed += uint64(n)
	if s.index.count == 0 { // the logs are as new: nothing has to wait for the tail
		s.small, s.main = newRing(s.small.base, s.small.size), newRing(s.main.base, s.main.size)
	}
	return n
}

// remove takes out what is stored under k, with rrtype in place of its own type, and
// tells whether there was something.
func (s *shard) remove(k *key, rrtype uint16) bool {
	e, off, ok := s.find(k, rrtype)
	if ok {
		s.drop(off, e)
	}
	return ok
}

// drop makes the entry at off one that waits for the tail.
func (s *shard) drop(off int, e entry) {
	e[offFlags] |= flagDead
	s.index.remove(e.hash(), off)
	s.live -= e.size()
}

// isWithin tells whether name is zone or below it.
func isWithin(name, zone []byte) bool {
	for len(name) > len(zone) {
		name = name[1+int(name[0]):]
	}
	return bytes.Equal(name, zone)
}
