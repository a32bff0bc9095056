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
	bytesPerSlot     = 112 // shard bytes per index slot; the smallest entry, one A record of a short name, takes about 100
	smallPart        = 10  // the small log is a tenth of both logs, as in the S3-FIFO paper
	maxSecondChances = 64  // entries that one evictMain moves at most, to bound the time under the lock
)

// A shard is a part of the cache with its own lock.
type shard struct {
	*shared

	mu        sync.Mutex // guards all below
	successor *Cache     // the cache that the entries moved to; nil: they are here

	mapped []byte // all memory of the shard: arena, index and ghosts
	arena  []byte // both logs
	small  ring
	main   ring
	index  index
	// ghosts holds the hashes of entries evicted from the small log without a use. An answer
	// that is stored again while its hash is in here goes straight to the main log. New
	// ghosts overwrite old ones.
	ghosts    []uint32
	now       int64 // time of the current operation, ns since the epoch
	liveBytes int   // bytes of the entries in the index
	stats     Stats

	unmap runtime.Cleanup // unmaps the memory
}

func newShard(sh *shared, size int) (*shard, error) {
	mapped, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	// With transparent huge pages enabled for all processes, a nearly empty cache would take all its
	// memory at once. A kernel without huge pages returns an error, which is fine.
	_ = unix.Madvise(mapped, unix.MADV_NOHUGEPAGE)
	s := &shard{shared: sh, mapped: mapped}
	// Unmap the memory when the shard becomes unreachable, unless release did it before.
	s.unmap = runtime.AddCleanup(s, func(m []byte) { _ = unix.Munmap(m) }, mapped)
	// On the Go heap, index and ghosts would count twice: the collector lets the heap grow
	// to twice its live size.
	slots := size / bytesPerSlot
	s.index = newIndex(unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[0])), slots))
	s.ghosts = unsafe.Slice((*uint32)(unsafe.Pointer(&mapped[8*slots])), slots)
	s.arena = mapped[(s.fixedBytes()+7)&^7:]
	s.arena = s.arena[:len(s.arena)&^7]
	logs := len(s.arena)
	small := logs / smallPart &^ 7
	s.small = newRing(0, small)
	s.main = newRing(small, logs-small)
	return s, nil
}

// fixedBytes returns the size of index and ghosts.
func (s *shard) fixedBytes() int { return 8*len(s.index.slots) + 4*len(s.ghosts) }

// lockShard returns the locked shard for a name's hash bits. If c was resized it follows the
// successors.
func (c *Cache) lockShard(low uint64) *shard {
	for {
		s := c.shards[low&uint64(len(c.shards)-1)]
		s.mu.Lock()
		if s.successor == nil {
			return s
		}
		c = s.successor
		s.mu.Unlock()
	}
}

func (s *shard) entryAt(off int) entry {
	e := entry(s.arena[off:])
	return e[:e.size()]
}

// find returns the entry stored under k, with rrtype in place of its own type, and its offset.
func (s *shard) find(k *key, rrtype uint16) (entry, int, bool) {
	hash := k.hash(rrtype)
	for pos := s.index.home(hash); ; {
		var off int
		if off, pos = s.index.next(hash, pos); off < 0 {
			return nil, 0, false
		}
		if e := s.entryAt(off); e.matches(k, rrtype) {
			return e, off, true
		}
	}
}

// store stores an answer under k, with rrtype in place of its own type, replaces the older one, and
// returns the entry. If the answer cannot be stored, store still removes the older one, and returns nil.
func (s *shard) store(k *key, rrtype uint16, a *Answer, flags byte) entry {
	size := entrySize(len(k.tail()), len(a.TTLs), len(a.Msg))
	if size > s.main.size/4 || len(k.tail()) > maxTail || a.Lifetime < time.Second {
		s.stats.Rejected++
		s.remove(k, rrtype)
		return nil
	}
	s.stats.Insertions++
	freq := byte(0)
	if old, off, ok := s.find(k, rrtype); ok {
		freq = old[offFreq]
		if old.size() >= size && old.size() <= 2*size {
			// Overwrite in place, even if that wastes some bytes: a new entry at the
			// head would evict another answer.
			old.encode(k, rrtype, a, flags, s.now)
			old[offFreq] = freq
			return old
		}
		s.drop(off, old)
	}
	for s.index.count >= s.index.maxCount {
		s.evict()
	}
	hash := k.hash(rrtype)
	off, log := s.allocate(hash, size, freq > 0)
	e := entry(s.arena[off : off+size])
	e.encode(k, rrtype, a, flags, s.now)
	if log == &s.main && freq > 0 {
		e[offFreq] = freq - 1
	}
	s.index.add(hash, off)
	s.liveBytes += size
	return e
}

