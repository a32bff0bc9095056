// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	bytesPerSlot = 112 // of the budget: the least there is, an A record of a short name, has some 100
	smallPart    = 10  // the small log is a tenth, as in the S3-FIFO paper
	maxChances   = 64  // second chances one insertion may give: bounds the time under the lock
)

// A shard is a part of the cache with its own lock.
type shard struct {
	*shared

	mu   sync.Mutex // guards all below
	next *Cache     // where the entries are that were here; nil: they are here

	mapped []byte // all memory of the shard: arena, index and ghosts
	arena  []byte // both logs
	small  ring
	main   ring
	index  index
	// ghosts remembers what left the small log unasked for, by hash: an answer
	// that comes back while it is remembered goes straight to the main log. New
	// ghosts overwrite old ones.
	ghosts []uint32
	now    int64 // moment of the operation under way, ns since the epoch
	live   int   // bytes of entries that can be found
	spare  entry // copy of an entry on its way from the small log to the main one
	stats  Stats

	unmap runtime.Cleanup // gives the arena back
}

func newShard(sh *shared, size int) (*shard, error) {
	mapped, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	smallPages(mapped)
	s := &shard{shared: sh, mapped: mapped}
	// At the latest the memory goes when nobody can reach the shard any more.
	s.unmap = runtime.AddCleanup(s, func(m []byte) { _ = unix.Munmap(m) }, mapped)
	// On the heap, index and ghosts would count twice: the collector lets that grow
	// to double of what is in use.
	slots := size / bytesPerSlot
	s.index = newIndex(unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[0])), slots))
	s.ghosts = unsafe.Slice((*uint32)(unsafe.Pointer(&mapped[8*slots])), slots)
	s.arena = mapped[(s.fixed()+7)&^7:]
	s.arena = s.arena[:len(s.arena)&^7]
	logs := len(s.arena)
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

// find gives the entry stored under k, with rrtype in place of its own type, and its
// offset.
func (s *shard) find(k *key, rrtype uint16) (entry, int, bool) {
	hash := k.hash(rrtype)
	for pos := s.index.home(hash); ; {
		var off int
		if off, pos = s.index.next(hash, pos); off < 0 {
			return nil, 0, false
		}
		if e := s.at(off); e.holds(k, rrtype) {
			return e, off, true
		}
	}
}

// store puts an answer in place of what is there under k, with rrtype in place of its
// own type. What cannot be stored takes the older answer out nevertheless.
func (s *shard) store(k *key, rrtype uint16, a *Answer, flags byte, b birth) {
	size := entrySize(len(k.tail()), len(a.TTLs), len(a.Msg))
	if size > s.main.size/4 || len(k.tail()) > maxTail || a.Life < time.Second {
		s.stats.Rejected++
		s.remove(k, rrtype)
		return
	}
	s.stats.Insertions++
	freq := byte(0)
	if old, off, ok := s.find(k, rrtype); ok {
		freq = old[offFreq]
		if old.size() >= size && old.size() <= 2*size {
			// In its place, even where that leaves some bytes unused: at the
			// log's head it would push another answer out.
			old.fill(k, rrtype, a, flags, b, s.now)
			old[offFreq] = freq
			return
		}
		s.drop(off, old)
	}
	for s.index.count >= s.index.most {
		s.evict()
	}
	hash := k.hash(rrtype)
	off, log := s.place(hash, size, freq > 0)
	e := entry(s.arena[off : off+size])
	e.fill(k, rrtype, a, flags, b, s.now)
	if log == &s.main && freq > 0 {
		e[offFreq] = freq - 1
	}
	s.index.add(hash, off)
	s.live += size
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
// log, and so does all the rest that may still be given while that has never been full;
// then what nobody asked for is remembered as a ghost.
func (s *shard) evictSmall() {
	off := s.small.tail
	e := s.at(off)
	if e.dead() {
		s.small.free(e.size())
		return
	}
	state, spent := s.state(e, s.now), s.spent(e)
	switch {
	case !spent && e[offFreq] > 0:
		s.spare = append(s.spare[:0], e...)
		s.small.free(e.size())
		to, _ := s.place(e.hash(), len(s.spare), true)
		s.moveTo(off, to)
	case state != Absent && !s.main.filled && s.settle(off, e):
	case spent:
		s.forget(off, e)
		s.small.free(e.size())
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
		if chances == 0 || e[offFreq] == 0 || s.spent(e) {
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

// each calls f for every entry that can be found, with its offset: those of the small
// log, then those of the main log, which are proven, each from tail to head.
func (s *shard) each(f func(off int, e entry, proven bool)) {
	for _, log := range []*ring{&s.small, &s.main} {
		for off, wrapped := log.tail, log.wrapped; wrapped || off < log.head; {
			e := s.at(off)
			if !e.dead() {
				f(off, e, log == &s.main)
			}
			if off += e.size(); wrapped && off == log.gap {
				off, wrapped = log.base, false
			}
		}
	}
}

// spent tells whether e is of no use for an answer any more, or of so little that it
// goes before all others: it is past its time and nobody asked for it since.
func (s *shard) spent(e entry) bool {
	switch s.state(e, s.now) {
	case Absent:
		return true
	case Late, Resting:
		return e[offFlags]&flagAsked == 0
	default:
		return false
	}
}

// forget takes the entry at off out of the index and counts why it went.
func (s *shard) forget(off int, e entry) {
	if s.now < e.end() && !s.outdated(e) {
		s.stats.Evictions++
	} else {
		s.stats.Expirations++
	}
	s.index.remove(e.hash(), off)
	s.live -= e.size()
}
