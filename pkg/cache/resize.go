// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Resized makes a cache of another size with the answers of c that may still be used,
// the ones of most worth if not all fit. Nothing is lost by those who still use c: it
// leads them on to the new cache, shard by shard as the answers move. The memory of a
// shard is given back as soon as it is empty, so that the two never stand in memory
// whole. Whoever is at a shard waits while its answers move, some milliseconds.
//
// A caller must be sure of the new size: c has nothing any more when it returns, and
// has become the new cache for all that it is used for. After an error c is as it was.
func (c *Cache) Resized(cfg Config, now time.Time) (*Cache, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n, size := cfg.shards()
	d, err := c.resized(n, size, now)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes: %w", cfg.Size, err)
	}
	d.SetPrefetch(cfg.Prefetch)
	d.SetStale(cfg.Stale)
	return d, nil
}

func (c *Cache) resized(n, size int, now time.Time) (*Cache, error) {
	c.resizing.Lock()
	defer c.resizing.Unlock()
	if c.next != nil {
		return c.next.resized(n, size, now)
	}
	d, err := c.build(n, size)
	if err != nil {
		return nil, err
	}
	groups := min(len(c.shards), len(d.shards))
	for i := range groups {
		m := move{from: every(c.shards, i, groups), to: every(d.shards, i, groups), next: d, at: c.at(now)}
		m.run()
	}
	c.next = d
	return d, nil
}

// every gives each step-th shard from the first.
func every(shards []*shard, first, step int) (part []*shard) {
	for i := first; i < len(shards); i += step {
		part = append(part, shards[i])
	}
	return part
}

// A move takes the entries of some shards to those of another cache that their keys
// choose there. Nobody knows of these before the former are empty. Of one kind there is
// one only.
type move struct {
	from, to []*shard
	next     *Cache // has to
	at       int64
}

// worths is how many classes of worth there are.
const worths = 2*maxFreq + 2

// worth is the class of an entry among those that are moved, from what was never asked
// for to what is asked for all the time. What is past its time, and was not asked for
// since, is the least.
func (e entry) worth(state Freshness, proven bool) int {
	if state == Late && e[offFlags]&flagAsked == 0 {
		return 0
	}
	w := int(e[offFreq]) + int(min(e.hits(), maxFreq))
	if proven {
		w++
	}
	return w
}

// run moves the entries. What fits goes in the order of the logs. If not all does, the
// least worthy are left out, and the others go in the order of their worth: a log loses
// first what was written first.
func (m *move) run() {
	for _, s := range slices.Concat(m.from, m.to) {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	room := 0
	for _, t := range m.to {
		t.now = m.at
		room += t.small.size + t.main.size
	}
	var have [worths]int
	total := 0
	for _, s := range m.from {
		m.each(s, func(e entry, _ bool, worth int) {
			have[worth] += e.size()
			total += e.size()
		})
	}
	if total <= room {
		for _, s := range m.from {
			m.each(s, func(e entry, proven bool, _ int) { m.take(e, proven) })
		}
	} else {
		m.best(&have, room)
	}
	for _, s := range m.from {
		s.empty(m.next)
	}
}

// best moves the entries of most worth of those there are in bytes, by class, that
// the room has space for.
func (m *move) best(have *[worths]int, room int) {
	least := worths - 1 // the class of which not all fits
	for have[least] <= room {
		room -= have[least]
		least--
	}
	for class := range worths {
		for _, s := range m.from {
			without := 0 // bytes of the class that are left out, the oldest
			switch {
			case class < least:
				without = math.MaxInt
			case class == least:
				mine := m.bytes(s, class)
				without = mine - int(float64(mine)*float64(room)/float64(have[least]))
			}
			m.each(s, func(e entry, proven bool, worth int) {
				switch {
				case worth != class:
				case without > 0:
					without -= e.size()
					m.target(e).stats.Evictions++
				default:
					m.take(e, proven)
				}
			})
		}
	}
}

// bytes is how much of a class s has.
func (m *move) bytes(s *shard, class int) (n int) {
	m.each(s, func(e entry, _ bool, worth int) {
		if worth == class {
			n += e.size()
		}
	})
	return n
}

// each calls f for the entries of s that may still be given.
func (m *move) each(s *shard, f func(e entry, proven bool, worth int)) {
	s.each(func(_ int, e entry, proven bool) {
		if state := s.state(e, m.at); state != Absent {
			f(e, proven, e.worth(state, proven))
		}
	})
}

// target is the shard that e goes to.
func (m *move) target(e entry) *shard {
	return m.next.shards[e.hash()&uint64(len(m.next.shards)-1)]
}

func (m *move) take(e entry, proven bool) { m.target(e).add(e, proven) }

// add puts a copy of an entry of another cache in, which the caller does once for each.
// A proven one was in the main log there and goes to the main log here, as long as it
// has room. Then the small one takes it, where what is asked for is kept.
func (s *shard) add(e entry, proven bool) {
	size := e.size()
	if size > s.main.size/4 {
		s.stats.Evictions++
		return
	}
	for s.index.count >= s.index.most {
		s.evict()
	}
	off, ok := 0, false
	if worthy := proven || e[offFreq] > 0; worthy || size > s.small.size/2 {
		off, ok = s.main.reserve(size)
	}
	if !ok {
		off, _ = s.place(e.hash(), size, false)
	}
	copy(s.arena[off:], e)
	s.index.add(e.hash(), off)
	s.live += size
}

// empty gives the memory of s back, whose entries have gone to next.
func (s *shard) empty(next *Cache) {
	s.next = next
	s.unmap.Stop()
	_ = unix.Munmap(s.mapped) // what was mapped can be unmapped
	s.mapped, s.arena, s.index, s.ghosts, s.spare, s.live = nil, nil, index{}, nil, nil, 0
}
