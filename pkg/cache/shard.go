// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bytesPerSlot = 112 // of the budget: the least there is, an A record of a short name, has some 100
	smallPart    = 10  // the small log is a tenth, as in the S3-FIFO paper
	maxChances   = 64  // second chances one insertion may give: bounds the time under the lock
)

// A shard is a part of the cache with its own lock.
type shard struct {
	mu sync.Mutex // guards all below

	arena []byte // both logs
	small ring
	main  ring
	index index
	// ghosts remembers what left the small log unasked for, by hash: an answer
	// that comes back while it is remembered goes straight to the main log. New
	// ghosts overwrite old ones.
	ghosts []uint32
	now    int64 // moment of the operation under way, ns since the epoch
	live   int   // bytes of entries that can be found
	spare  entry // copy of an entry on its way from the small log to the main one
	stats  Stats
}

func newShard(size int) (*shard, error) {
	slots := size / bytesPerSlot
	s := &shard{index: newIndex(slots), ghosts: make([]uint32, slots)}
	logs := (size - s.fixed()) &^ 7
	arena, err := unix.Mmap(-1, 0, logs, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	// A reader may still be in a shard whose cache was replaced; the memory goes
	// when nobody can reach the shard any more.
	runtime.AddCleanup(s, func(m []byte) { _ = unix.Munmap(m) }, arena)
	s.arena = arena
	small := logs / smallPart &^ 7
	s.small = newRing(0, small)
	s.main = newRing(small, logs-small)
	return s, nil
}

// fixed is the bytes of index and ghosts.
func (s *shard) fixed() int { return 8*len(s.index.slots) + 4*len(s.ghosts) }

func (s *shard) at(off int) entry {
	e := entry(s.arena[off:])
	return e[:e.size()]
}

// find gives the entry stored under key and its offset.
func (s *shard) find(hash uint64, key []byte) (entry, int, bool) {
	for pos := s.index.home(hash); ; {
		var off int
		if off, pos = s.index.next(hash, pos); off < 0 {
			return nil, 0, false
		}
		if e := s.at(off); e.holds(key) {
			return e, off, true
		}
	}
}

// store puts an answer in place of what is there under key.
func (s *shard) store(hash uint64, key []byte, a *Answer, flags byte, at int64) {
	s.now = at
	shared := sharedLen(a.Msg)
	tail := len(key) - shared
	size := entrySize(tail, len(a.TTLs), len(a.Msg))
	if size > s.main.size/4 || tail > maxTail || a.Life < time.Second {
		s.stats.Rejected++
		return
	}
	s.stats.Insertions++
	freq := byte(0)
	if old, off, ok := s.find(hash, key); ok {
		if old.size() >= size && old.size() <= 2*size {
			// In its place, even where that leaves some bytes unused: at the
			// log's head it would push another answer out.
			freq = old[offFreq]
			old.fill(hash, key, shared, a, flags, at)
			old[offFreq] = freq
			return
		}
		freq = old[offFreq]
		old[offFlags] |= flagDead
		s.index.remove(hash, off)
		s.live -= old.size()
	}
	for s.index.count >= s.index.most {
		s.evict()
	}
	off, log := s.place(hash, size, freq > 0)
	e := entry(s.arena[off : off+size])
	e.fill(hash, key, shared, a, flags, at)
	if log == &s.main && freq > 0 {
		e[offFreq] = freq - 1
	}
	s.index.add(hash, off)
	s.live += size
}

// add puts a copy of an entry of another cache in. The caller adds none twice. A
// proven one was in the main log there and goes to the main log here.
func (s *shard) add(e entry, proven bool) {
	if e.size() > s.main.size/4 {
		return
	}
	for s.index.count >= s.index.most {
		s.evict()
	}
	off, _ := s.place(e.hash(), e.size(), proven || e[offFreq] > 0)
	copy(s.arena[off:], e)
	s.index.add(e.hash(), off)
	s.live += e.size()
}

// place frees and reserves size bytes: in the main log for an answer that has
// shown its worth or would crowd the small log, else in the small one.
func (s *shard) place(hash uint64, size int, worthy bool) (int, *ring) {
	log := &s.small
	ghost := &s.ghosts[s.index.home(hash)]
	known := *ghost == uint32(hash)|1
	if known {
		*ghost = 0 // another's ghost stays
	}
	if worthy || known || size > s.small.size/2 {
		log = &s.main
	}
	for {
		if off, ok := log.reserve(size); ok {
			return off, log
		}
		if log == &s.small {
			s.evictSmall()
		} else {
			s.evictMain()
		}
	}
}

// evict makes room in the index by one entry or more.
func (s *shard) evict() {
	if !s.small.empty() {
		s.evictSmall()
	} else {
		s.evictMain()
	}
}

// evictSmall frees the small log's tail: what was asked for goes on to the main
// log, and so does all the rest while that has never been full; then what nobody
// asked for is remembered as a ghost.
func (s *shard) evictSmall() {
	off := s.small.tail
	e := s.at(off)
	switch {
	case e.dead():
		s.small.free(e.size())
	case s.now >= e.end():
		s.forget(off, e)
		s.small.free(e.size())
	case e[offFreq] > 0:
		s.spare = append(s.spare[:0], e...)
		s.small.free(e.size())
		to, _ := s.place(e.hash(), len(s.spare), true)
		s.moveTo(off, to)
	case !s.main.filled && s.settle(off, e):
	default:
		s.ghosts[s.index.home(e.hash())] = uint32(e.hash()) | 1
		s.forget(off, e)
		s.small.free(e.size())
	}
}

// settle moves the small log's tail entry to room in the main log that was never
// used, if there is some left.
func (s *shard) settle(off int, e entry) bool {
	to, ok := s.main.reserve(e.size())
	if !ok {
		return false
	}
	s.spare = append(s.spare[:0], e...)
	s.small.free(e.size())
	s.moveTo(off, to)
	return true
}

// moveTo makes the spare copy the entry at to, which was found at off.
func (s *shard) moveTo(off, to int) {
	copy(s.arena[to:], s.spare)
	e := s.at(to)
	e[offFreq] = 0
	s.index.move(e.hash(), off, to)
}

// evictMain frees the main log's tail for good, after giving what was asked for
// since its last turn another one at the head.
func (s *shard) evictMain() {
	for chances := maxChances; ; chances-- {
		off := s.main.tail
		e := s.at(off)
		if e.dead() {
			s.main.free(e.size())
			return
		}
		if chances == 0 || e[offFreq] == 0 || s.now >= e.end() {
			s.forget(off, e)
			s.main.free(e.size())
			return
		}
		s.secondChance(off, e)
	}
}

// secondChance moves the main log's tail entry to its head. There is room: the
// head is never past the tail's new place by more than the bytes just freed.
func (s *shard) secondChance(off int, e entry) {
	size := e.size()
	s.main.free(size)
	to, _ := s.main.reserve(size)
	copy(s.arena[to:], e) // the two may overlap
	e = s.at(to)
	e[offFreq]--
	s.index.move(e.hash(), off, to)
}

// each calls f for every entry that can be found: those of the small log, then
// those of the main log, which are proven, each from tail to head.
func (s *shard) each(f func(e entry, proven bool)) {
	for _, log := range []*ring{&s.small, &s.main} {
		for off, wrapped := log.tail, log.wrapped; wrapped || off < log.head; {
			e := s.at(off)
			if !e.dead() {
				f(e, log == &s.main)
			}
			if off += e.size(); wrapped && off == log.gap {
				off, wrapped = log.base, false
			}
		}
	}
}

// forget takes the entry at off out of the index and counts why it went.
func (s *shard) forget(off int, e entry) {
	if s.now < e.end() {
		s.stats.Evictions++
	} else {
		s.stats.Expirations++
	}
	s.index.remove(e.hash(), off)
	s.live -= e.size()
}
