// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// NewTiny returns a cache of n shards, a power of two, of size bytes each. That may be less than New
// allows, so that the logs wrap after a few answers.
func NewTiny(size, n int, epoch time.Time) (*Cache, error) {
	return newShared(epoch).build(n, size)
}

// ResizeTiny is Resize with the shards of NewTiny.
func (c *Cache) ResizeTiny(size, n int, now time.Time) (*Cache, error) {
	return c.resize(n, size, now)
}

// Holds reports whether key itself is stored, whatever its age. It counts no use.
func (c *Cache) Holds(key []byte) bool {
	_, ok := c.held(key)
	return ok
}

// InMain reports whether key is stored in a main log.
func (c *Cache) InMain(key []byte) bool {
	main, ok := c.held(key)
	return ok && main
}

func (c *Cache) held(key []byte) (main, ok bool) {
	k := c.key(key)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	_, off, ok := s.find(&k, k.rrtype)
	return off >= s.main.base, ok
}

// Tag returns the tag of an owner. Owners may share a tag.
func (c *Cache) Tag(owner []byte) uint16 { return c.tag(owner) }

// Shards returns the number of shards.
func (c *Cache) Shards() int { return len(c.shards) }

// Released counts the shards whose memory was freed.
func (c *Cache) Released() (n int) {
	for _, s := range c.shards {
		s.mu.Lock()
		if s.successor != nil && s.arena == nil {
			n++
		}
		s.mu.Unlock()
	}
	return n
}

// Fits reports whether a fits a shard.
func (c *Cache) Fits(key []byte, a *Answer) bool {
	k := c.key(key)
	s := c.lockShard(k.shardBits)
	defer s.mu.Unlock()
	return entrySize(len(k.tail()), len(a.TTLs), len(a.Msg)) <= s.main.size/4
}

// Check verifies the invariants of logs, index and counters.
func (c *Cache) Check() error {
	var errs []error
	c.eachShard(func(s *shard) { errs = append(errs, s.check()) })
	return errors.Join(errs...)
}

func (s *shard) check() error { return s.checkBy(s.key) }

// checkBy is check with another hash function for keys.
func (s *shard) checkBy(keyOf func(raw []byte) key) error {
	seen := map[string]bool{}
	count, live := 0, 0
	visit := func(off int) error {
		e := s.entryAt(off)
		if e.dead() {
			if n := s.index.slotsOf(off); n != 0 {
				return fmt.Errorf("dead entry at %d is in %d index slots", off, n)
			}
			return nil
		}
		count++
		live += e.size()
		return s.checkEntry(off, e, seen, keyOf)
	}
	if err := errors.Join(s.small.check(s, visit), s.main.check(s, visit)); err != nil {
		return err
	}
	filled := 0
	for _, slot := range s.index.slots {
		if slot != 0 {
			filled++
		}
	}
	switch {
	case s.small.base != 0 || s.main.base != s.small.size || s.main.base+s.main.size != len(s.arena):
		return errors.New("the logs do not share the arena")
	case count != s.index.count || count != filled:
		return fmt.Errorf("%d live entries, index counts %d and holds %d", count, s.index.count, filled)
	case live != s.liveBytes || live > len(s.arena):
		return fmt.Errorf("%d live bytes in an arena of %d, counted %d", live, len(s.arena), s.liveBytes)
	case count > s.index.maxCount || s.index.maxCount >= len(s.index.slots):
		return fmt.Errorf("%d entries in %d slots, at most %d", count, len(s.index.slots), s.index.maxCount)
	}
	return nil
}

// checkEntry checks that the index has the live entry at off exactly once.
func (s *shard) checkEntry(off int, e entry, seen map[string]bool, keyOf func(raw []byte) key) error {
	if n := s.index.slotsOf(off); n != 1 {
		return fmt.Errorf("live entry at %d is in %d index slots", off, n)
	}
	raw := e.key()
	if seen[string(raw)] {
		return fmt.Errorf("two live entries under %x", raw)
	}
	seen[string(raw)] = true
	k := keyOf(raw)
	if _, at, ok := s.find(&k, k.rrtype); !ok || at != off {
		return fmt.Errorf("entry at %d is found at %d (%t) under its own key", off, at, ok)
	}
	if denial := e[offFlags]&flagDenial != 0; denial != (k.rrtype == denialType) {
		return fmt.Errorf("entry at %d denies its name (%t) and has the type %d", off, denial, k.rrtype)
	}
	if e[offFreq] > maxFreq {
		return fmt.Errorf("entry at %d has the count %d", off, e[offFreq])
	}
	return nil
}

// key returns the key of the entry.
func (e entry) key() []byte {
	key := append([]byte(nil), e.name()...)
	key = binary.BigEndian.AppendUint16(key, e.rrtype())
	return append(key, e.tail()...)
}

// slotsOf counts the index slots of off.
func (x *index) slotsOf(off int) int {
	n := 0
	for _, slot := range x.slots {
		if slot != 0 && int(slot&0xffffffff-1)<<3 == off {
			n++
		}
	}
	return n
}

// check visits every entry from the log's tail to its head.
func (r *ring) check(s *shard, visit func(off int) error) error {
	end := r.base + r.size
	parts := [][2]int{{r.tail, r.head}}
	if r.wrapped {
		parts = [][2]int{{r.tail, r.gap}, {r.base, r.head}}
		if r.head > r.tail || r.tail >= r.gap || r.gap > end || !r.filled {
			return fmt.Errorf("wrapped log is out of order: %+v", *r)
		}
	}
	if r.tail < r.base || r.tail > end || r.head < r.base || r.head > end || !r.wrapped && r.tail > r.head {
		return fmt.Errorf("log is out of order: %+v", *r)
	}
	if r.empty() && r.head != r.base {
		return fmt.Errorf("empty log is not at its base: %+v", *r)
	}
	for _, part := range parts {
		off := part[0]
		for off < part[1] {
			size := s.entryAt(off).size()
			if size < headerLen || size%8 != 0 || off%8 != 0 {
				return fmt.Errorf("entry of %d bytes at %d", size, off)
			}
			if err := visit(off); err != nil {
				return err
			}
			off += size
		}
		if off != part[1] {
			return fmt.Errorf("entries end at %d, not at %d: %+v", off, part[1], *r)
		}
	}
	return nil
}
