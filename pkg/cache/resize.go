// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Resize returns a cache of another size with the usable answers of c, the most valuable ones if not
// all fit. Callers that still use c are redirected to the new cache, shard by shard, while the answers
// move. Resize frees a shard's memory as soon as it is empty, so that the two caches are never in
// memory completely. A caller that needs a shard waits some milliseconds while its answers move.
//
// When Resize returns, c is empty and forwards everything to the new cache. After an error c is
// unchanged.
func (c *Cache) Resize(cfg Config, now time.Time) (*Cache, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n, size := cfg.shards()
	d, err := c.resize(n, size, now)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes: %w", cfg.Size, err)
	}
	d.SetPrefetch(cfg.Prefetch)
	d.SetServeStale(cfg.ServeStale)
	return d, nil
}

func (c *Cache) resize(n, size int, now time.Time) (*Cache, error) {
	c.resizing.Lock()
	defer c.resizing.Unlock()
	if c.successor != nil {
		return c.successor.resize(n, size, now)
	}
	d, err := c.build(n, size)
	if err != nil {
		return nil, err
	}
	groups := min(len(c.shards), len(d.shards))
	for i := range groups {
		m := migration{from: everyNth(c.shards, i, groups), to: everyNth(d.shards, i, groups), next: d, at: c.nanos(now)}
		m.run()
	}
	c.successor = d
	return d, nil
}

// everyNth returns each step-th shard from the first.
func everyNth(shards []*shard, first, step int) (part []*shard) {
	for i := first; i < len(shards); i += step {
		part = append(part, shards[i])
	}
	return part
}

// A migration moves the entries of some shards to the shards of the next cache with the same hash
// bits. Other goroutines cannot reach those before the old shards are empty. Either from or to has one
// element.
type migration struct {
	from, to []*shard
	next     *Cache // the cache of to
	at       int64
}

// worthClasses is the number of worth classes.
const worthClasses = 2*maxFreq + 2

// worthClass ranks the entries to move, from unused to most used. The lowest class is stale entries
// that were not used since they expired.
func (e entry) worthClass(state Freshness, inMain bool) int {
	if state == Stale && e[offFlags]&flagStaleUsed == 0 {
		return 0
	}
	w := int(e[offFreq]) + int(min(e.hits(), maxFreq))
	if inMain {
		w++
	}
	return w
}

// run moves the entries. If all fit it keeps the order of the logs. Otherwise it leaves out the least
// valuable ones and moves the others in ascending order of worth, because a log evicts first what was
// written first.
func (m *migration) run() {
	for _, s := range slices.Concat(m.from, m.to) {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	room := 0
	for _, t := range m.to {
		t.now = m.at
		room += t.small.size + t.main.size
	}
	var have [worthClasses]int
	total := 0
	for _, s := range m.from {
		m.each(s, func(e entry, _ bool, worth int) {
			have[worth] += e.size()
			total += e.size()
		})
	}
	if total <= room {
		for _, s := range m.from {
			m.each(s, func(e entry, inMain bool, _ int) { m.moveEntry(e, inMain) })
		}
	} else {
		m.moveMostValuable(&have, room)
	}
	for _, s := range m.from {
		s.release(m.next)
	}
}

// moveMostValuable moves the most valuable entries that fit into room. have is the bytes per class.
func (m *migration) moveMostValuable(have *[worthClasses]int, room int) {
	least := worthClasses - 1 // the class of which only a part fits
	for have[least] <= room {
		room -= have[least]
		least--
	}
	for class := range worthClasses {
		for _, s := range m.from {
			leftOut := 0 // bytes of the class to leave out, oldest first
			switch {
			case class < least:
				leftOut = math.MaxInt
			case class == least:
				mine := m.classBytes(s, class)
				leftOut = mine - int(float64(mine)*float64(room)/float64(have[least]))
			}
			m.each(s, func(e entry, inMain bool, worth int) {
				switch {
				case worth != class:
				case leftOut > 0:
					leftOut -= e.size()
					m.target(e).stats.Evictions++
				default:
					m.moveEntry(e, inMain)
				}
			})
		}
	}
}

// classBytes returns the bytes of a class in s.
func (m *migration) classBytes(s *shard, class int) (n int) {
	m.each(s, func(e entry, _ bool, worth int) {
		if worth == class {
			n += e.size()
		}
	})
	return n
}

// each calls f for the usable entries of s.
func (m *migration) each(s *shard, f func(e entry, inMain bool, worth int)) {
	s.each(func(_ int, e entry, inMain bool) {
		if state := s.state(e, m.at); state != Absent {
			f(e, inMain, e.worthClass(state, inMain))
		}
	})
}

// target returns the shard that e moves to.
func (m *migration) target(e entry) *shard {
	return m.next.shards[e.hash()&uint64(len(m.next.shards)-1)]
}

func (m *migration) moveEntry(e entry, inMain bool) { m.target(e).addMoved(e, inMain) }

// addMoved stores a copy of an entry of another cache. The caller does so once per entry. An entry
// from a main log goes to the main log while that has room, otherwise to the small log, whose used
// entries survive.
func (s *shard) addMoved(e entry, inMain bool) {
	size := e.size()
	if size > s.main.size/4 {
		s.stats.Evictions++
		return
	}
	for s.index.count >= s.index.maxCount {
		s.evict()
	}
	off, ok := 0, false
	if toMain := inMain || e[offFreq] > 0; toMain || size > s.small.size/2 {
		off, ok = s.main.reserve(size)
	}
	if !ok {
		off, _ = s.allocate(e.hash(), size, false)
	}
	copy(s.arena[off:], e)
	s.index.add(e.hash(), off)
	s.liveBytes += size
}

// release frees the memory of s, whose entries have moved to next.
func (s *shard) release(next *Cache) {
	s.successor = next
	s.unmap.Stop()
	_ = unix.Munmap(s.mapped) // cannot fail for a mapping of this process
	s.mapped, s.arena, s.index, s.ghosts, s.spare, s.liveBytes = nil, nil, index{}, nil, nil, 0
}
