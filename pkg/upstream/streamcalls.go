// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
)

// calls are the queries on one connection by their ID. A query stands in the slot that the low bits of its ID name, and
// an ID whose slot is taken is not given out; at least half of the slots are free, so there is always one to be found.
type calls struct {
	slots []*try // a power of two of them, at least twice n
	n     int
}

const firstSlots = 32

// at is the query with the ID, or nil.
func (c *calls) at(id uint16) *try {
	if len(c.slots) == 0 {
		return nil
	}
	t := c.slots[int(id)&(len(c.slots)-1)]
	if t == nil || t.ride.id != id {
		return nil
	}
	return t
}

// put adds a query under an ID that it draws.
func (c *calls) put(t *try, ids *draws) error {
	if 2*(c.n+1) > len(c.slots) {
		c.grow()
	}
	id := uint16(0)
	for range 4 { // all taken: a chance of 1 in 16 at worst
		var err error
		if id, err = ids.next(); err != nil {
			return err
		}
		if c.slots[int(id)&(len(c.slots)-1)] == nil {
			break
		}
	}
	for c.slots[int(id)&(len(c.slots)-1)] != nil {
		id++
	}
	t.ride.id = id
	c.slots[int(id)&(len(c.slots)-1)] = t
	c.n++
	return nil
}

// grow doubles the slots. What had one of its own still has.
func (c *calls) grow() {
	before := c.slots
	c.slots = make([]*try, max(2*len(before), firstSlots))
	for _, t := range before {
		if t != nil {
			c.slots[int(t.ride.id)&(len(c.slots)-1)] = t
		}
	}
}

// remove takes out a query that is in.
func (c *calls) remove(t *try) {
	c.slots[int(t.ride.id)&(len(c.slots)-1)] = nil
	c.n--
}

// draws are random numbers, read from their source many at once: a read costs more than they do.
type draws struct {
	from io.Reader
	buf  [256]byte
	left []byte // of buf
}

// next is 16 random bits.
func (d *draws) next() (uint16, error) {
	if len(d.left) < 2 {
		if _, err := io.ReadFull(d.from, d.buf[:]); err != nil {
			return 0, fmt.Errorf("drawing an ID: %w", err)
		}
		d.left = d.buf[:]
	}
	bits := binary.BigEndian.Uint16(d.left)
	d.left = d.left[2:]
	return bits, nil
}
