// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"iter"
	"sync/atomic"
)

// A hashIndex is a lock-free index from the hash of a key to record numbers.
//
// It holds no keys: lookups return candidates, and the reader compares the record. There is one writer at a time. A slot
// holds the hash's upper half and a number; a reader walks from the hash's home to the first free slot. A removed number
// leaves a deleted slot, which can be reused. A table that is too full or too empty is replaced as a whole; only a reader
// that started before the replacement still walks the old one.
type hashIndex struct {
	table atomic.Pointer[[]atomic.Uint64]
	live  int // slots that hold a record number
	used  int // slots that are not free: live and deleted ones
}

// Values of a slot. Other values are a hash's upper half and a number plus firstID.
const (
	slotFree    = 0 // ends a walk
	slotDeleted = 1 // a walk goes on
	firstID     = 2 // added to numbers, so that they differ from these
)

// minSlots is the smallest number of slots of a hash table, and of records of a table.
const minSlots = 16

func (x *hashIndex) init() {
	slots := make([]atomic.Uint64, minSlots)
	x.table.Store(&slots)
}

// home returns the slot where the walk for hash starts in a table with that many slots.
func home(hash uint64, slots int) int { return int(hash >> 32 * uint64(slots) >> 32) }

// following returns the slot after pos, where the walk wraps around.
func following(pos, slots int) int {
	if pos++; pos == slots {
		return 0
	}
	return pos
}

// nextCandidate returns the next candidate for hash at or after pos, and the next position. It reports false at the end.
func nextCandidate(slots []atomic.Uint64, hash uint64, pos int) (id uint32, after int, ok bool) {
	for {
		slot := slots[pos].Load()
		if slot == slotFree {
			return 0, pos, false
		}
		pos = following(pos, len(slots))
		if slot>>32 == hash>>32 && slot != slotDeleted {
			return uint32(slot) - firstID, pos, true
		}
	}
}

// find returns the first record that matches among the candidates for hash, and its number, or nil.
func find[T any](x *hashIndex, from *table[T], hash uint64, match func(*T) bool) (*T, uint32) {
	slots := *x.table.Load()
	for pos := home(hash, len(slots)); ; {
		id, after, ok := nextCandidate(slots, hash, pos)
		if !ok {
			return nil, 0
		}
		if record := from.load(id); record != nil && match(record) {
			return record, id
		}
		pos = after
	}
}

// maxChain bounds the candidates for one hash that newCandidateChain counts. A walk starts with one of these.
const maxChain = 1 << 10

// A candidateChain iterates over the candidates for a hash.
type candidateChain struct {
	slots   []atomic.Uint64
	hash    uint64
	pos     int
	skipped bool // the walk skipped the first candidates; they follow at its end
	last    int  // position after the first returned candidate, where the walk ends; negative: none yet
}

// newCandidateChain returns the chain for hash. It starts at another candidate with each turn and wraps around. rest is
// that of rotationStart.
func newCandidateChain(x *hashIndex, hash uint64, turn uint32) (c candidateChain, rest uint32) {
	slots := *x.table.Load()
	c = candidateChain{slots: slots, hash: hash, pos: home(hash, len(slots)), last: -1}
	if turn == 0 {
		return c, 0
	}
	n := 0
	for pos := c.pos; n < maxChain; n++ {
		var ok bool
		if _, pos, ok = nextCandidate(slots, hash, pos); !ok {
			break
		}
	}
	skip, rest := rotationStart(turn, n)
	for range skip {
		_, c.pos, c.skipped = nextCandidate(slots, hash, c.pos)
	}
	return c, rest
}

// next returns the next candidate. It reports false at the end.
func (c *candidateChain) next() (id uint32, ok bool) {
	id, after, ok := nextCandidate(c.slots, c.hash, c.pos)
	if !ok && c.skipped {
		c.skipped = false
		id, after, ok = nextCandidate(c.slots, c.hash, home(c.hash, len(c.slots)))
	}
	switch {
	case !ok, !c.skipped && after == c.last:
		return 0, false
	case c.last < 0:
		c.last = after
	}
	c.pos = after
	return id, true
}

