// SPDX-License-Identifier: Apache-2.0

package zone

// A selection selects entries of a node's slices: the published ones, all or those of one name.
type selection struct {
	store    *Store
	node     *node
	publish  bool       // unready endpoints too
	podNames bool       // pods' names count
	ports    portFilter // the slice has a matching port
	zone     []byte     // of this topology zone, labels in wire form; nil: all

	byName  bool // only entries with this name
	label   []byte
	addr    [16]byte // the address that the label spells
	addrLen int      // of addr; 0: none

	rotation uint32 // of the answer
	steps    int    // rest of the answer's budget
}

// spend takes steps from the answer's budget. It reports false if the budget is spent.
func (sel *selection) spend(steps int) bool {
	sel.steps -= steps
	return sel.steps >= 0
}

// spent reports whether the budget ended a walk.
func (sel *selection) spent() bool { return sel.steps < 0 }

// withLabel returns the selection reduced to the entries with the name. It keeps label.
func (sel selection) withLabel(label []byte) selection {
	sel.byName, sel.label, sel.addrLen = true, label, 0
	var buf [16]byte
	sel.addrLen = copy(sel.addr[:], addrOfLabel(label, &buf))
	return sel
}

// addrOfLabel parses the address that the label names, into buf, or returns nil. An address has one name, though other
// labels parse as it.
func addrOfLabel(label []byte, buf *[16]byte) []byte {
	addr := parseDashed(label, buf)
	if addr == nil {
		return nil
	}
	var text [maxDashed + 1]byte
	if string(appendDashed(text[:0], addr)) != string(label) {
		return nil
	}
	return addr
}

// hasOwnName reports whether the name of entry e is its own, not its address.
func (sel *selection) hasOwnName(s *slice, e int) bool {
	mark := s.mark(e)
	return mark&markHost != 0 || sel.podNames && mark&markPod != 0
}

// appendName appends the label of entry e.
func (sel *selection) appendName(dst []byte, s *slice, e int) []byte {
	if sel.hasOwnName(s, e) {
		return appendLabel(dst, s.label(e))
	}
	var addr [16]byte
	at := len(dst)
	dst = append(dst, 0)
	dst = appendDashed(dst, addr[:copy(addr[:], s.addr(e))])
	dst[at] = byte(len(dst) - at - 1)
	return dst
}

// notEmpty reports whether there is an entry. It may be true if the budget ended before one was found.
func (sel *selection) notEmpty() bool {
	c := cursor{sel: sel}
	return c.next() || sel.spent()
}

// count returns the number of entries, each times the matching ports of its slice. It stops above most.
func (sel *selection) count(most int) int {
	n := 0
	for c := (cursor{sel: sel}); n <= most && c.next(); {
		n += c.portCount
	}
	return n
}

// A cursor walks the entries of a selection, slice by slice. After next, it is at an entry. Every step costs part of the
// answer's budget, and the walk ends when the budget is spent.
type cursor struct {
	sel     *selection
	addrLen int  // only addresses of this length; 0: all
	rotates bool // the walk starts at another entry with each rotation and wraps around

	slice     *slice
	entry     int
	ports     portList // of slice, from the first matching port on
	portCount int      // matching ports of slice

	started    bool
	walked     int            // slices so far
	firstSlice int            // where the walk started
	fraction   uint32         // start position within a slice, as a fraction
	chain      candidateChain // candidate slices, if a name is selected

	allPorts     portList // the port list that ports and portCount are for
	portsCounted bool     // ports and portCount are set
	zone         uint16
	pos, end     int // next candidate: an entry, or a position in the order by name
	wrapPos      int // after end, the candidates from wrapPos to before wrapEnd follow
	wrapEnd      int
	byName       bool // candidates are in the order by name
	byAddr       bool // first the slices with own names, then those with the address
}

// Costs in steps, each about 3 ns.
const (
	stepsEntry = 1
	stepsSlice = 8
)

// next moves to the next entry. It reports false at the end.
func (c *cursor) next() bool {
	for {
		for c.pos < c.end {
			if !c.sel.spend(stepsEntry) {
				return false
			}
			if e, ok := c.candidate(); ok && c.matches(e) {
				c.entry = e
				return true
			}
		}
		if c.wrapPos < c.wrapEnd {
			c.pos, c.end, c.wrapEnd = c.wrapPos, c.wrapEnd, 0
		} else if !c.nextCandidates() {
			return false
		}
	}
}

// candidate moves to the next candidate, and reports whether it has the selected name, if there is one.
func (c *cursor) candidate() (e int, ok bool) {
	e = c.pos
	c.pos++
	if c.byName {
		e = c.slice.entryByName(e)
		return e, c.sel.hasOwnName(c.slice, e)
	}
	return e, !c.sel.byName || !c.sel.hasOwnName(c.slice, e)
}

