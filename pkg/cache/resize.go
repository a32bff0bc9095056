// SPDX-License-Identifier: Apache-2.0

package cache

import (
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
func (c *Cache) Resize(size int64, now time.Time) (*Cache, error) {
	n, each, err := shardsOf(size)
	if err != nil {
		return nil, err
	}
	return c.resize(n, each, now)
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
		d.moveHere(everyNth(c.shards, i, groups), everyNth(d.shards, i, groups), c.nanos(now))
	}
	c.successor = d
	return d, nil
}

// everyNth returns every step-th of the shards, beginning with the one at index first.
func everyNth(shards []*shard, first, step int) (part []*shard) {
	for i := first; i < len(shards); i += step {
		part = append(part, shards[i])
	}
	return part
}

// worthClasses is the number of worth classes.
const worthClasses = 2*maxFreq + 3

// worthClass ranks entries for Resize and Dump, from unused to most used. The lowest class is stale entries
// that were not used since they expired, the highest one pinned entries.
func (e entry) worthClass(state Freshness, inMain bool) int {
	switch {
	case isPinned(e):
		return worthClasses - 1
	case state == Stale && e[offFlags]&flagStaleUsed == 0:
		return 0
	}
	w := int(e[offFreq]) + int(min(e.hits(), maxFreq))
	if inMain {
		w++
	}
	return w
}

// worthList holds the usable entries of a shard by worth, each class in the order of the logs.
type worthList [worthClasses]struct {
	small, main []entry // entries in the small and in the main log
	bytes       int
}

func (s *shard) listByWorth(at int64) (l worthList) {
	s.each(func(_ int, e entry, inMain bool) {
		state := s.state(e, at)
		if state == Absent {
			return
		}
		class := &l[e.worthClass(state, inMain)]
		class.bytes += e.size()
		if inMain {
			class.main = append(class.main, e)
		} else {
			class.small = append(class.small, e)
		}
	})
	return l
}

// moveHere moves the entries of shards of the previous cache to the shards of c with the same hash
// bits. Other goroutines reach the new shards only once the old ones are empty. Either from or to has one
// element. It leaves out the least valuable entries if not all fit, and moves the others in ascending
// order of worth, because a log evicts first what was written first.
func (c *Cache) moveHere(from, to []*shard, at int64) {
	for _, s := range slices.Concat(from, to) {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	room := 0
	for _, t := range to {
		t.now = at
		room += t.small.size + t.main.size
	}
	var have [worthClasses]int
	lists := make([]worthList, len(from))
	for i, s := range from {
		lists[i] = s.listByWorth(at)
		for class := range lists[i] {
			have[class] += lists[i][class].bytes
		}
	}
	least := worthClasses - 1 // the class of which only a part fits
	for least >= 0 && have[least] <= room {
		room -= have[least]
		least--
	}
	for class := range worthClasses {
		for i := range lists {
			leftOut := 0 // bytes of the class to leave out, oldest first
			switch mine := &lists[i][class]; {
			case class < least:
				leftOut = math.MaxInt
			case class == least:
				leftOut = mine.bytes - int(float64(mine.bytes)*float64(room)/float64(have[least]))
			}
			leftOut = c.addMoved(lists[i][class].small, false, leftOut)
			c.addMoved(lists[i][class].main, true, leftOut)
		}
	}
	for _, s := range from {
		s.release(c)
	}
}

// addMoved stores copies of entries of another cache, except the first leftOut bytes of them. It returns
// how many bytes are still to be left out.
func (c *Cache) addMoved(entries []entry, inMain bool, leftOut int) int {
	for _, e := range entries {
		s := c.shards[e.hash()&uint64(len(c.shards)-1)]
		if leftOut > 0 {
			leftOut -= e.size()
			s.stats.Evictions++
			continue
		}
		s.addMoved(e, inMain)
	}
	return leftOut
}

// addMoved stores a copy of an entry of another cache, whose key s does not have. An entry from a main
// log, or a used one, goes to the main log while that has room, and otherwise to the small log.
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
	s.place(e, off)
}

// release frees the memory of s, whose entries have moved to next.
func (s *shard) release(next *Cache) {
	s.successor = next
	s.unmap.Stop()
	_ = unix.Munmap(s.mapped) // cannot fail for a mapping of this process
	s.mapped, s.arena, s.index, s.ghosts, s.liveBytes = nil, nil, index{}, nil, 0
}
