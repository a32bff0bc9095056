// SPDX-License-Identifier: Apache-2.0

package zone

import "sync/atomic"

// refs is a lock-free index from the hash of a key to numbers of records.
//
// It holds no keys: what it gives are candidates, and the reader compares the
// record. There is one writer at a time. A slot is the hash's upper half and a
// number; a reader walks from the hash's home to the first free slot. A number
// that was removed leaves a dead slot, which a later one may take. A table is
// replaced as a whole when it is too full or too empty; a reader that still
// walks the old one began before that.
type hashIndex struct {
	table atomic.Pointer[indexTable]
	live  int // numbers held
	used  int // slots that are not free: live and dead ones
}

type indexTable struct {
	slots []atomic.Uint64
}

// Values of a slot. Others are a hash's upper half and a number plus firstRef.
const (
	slotFree    = 0
	slotDeleted = 1
	firstID     = 2
)

// leastSlots is the length of the smallest table.
const minSlots = 16

func (x *hashIndex) init() { x.table.Store(&indexTable{slots: make([]atomic.Uint64, minSlots)}) }

// home is where the walk for hash begins.
func (t *indexTable) home(hash uint64) int {
	return int(hash >> 32 * uint64(len(t.slots)) >> 32)
}

// next gives the next candidate for hash at or after pos and the position to go
// on from. It is false at the end.
func (t *indexTable) next(hash uint64, pos int) (ref uint32, after int, ok bool) {
	for {
		slot := t.slots[pos].Load()
		if slot == slotFree {
			return 0, pos, false
		}
		if pos++; pos == len(t.slots) {
			pos = 0
		}
		if slot>>32 == hash>>32 && slot != slotDeleted {
			return uint32(slot) - firstID, pos, true
		}
	}
}

// maxChain is how many candidates for one hash are known to a walk that begins
// at another one with each turn.
const maxChain = 1 << 10

// A chain is the candidates for a hash, one after the other.
type candidateChain struct {
	t       *indexTable
	hash    uint64
	pos     int
	skipped bool // the walk did not begin with the first: those before follow at the end
	last    int  // where a walk that skipped some ends; negative: not known yet
}

// chainOf is the chain for hash. It begins at another candidate with each turn and goes
// round. rest is where in the candidate, see spread.
func newCandidateChain(x *hashIndex, hash uint64, turn uint32) (c candidateChain, rest uint32) {
	t := x.table.Load()
	c = candidateChain{t: t, hash: hash, pos: t.home(hash), last: -1}
	if turn == 0 {
		return c, 0
	}
	n := 0
	for pos := c.pos; n < maxChain; n++ {
		var ok bool
		if _, pos, ok = t.next(hash, pos); !ok {
			break
		}
	}
	skip, rest := rotationStart(turn, n)
	for range skip {
		_, c.pos, c.skipped = t.next(hash, c.pos)
	}
	return c, rest
}

// next gives the next candidate. It is false at the end.
func (c *candidateChain) next() (ref uint32, ok bool) {
	ref, after, ok := c.t.next(c.hash, c.pos)
	if !ok && c.skipped {
		c.skipped = false
		ref, after, ok = c.t.next(c.hash, c.t.home(c.hash))
	}
	switch {
	case !ok, !c.skipped && after == c.last:
		return 0, false
	case c.last < 0:
		c.last = after
	}
	c.pos = after
	return ref, true
}

func slotOf(hash uint64, ref uint32) uint64 { return hash&^0xffffffff | uint64(ref+firstID) }

// add makes ref a candidate for hash.
func (x *hashIndex) add(hash uint64, ref uint32) {
	t := x.table.Load()
	if 4*(x.used+1) > 3*len(t.slots) {
		t = x.rebuild()
	}
	pos := t.home(hash)
	for {
		slot := t.slots[pos].Load()
		if slot == slotFree || slot == slotDeleted {
			if slot == slotFree {
				x.used++
			}
			x.live++
			t.slots[pos].Store(slotOf(hash, ref))
			return
		}
		if pos++; pos == len(t.slots) {
			pos = 0
		}
	}
}

// remove takes one ref for hash out, if it is there.
func (x *hashIndex) remove(hash uint64, ref uint32) {
	t := x.table.Load()
	want, pos := slotOf(hash, ref), t.home(hash)
	for slot := t.slots[pos].Load(); slot != want; slot = t.slots[pos].Load() {
		if slot == slotFree {
			return
		}
		if pos++; pos == len(t.slots) {
			pos = 0
		}
	}
	t.slots[pos].Store(slotDeleted)
	x.live--
	if len(t.slots) > minSlots && 8*x.live < len(t.slots) {
		x.rebuild()
	}
}

// rebuild replaces the table by one of twice the slots that are needed.
func (x *hashIndex) rebuild() *indexTable {
	old := x.table.Load()
	t := &indexTable{slots: make([]atomic.Uint64, max(minSlots, 2*x.live))}
	for i := range old.slots {
		slot := old.slots[i].Load()
		if slot < firstID {
			continue
		}
		pos := t.home(slot)
		for t.slots[pos].Load() != slotFree {
			if pos++; pos == len(t.slots) {
				pos = 0
			}
		}
		t.slots[pos].Store(slot)
	}
	x.used = x.live
	x.table.Store(t)
	return t
}

// size is the octets the table takes.
func (x *hashIndex) size() int { return 8 * len(x.table.Load().slots) }
