// SPDX-License-Identifier: Apache-2.0

package cache

// An index finds entries by hash: open addressing with linear probing over a
// table that never grows. A slot is the upper half of the hash and the entry's
// offset in the arena in units of eight, plus one; zero is free.
type index struct {
	slots []uint64
	count int
	most  int // entries it takes: seven eighths, so that probes stay short
}

func newIndex(slots []uint64) index { return index{slots: slots, most: len(slots) / 8 * 7} }

// home is where the search for hash begins: its upper half, scaled to the table,
// which may so have any length and fit the budget.
func (x *index) home(hash uint64) uint64 { return hash >> 32 * uint64(len(x.slots)) >> 32 }

// after is the position that follows pos.
func (x *index) after(pos uint64) uint64 {
	if pos++; pos < uint64(len(x.slots)) {
		return pos
	}
	return 0
}

// distance is how many steps lead from one position to another.
func (x *index) distance(from, to uint64) uint64 {
	if to < from {
		to += uint64(len(x.slots))
	}
	return to - from
}

// next gives the offset, at or after pos, that hash may stand for, and the
// position to go on from; a negative offset is the end. The walk begins at home.
func (x *index) next(hash, pos uint64) (off int, after uint64) {
	for {
		slot := x.slots[pos]
		if slot == 0 {
			return -1, pos
		}
		pos = x.after(pos)
		if slot>>32 == hash>>32 {
			return int(slot&0xffffffff-1) << 3, pos
		}
	}
}

// add makes off findable under hash. There must be room.
func (x *index) add(hash uint64, off int) {
	pos := x.home(hash)
	for x.slots[pos] != 0 {
		pos = x.after(pos)
	}
	x.slots[pos] = slotOf(hash, off)
	x.count++
}

// move makes the entry that was found at from be found at to.
func (x *index) move(hash uint64, from, to int) {
	x.slots[x.position(hash, from)] = slotOf(hash, to)
}

// remove takes the entry at off out and closes the gap it leaves, so that no
// probe ends early and no tombstone is needed.
func (x *index) remove(hash uint64, off int) {
	hole := x.position(hash, off)
	x.count--
	for pos := hole; ; {
		pos = x.after(pos)
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
		pos = x.after(pos)
	}
	return pos
}

func slotOf(hash uint64, off int) uint64 {
	return hash&^0xffffffff | uint64(off>>3+1)
}
