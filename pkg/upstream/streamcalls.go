// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
)

// calls are the queries on one connection by their ID. A query stands in the slot that the low bits of its ID name, and
// an ID whose slot is taken is not given out; at least half of the slots are free, so there is always one to be found.
type idTable struct {
	slots []*attempt // a power of two of them, at least twice n
	n     int
}

const minSlots = 32

// at is the query with the ID, or nil.
func (q *idTable) lookup(id uint16) *attempt {
	if len(q.slots) == 0 {
		return nil
	}
	a := q.slots[int(id)&(len(q.slots)-1)]
	if a == nil || a.pending.id != id {
		return nil
	}
	return a
}

// put adds a query under an ID that it draws.
func (q *idTable) add(a *attempt, ids *idSource) error {
	if 2*(q.n+1) > len(q.slots) {
		q.grow()
	}
	id := uint16(0)
	for range 4 { // all taken: a chance of 1 in 16 at worst
		var err error
		if id, err = ids.next(); err != nil {
			return err
		}
		if q.slots[int(id)&(len(q.slots)-1)] == nil {
			break
		}
	}
	for q.slots[int(id)&(len(q.slots)-1)] != nil {
		id++
	}
	a.pending.id = id
	q.slots[int(id)&(len(q.slots)-1)] = a
	q.n++
	return nil
}

// grow doubles the slots. What had one of its own still has.
func (q *idTable) grow() {
	before := q.slots
	q.slots = make([]*attempt, max(2*len(before), minSlots))
	for _, a := range before {
		if a != nil {
			q.slots[int(a.pending.id)&(len(q.slots)-1)] = a
		}
	}
}

// remove takes out a query that is in.
func (q *idTable) remove(a *attempt) {
	q.slots[int(a.pending.id)&(len(q.slots)-1)] = nil
	q.n--
}

// draws are random numbers, read from their source many at once: a read costs more than they do.
type idSource struct {
	random io.Reader
	buf    [256]byte
	unused []byte // of buf
}

// next is 16 random bits.
func (d *idSource) next() (uint16, error) {
	if len(d.unused) < 2 {
		if _, err := io.ReadFull(d.random, d.buf[:]); err != nil {
			return 0, fmt.Errorf("drawing an ID: %w", err)
		}
		d.unused = d.buf[:]
	}
	bits := binary.BigEndian.Uint16(d.unused)
	d.unused = d.unused[2:]
	return bits, nil
}