// place writes a copy of e at an offset that was reserved for it.
func (s *shard) place(e entry, off int) {
	copy(s.arena[off:], e)
	s.index.add(e.hash(), off)
	s.liveBytes += e.size()
}

// allocate frees and reserves size bytes: in the main log if toMain is set, if the entry was evicted from the small log before
// (its hash is a ghost), or if it is large; otherwise in the small log.
func (s *shard) allocate(hash uint64, size int, toMain bool) (int, *ring) {
	log := &s.small
	ghost := &s.ghosts[s.index.home(hash)]
	remembered := *ghost == uint32(hash)|1
	if remembered {
		*ghost = 0 // used up; the ghost of another hash stays
	}
	if toMain || remembered || size > s.small.size/2 {
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

// evict frees the tail of a log. That may free no index slot, so callers repeat it until there is one.
func (s *shard) evict() {
	if !s.small.empty() {
		s.evictSmall()
	} else {
		s.evictMain()
	}
}

// evictSmall frees the tail of the small log. A used entry moves to the main log. Until the main log
// has been full once, other usable entries move there too. Later an unused entry is evicted, and
// becomes a ghost unless it is disposable.
func (s *shard) evictSmall() {
	off := s.small.tail
	e := s.entryAt(off)
	defer s.small.free(e.size())
	if e.dead() {
		return
	}
	state, spent := s.state(e, s.now), s.disposable(e)
	if !spent && (e[offFreq] > 0 || isPinned(e)) {
		to, _ := s.allocate(e.hash(), e.size(), true)
		s.move(off, to, 0)
		return
	}
	if state != Absent && !s.main.filled {
		if to, ok := s.main.reserve(e.size()); ok { // the main log has bytes that were never used
			s.move(off, to, 0)
			return
		}
	}
	if !spent {
		s.ghosts[s.index.home(e.hash())] = uint32(e.hash()) | 1
	}
	s.dropEvicted(off, e)
}

// evictMain frees the tail of the main log. An entry whose use count is not zero moves to the head instead
// and loses a use: there is always room for it, because its own bytes were just freed. A pinned entry moves too. So the call
// may free nothing.
func (s *shard) evictMain() {
	for chances := maxSecondChances; ; chances-- {
		off := s.main.tail
		e := s.entryAt(off)
		size, freq := e.size(), e[offFreq]
		s.main.free(size)
		switch {
		case e.dead():
			return
		case s.disposable(e), !isPinned(e) && (chances <= 0 || freq == 0):
			s.dropEvicted(off, e)
			return
		}
		to, _ := s.main.reserve(size)
		s.move(off, to, max(freq, 1)-1)
		if chances <= 0 {
			return
		}
	}
}

// move moves an entry within the arena and sets its use count. The two places may overlap.
func (s *shard) move(from, to int, freq byte) {
	copy(s.arena[to:], s.entryAt(from))
	e := s.entryAt(to)
	e[offFreq] = freq
	s.index.relocate(e.hash(), from, to)
}

// each calls f for every live entry with its offset: first the small log, then the main log, each from
// tail to head.
func (s *shard) each(f func(off int, e entry, inMain bool)) {
	for _, log := range []*ring{&s.small, &s.main} {
		for off, wrapped := log.tail, log.wrapped; wrapped || off < log.head; {
			e := s.entryAt(off)
			if !e.dead() {
				f(off, e, log == &s.main)
			}
			if off += e.size(); wrapped && off == log.gap {
				off, wrapped = log.base, false
			}
		}
	}
}

// disposable reports whether e is evicted before all others: it is unusable, or stale and unused since
// it expired, and not pinned.
func (s *shard) disposable(e entry) bool {
	switch s.state(e, s.now) {
	case Absent:
		return true
	case Stale, StaleBackoff:
		return e[offFlags]&(flagStaleUsed|flagPinned) == 0
	default:
		return false
	}
}

// dropEvicted removes the entry at off from the index and counts the reason.
func (s *shard) dropEvicted(off int, e entry) {
	if s.now < s.end(e) && !s.outdated(e) {
		s.stats.Evictions++
	} else {
		s.stats.Expirations++
	}
	s.index.remove(e.hash(), off)
	s.liveBytes -= e.size()
}

// An index maps hashes to entries: open addressing with linear probing, fixed size. A slot holds the
// upper half of the hash and the entry's arena offset in units of eight, plus one; zero is free.
type index struct {
	slots    []uint64
	count    int
	maxCount int // seven eighths of the slots, so that probes stay short
}

func newIndex(slots []uint64) index { return index{slots: slots, maxCount: len(slots) / 8 * 7} }

// home returns the first position to probe for hash: its upper half scaled to the table, so that the
// table can have any length.
func (x *index) home(hash uint64) uint64 { return hash >> 32 * uint64(len(x.slots)) >> 32 }

// nextPos returns the position after pos.
func (x *index) nextPos(pos uint64) uint64 {
	if pos++; pos < uint64(len(x.slots)) {
		return pos
	}
	return 0
}

// distance returns the number of steps forward between two positions.
func (x *index) distance(from, to uint64) uint64 {
	if to < from {
		to += uint64(len(x.slots))
	}
	return to - from
}

// next returns the next offset stored for hash, at or after pos, and the position to continue from. A
// negative offset ends the probe. The first probe starts at home.
func (x *index) next(hash, pos uint64) (off int, after uint64) {
	for {
		slot := x.slots[pos]
		if slot == 0 {
			return -1, pos
		}
		pos = x.nextPos(pos)
		if slot>>32 == hash>>32 {
			return int(slot&0xffffffff-1) << 3, pos
		}
	}
}

// add inserts off under hash. There must be room.
func (x *index) add(hash uint64, off int) {
	pos := x.home(hash)
	for x.slots[pos] != 0 {
		pos = x.nextPos(pos)
	}
	x.slots[pos] = slotOf(hash, off)
	x.count++
}

// relocate changes the offset of an entry.
func (x *index) relocate(hash uint64, from, to int) {
	x.slots[x.position(hash, from)] = slotOf(hash, to)
}

// remove deletes the entry at off and closes the gap, so that probes need no tombstones.
func (x *index) remove(hash uint64, off int) {
	hole := x.position(hash, off)
	x.count--
	for pos := hole; ; {
		pos = x.nextPos(pos)
		slot := x.slots[pos]
		if slot == 0 {
			break
		}
		if x.distance(x.home(slot), pos) >= x.distance(hole, pos) {
			x.slots[hole] = slot
			hole = pos
		}
	}
	x.slots[hole] = 0
}

func (x *index) position(hash uint64, off int) uint64 {
	want, pos := slotOf(hash, off), x.home(hash)
	for x.slots[pos] != want {
		pos = x.nextPos(pos)
	}
	return pos
}

func slotOf(hash uint64, off int) uint64 {
	return hash&^0xffffffff | uint64(off>>3+1)
}

// A ring is a log of entries in the arena's bytes base to base+size, written at the head and freed at
// the tail. Entries are contiguous: if one does not fit before the end, the log leaves a gap there and
// continues at its base.
type ring struct {
	base, size int
	head, tail int // arena offsets of the next entry to write, and of the oldest one
	gap        int // offset where the gap begins; valid only while wrapped
	wrapped    bool
	filled     bool // has wrapped once: all bytes were used
}

func newRing(base, size int) ring {
	return ring{base: base, size: size, head: base, tail: base}
}

func (r *ring) empty() bool { return r.head == r.tail && !r.wrapped }

// reserve returns the offset of n free bytes at the head, or false if the tail must be freed first.
func (r *ring) reserve(n int) (off int, ok bool) {
	if !r.wrapped && r.head+n > r.base+r.size {
		r.gap, r.head, r.wrapped, r.filled = r.head, r.base, true, true
	}
	if r.wrapped && r.head+n > r.tail {
		return 0, false
	}
	off = r.head
	r.head += n
	return off, true
}

// free frees the n bytes of the entry at the tail.
func (r *ring) free(n int) {
	r.tail += n
	if r.wrapped && r.tail == r.gap {
		r.tail, r.wrapped = r.base, false
	}
	if r.empty() {
		r.head, r.tail = r.base, r.base
	}
}
