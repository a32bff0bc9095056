// SPDX-License-Identifier: Apache-2.0

package zone

// A cursor walks the entries of a selection, slice by slice. After next it
// stands at an entry. Every step is taken off the answer's budget; a walk that
// spends it ends early.
type cursor struct {
	sel     *selection
	addrLen int  // entries with addresses of this length only; 0: with any
	rotates bool // the walk begins at another entry with each turn and goes round

	slice     *slice
	entry     int
	ports     portList // of slice, from the first that is meant on
	portCount int      // how many ports of slice are meant

	started    bool
	walked     int            // slices
	firstSlice int            // the slice that the walk began with
	fraction   uint32         // where in a slice the walk begins, as a fraction
	chain      candidateChain // of candidate slices, if a name is selected

	allPorts     portList // what ports and meant were taken from
	portsCounted bool     // they were
	zone         uint16
	pos, end     int  // of the next candidate: an entry, or a place in the order by name
	wrapPos      int  // the candidates from here to before over follow
	wrapEnd      int  //
	byName       bool // candidates are of the order by name
	byAddr       bool // the slices with own names are walked, those with the address follow
}

// Steps of the budget, each about 3 ns.
const (
	stepsEntry = 1
	stepsSlice = 8
)

// next steps to the next entry. It is false at the end.
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

// candidate takes the next candidate, and reports whether it has the name that is
// selected, if one is.
func (c *cursor) candidate() (e int, ok bool) {
	e = c.pos
	c.pos++
	if c.byName {
		e = c.slice.entryByName(e)
		return e, c.sel.hasOwnName(c.slice, e)
	}
	return e, !c.sel.byName || !c.sel.hasOwnName(c.slice, e)
}

// isMeant reports whether the candidate is published, of the topology zone and of
// the family.
func (c *cursor) matches(e int) bool {
	mark := c.slice.mark(e)
	if mark&markReady == 0 && !c.sel.publish || c.sel.zone != nil && mark&markZone != c.zone {
		return false
	}
	return c.addrLen == 0 || (c.addrLen == 4) == (e < int(c.slice.n4))
}

// enter goes on to the next slice that has candidates.
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

// suits makes the slice the one that is walked, unless nothing of it is meant.
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

// begin sets where the walk begins.
func (c *cursor) begin() {
	c.started = true
	turn := uint32(0)
	if c.rotates {
		turn = c.sel.rotation
	}
	if c.sel.byName {
		c.byName, c.byAddr = true, c.sel.addrLen > 0
		c.chain, c.fraction = newCandidateChain(&c.sel.store.slicesByLabel, c.sel.store.labelHash(c.sel.node.key, c.sel.label), turn)
		return
	}
	c.firstSlice, c.fraction = rotationStart(turn, len(c.sel.node.slices))
}

// nextSlice gives the next slice, which is nil for a candidate that is none of
// the node's. It is false at the end.
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
		return n.slices[i].slice, true
	}
	id, ok := c.chain.next()
	if !ok && c.byAddr { // those whose address is their name are left
		c.byName, c.byAddr = false, false
		c.chain, _ = newCandidateChain(&c.sel.store.slicesByAddr, c.sel.store.hash(c.sel.addr[:c.sel.addrLen]), 0)
		id, ok = c.chain.next()
	}
	if !ok {
		return nil, false
	}
	return n.slice(id), true
}

// enterPorts finds the ports of a slice that are meant, which has all. It is false
// if a name is selected and no port has it. Most slices of a service have the same ports.
func (c *cursor) enterPorts(all portList) bool {
	if !c.portsCounted || all != c.allPorts {
		c.ports, c.portCount = c.sel.ports.selectFrom(all)
		c.allPorts, c.portsCounted = all, true
		c.sel.spend(len(all) / stepsSlice)
	}
	return c.portCount > 0 || !c.sel.ports.byName
}

// numbered reports whether a port that is meant has a number. Those without come first.
func (c *cursor) numbered() bool {
	for l := c.ports; l != ""; l = l.rest() {
		if l.number() != 0 && c.sel.ports.match(l) {
			return true
		}
	}
	return false
}

// candidates sets the ranges of the slice that are walked.
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

// spread gives the place, of n, where the walk of a set begins that no message
// holds, and as a fraction of 2^32 where in that place. The places of consecutive
// turns, and of every k-th turn, lie evenly: they are multiples of the golden ratio.
func rotationStart(turn uint32, n int) (place int, rest uint32) {
	const golden = 2654435769 // 2^32 divided by the golden ratio
	at := uint64(turn*golden) * uint64(n)
	return int(at >> 32), uint32(at)
}