// matches reports whether the candidate is published, and in the selected topology zone and address family.
func (c *cursor) matches(e int) bool {
	mark := c.slice.mark(e)
	if mark&markReady == 0 && !c.sel.publish || c.sel.zone != nil && mark&markZone != c.zone {
		return false
	}
	return c.addrLen == 0 || (c.addrLen == 4) == (e < int(c.slice.n4))
}

// nextCandidates moves to the next slice with candidates.
func (c *cursor) nextCandidates() bool {
	if !c.started {
		c.begin()
	}
	for c.sel.spend(stepsSlice) {
		s, ok := c.nextSlice()
		if !ok {
			return false
		}
		if s != nil && c.enterSlice(s) {
			if c.candidates(); c.pos < c.end {
				return true
			}
		}
	}
	return false
}

// enterSlice makes the slice the current one. It reports false if nothing in it can match.
func (c *cursor) enterSlice(s *slice) bool {
	if s.ready == 0 && !c.sel.publish {
		return false
	}
	if c.sel.zone != nil {
		if c.zone = s.zone(c.sel.zone); c.zone == 0 {
			return false
		}
	}
	if !c.enterPorts(s.ports()) {
		return false
	}
	c.slice = s
	return true
}

// begin sets the start of the walk.
func (c *cursor) begin() {
	c.started = true
	turn := uint32(0)
	if c.rotates {
		turn = c.sel.rotation
	}
	if c.sel.byName {
		c.byName, c.byAddr = true, c.sel.addrLen > 0
		c.chain, c.fraction = newCandidateChain(&c.sel.store.slicesByLabel, c.sel.store.labelHash(c.sel.node.key, string(c.sel.label)), turn)
		return
	}
	c.firstSlice, c.fraction = rotationStart(turn, len(c.sel.node.slices))
}

// nextSlice returns the next slice, or nil for a candidate of another node. It reports false at the end.
func (c *cursor) nextSlice() (s *slice, ok bool) {
	n := c.sel.node
	if !c.sel.byName {
		if c.walked == len(n.slices) {
			return nil, false
		}
		i := c.firstSlice + c.walked
		if i >= len(n.slices) {
			i -= len(n.slices)
		}
		c.walked++
		return n.slices[i], true
	}
	id, ok := c.chain.next()
	if !ok && c.byAddr { // the slices with the address follow
		c.byName, c.byAddr = false, false
		c.chain, _ = newCandidateChain(&c.sel.store.slicesByAddr, c.sel.store.hash(c.sel.addr[:c.sel.addrLen]), 0)
		id, ok = c.chain.next()
	}
	if !ok {
		return nil, false
	}
	return n.slice(id), true
}

// enterPorts finds the matching ports of a slice. It reports false if a port name is selected and none matches. Most
// slices of a service have the same ports.
func (c *cursor) enterPorts(all portList) bool {
	if !c.portsCounted || all != c.allPorts {
		c.ports, c.portCount = c.sel.ports.selectFrom(all)
		c.allPorts, c.portsCounted = all, true
		c.sel.spend(len(all) / stepsSlice)
	}
	return c.portCount > 0 || !c.sel.ports.byName
}

// numbered reports whether a matching port has a number. Ports without a number come first.
func (c *cursor) numbered() bool {
	for l := c.ports; l != ""; l = l.rest() {
		if l.number() != 0 && c.sel.ports.match(l) {
			return true
		}
	}
	return false
}

// candidates sets the ranges of the slice to walk.
func (c *cursor) candidates() {
	s := c.slice
	switch {
	case c.byName:
		c.pos, c.end = s.rangeByName(c.sel.label)
	case c.sel.byName:
		c.pos, c.end = s.rangeByAddr(c.sel.addr[:c.sel.addrLen])
	default:
		c.pos, c.end = 0, s.count()
		switch c.addrLen {
		case 4:
			c.end = int(s.n4)
		case 16:
			c.pos = int(s.n4)
		}
	}
	if c.rotates {
		middle := c.pos + int(uint64(c.fraction)*uint64(c.end-c.pos)>>32)
		c.pos, c.wrapPos, c.wrapEnd = middle, c.pos, middle
	}
}

// rotationStart returns where the walk of a set of n slices starts if a message cannot hold the set: the slice, and the
// position in it as a fraction of 2^32. The starts of consecutive rotations, and of every k-th rotation, are evenly
// distributed: they are multiples of the golden ratio.
func rotationStart(turn uint32, n int) (place int, rest uint32) {
	const golden = 2654435769 // 2^32 divided by the golden ratio
	at := uint64(turn*golden) * uint64(n)
	return int(at >> 32), uint32(at)
}
