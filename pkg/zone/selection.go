// SPDX-License-Identifier: Apache-2.0

package zone

// A selection says which entries of a node's slices are meant: those that are
// published, and of them all, or those of one name.
type selection struct {
	store    *Store
	node     *node
	publish  bool       // all are, ready or not
	podNames bool       // a pod's name is one
	ports    portFilter // the slice has one of these ports
	zone     []byte     // of this topology zone, labels in wire form; nil: of any

	byName  bool // only entries with the name
	label   []byte
	addr    [16]byte // that the label spells
	addrLen int      // of addr; 0: there is none

	rotation uint32 // of the answer
	steps    int    // what is left of the answer's budget
}

// spend takes steps off the answer's budget. It is false if they are not left.
func (sel *selection) spend(steps int) bool {
	sel.steps -= steps
	return sel.steps >= 0
}

// spent reports whether a walk ended because the budget did.
func (sel *selection) spent() bool { return sel.steps < 0 }

// ofLabel is the selection narrowed to the entries with the name. It keeps label.
func (sel selection) withLabel(label []byte) selection {
	sel.byName, sel.label, sel.addrLen = true, label, 0
	var buf [16]byte
	sel.addrLen = copy(sel.addr[:], addrOfLabel(label, &buf))
	return sel
}

// spelledAddr is the address whose name label is, in buf; nil: none. An address has
// one name, though other labels could be read as it.
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

// named tells whether the name of entry e is its own, not its address.
func (sel *selection) hasOwnName(s *slice, e int) bool {
	mark := s.mark(e)
	return mark&markHost != 0 || sel.podNames && mark&markPod != 0
}

// appendName appends the label that entry e is called.
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

// any reports whether there is an entry at all. There may be one where the budget
// ended before it was found.
func (sel *selection) notEmpty() bool {
	c := cursor{sel: sel}
	return c.next() || sel.spent()
}

// count is how many entries there are, each as often as its slice has ports that
// are meant. It stops counting beyond most.
func (sel *selection) count(most int) int {
	n := 0
	for c := (cursor{sel: sel}); n <= most && c.next(); {
		n += c.portCount
	}
	return n
}
