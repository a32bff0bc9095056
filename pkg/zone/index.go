// SPDX-License-Identifier: Apache-2.0

package zone

import "sync/atomic"

// A hashIndex is a lock-free index from the hash of a key to record numbers.
//
// It holds no keys: lookups return candidates, and the reader compares the record. There is one writer at a time. A slot
// holds the hash's upper half and a number; a reader walks from the hash's home to the first free slot. A removed number
// leaves a deleted slot, which can be reused. A table that is too full or too empty is replaced as a whole; a reader that
// still walks the old one started before that.
type hashIndex struct {
	table atomic.Pointer[indexTable]
	live  int // numbers in the table
	used  int // slots that are not free: live and deleted ones
}

type indexTable struct {
	slots []atomic.Uint64
}

// Values of a slot. Other values are a hash's upper half and a number plus firstID.
const (
	slotFree    = 0
	slotDeleted = 1
	firstID     = 2
)

// minSlots is the length of the smallest table.
const minSlots = 16

func (x *hashIndex) init() { x.table.Store(&indexTable{slots: make([]atomic.Uint64, minSlots)}) }

// home returns the start of the walk for hash.
func (t *indexTable) home(hash uint64) int {
	return int(hash >> 32 * uint64(len(t.slots)) >> 32)
}

// next returns the next candidate for hash at or after pos, and the next position. It reports false at the end.
func (t *indexTable) next(hash uint64, pos int) (id uint32, after int, ok bool) {
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

// find returns the first record that matches among the candidates for hash, and its number, or nil.
func find[T any](x *hashIndex, from *records[T], hash uint64, match func(*T) bool) (*T, uint32) {
	t := x.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil, 0
		}
		if record := from.load(id); record != nil && match(record) {
			return record, id
		}
		pos = after
	}
}

// maxChain bounds the candidates for one hash that a rotating walk counts.
const maxChain = 1 << 10

// A candidateChain iterates over the candidates for a hash.
type candidateChain struct {
	t       *indexTable
	hash    uint64
	pos     int
	skipped bool // the walk did not start with the first candidate: the earlier ones follow at the end
	last    int  // end of a walk that skipped some; negative: unknown yet
}

// newCandidateChain returns the chain for hash. It starts at another candidate with each rotation and wraps around. See
// rotationStart for rest.
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

// next returns the next candidate. It reports false at the end.
func (c *candidateChain) next() (id uint32, ok bool) {
	id, after, ok := c.t.next(c.hash, c.pos)
	if !ok && c.skipped {
		c.skipped = false
		id, after, ok = c.t.next(c.hash, c.t.home(c.hash))
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
			t.slots[pos].Store(slotOf(hash, id))
			return
		}
		if pos++; pos == len(t.slots) {
			pos = 0
		}
	}
}

// remove removes one id for hash, if it is there.
func (x *hashIndex) remove(hash uint64, id uint32) {
	t := x.table.Load()
	want, pos := slotOf(hash, id), t.home(hash)
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

// rebuild replaces the table by one with twice the slots needed.
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

// size returns the size of the table in bytes.
func (x *hashIndex) size() int { return 8 * len(x.table.Load().slots) }

// A records table gives each immutable record a number, which its newer versions keep. There is one writer at a time;
// readers take no lock.
type records[T any] struct {
	table atomic.Pointer[[]atomic.Pointer[T]]
	next  uint32   // numbers from here on are unused
	free  []uint32 // released numbers
}

func (g *records[T]) init() {
	records := make([]atomic.Pointer[T], minSlots)
	g.table.Store(&records)
}

// load returns the current record of the number, or nil.
func (g *records[T]) load(id uint32) *T {
	records := *g.table.Load()
	if int(id) >= len(records) {
		return nil
	}
	return records[id].Load()
}

// add stores the record under a new number.
func (g *records[T]) add(record *T) uint32 {
	if n := len(g.free); n > 0 {
		id := g.free[n-1]
		g.free = g.free[:n-1]
		g.set(id, record)
		return id
	}
	id := g.next
	g.next++
	if records := *g.table.Load(); int(id) == len(records) {
		grown := make([]atomic.Pointer[T], len(records)+len(records)/2)
		for i := range records {
			grown[i].Store(records[i].Load())
		}
		g.table.Store(&grown)
	}
	g.set(id, record)
	return id
}

// set replaces the record of the number.
func (g *records[T]) set(id uint32, record *T) { (*g.table.Load())[id].Store(record) }

// drop removes the record and releases its number.
func (g *records[T]) drop(id uint32) {
	g.set(id, nil)
	g.free = append(g.free, id)
}

// each calls f for every record until f returns false. The writer may call it and change the current record.
func (g *records[T]) each(f func(id uint32, record *T) bool) {
	records := *g.table.Load()
	for id := range records {
		if r := records[id].Load(); r != nil && !f(uint32(id), r) {
			return
		}
	}
}