func slotOf(hash uint64, id uint32) uint64 { return hash&^0xffffffff | uint64(id+firstID) }

// add makes id a candidate for hash.
func (x *hashIndex) add(hash uint64, id uint32) {
	slots := *x.table.Load()
	if 4*(x.used+1) > 3*len(slots) {
		slots = x.rebuild()
	}
	pos := home(hash, len(slots))
	slot := slots[pos].Load()
	for ; slot >= firstID; slot = slots[pos].Load() {
		pos = following(pos, len(slots))
	}
	if slot == slotFree {
		x.used++
	}
	x.live++
	slots[pos].Store(slotOf(hash, id))
}

// remove removes one id for hash, if it is there.
func (x *hashIndex) remove(hash uint64, id uint32) {
	slots := *x.table.Load()
	want, pos := slotOf(hash, id), home(hash, len(slots))
	for slot := slots[pos].Load(); slot != want; slot = slots[pos].Load() {
		if slot == slotFree {
			return
		}
		pos = following(pos, len(slots))
	}
	slots[pos].Store(slotDeleted)
	x.live--
	if len(slots) > minSlots && 8*x.live < len(slots) {
		x.rebuild()
	}
}

// rebuild replaces the table by one with twice the slots needed.
func (x *hashIndex) rebuild() []atomic.Uint64 {
	old, slots := *x.table.Load(), make([]atomic.Uint64, max(minSlots, 2*x.live))
	for i := range old {
		slot := old[i].Load()
		if slot < firstID {
			continue
		}
		pos := home(slot, len(slots))
		for slots[pos].Load() != slotFree {
			pos = following(pos, len(slots))
		}
		slots[pos].Store(slot)
	}
	x.used = x.live
	x.table.Store(&slots)
	return slots
}

// size returns the size of the table in bytes.
func (x *hashIndex) size() int { return 8 * len(*x.table.Load()) }

// A table gives each immutable record a number, which its newer versions keep, and finds it by the hash of its key. There
// is one writer at a time; readers take no lock.
type table[T any] struct {
	byKey   hashIndex
	records atomic.Pointer[[]atomic.Pointer[T]]
	next    uint32   // the lowest number never used
	free    []uint32 // released numbers, to be used again
}

func (t *table[T]) init() {
	records := make([]atomic.Pointer[T], minSlots)
	t.records.Store(&records)
	t.byKey.init()
}

// load returns the current record of the number, or nil.
func (t *table[T]) load(id uint32) *T {
	records := *t.records.Load()
	if int(id) >= len(records) {
		return nil
	}
	return records[id].Load()
}

// add stores the record under an unused number: a released one if there is one, else the next.
func (t *table[T]) add(hash uint64, record *T) (id uint32) {
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		id = t.next
		t.next++
	}
	if records := *t.records.Load(); int(id) == len(records) {
		grown := make([]atomic.Pointer[T], len(records)+len(records)/2)
		for i := range records {
			grown[i].Store(records[i].Load())
		}
		t.records.Store(&grown)
	}
	t.set(id, record)
	t.byKey.add(hash, id)
	return id
}

// set replaces the record of the number.
func (t *table[T]) set(id uint32, record *T) { (*t.records.Load())[id].Store(record) }

// drop removes the record and releases its number.
func (t *table[T]) drop(hash uint64, id uint32) {
	t.set(id, nil)
	t.byKey.remove(hash, id)
	t.free = append(t.free, id)
}

// size returns the size of the table without its records, in bytes.
func (t *table[T]) size() int { return 8*len(*t.records.Load()) + t.byKey.size() }

// all returns every record. The writer may replace records meanwhile.
func (t *table[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		records := *t.records.Load()
		for id := range records {
			if r := records[id].Load(); r != nil && !yield(r) {
				return
			}
		}
	}
}
