// SPDX-License-Identifier: Apache-2.0

package zone

// A cursor walks the entries of a selection, slice by slice. After next it
// stands at an entry.
type cursor struct {
	sel    *selection
	octets int // entries with addresses of this length only; 0: with any
	skip   int // the walk begins at this slice and goes round

	slice *slice
	entry int

	walked  int // slices
	zone    uint16
	pos     int // of the next candidate: an entry, or a place in the order by name
	end     int
	byName  bool // candidates are of the order by name
	addrPos int  // candidates by address that follow those by name
	addrEnd int
}

// next steps to the next entry. It is false at the end.
func (c *cursor) next() bool {
	for {
		for c.pos < c.end {
			if e, ok := c.candidate(); ok && c.meant(e) {
				c.entry = e
				return true
			}
		}
		if c.byName { // those whose address is their name are left
			c.byName, c.pos, c.end = false, c.addrPos, c.addrEnd
		} else if !c.enter() {
			return false
		}
	}
}

// candidate takes the next candidate, and tells whether it has the name that is
// selected, if one is.
func (c *cursor) candidate() (e int, ok bool) {
	e = c.pos
	c.pos++
	if c.byName {
		e = c.slice.ordered(e)
		return e, c.sel.named(c.slice, e)
	}
	return e, c.sel.by != selectedByName || !c.sel.named(c.slice, e)
}

// meant tells whether the candidate is published, of the topology zone and of
// the family.
func (c *cursor) meant(e int) bool {
	mark := c.slice.mark(e)
	if mark&markReady == 0 && !c.sel.publish || c.sel.zone != nil && mark&markZone != c.zone {
		return false
	}
	return c.octets == 0 || (c.octets == 4) == (e < int(c.slice.n4))
}

// enter goes on to the next slice that may have candidates.
func (c *cursor) enter() bool {
	for all := c.sel.node.slices; c.walked < len(all); {
		s := all[(c.walked+c.skip)%len(all)]
		c.walked++
		if c.sel.zone != nil {
			if c.zone = s.zone(c.sel.zone); c.zone == 0 {
				continue
			}
		}
		if c.sel.ports.named && c.sel.ports.countIn(s.ports()) == 0 {
			continue
		}
		c.slice = s
		c.candidates()
		return true
	}
	return false
}

// candidates sets the ranges of the slice that are walked.
func (c *cursor) candidates() {
	s := c.slice
	switch c.sel.by {
	case selectedByName:
		c.byName = true
		c.pos, c.end = s.called(c.sel.label)
		c.addrPos, c.addrEnd = 0, 0
		if c.sel.octets > 0 {
			c.addrPos, c.addrEnd = s.at(c.sel.addr[:c.sel.octets])
		}
	case selectedByAddr:
		c.pos, c.end = s.at(c.sel.addr[:c.sel.octets])
	case selectedAll:
		c.pos, c.end = 0, s.count()
		switch c.octets {
		case 4:
			c.end = int(s.n4)
		case 16:
			c.pos = int(s.n4)
		}
	}
}
