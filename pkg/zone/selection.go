// SPDX-License-Identifier: Apache-2.0

package zone

// A selection says which entries of a node's slices are meant: those that are
// published, and of them all, those of one name, or those of one address.
type selection struct {
	node     *node
	publish  bool       // all are, ready or not
	podNames bool       // a pod's name is one
	ports    portFilter // the slice has one of these ports
	zone     []byte     // of this topology zone, labels in wire form; nil: of any

	by     selectedBy
	label  []byte   // of selectedByName
	addr   [16]byte // of selectedByAddr; of selectedByName the address that the label spells
	octets int      // of addr; 0: there is none
}

// selectedBy says how entries are found.
type selectedBy uint8

const (
	selectedAll selectedBy = iota
	selectedByName
	selectedByAddr
)

// ofLabel is the selection narrowed to the entries with the name. It keeps label.
func (sel selection) ofLabel(label []byte) selection {
	sel.by, sel.label, sel.octets = selectedByName, label, 0
	var buf [16]byte
	sel.octets = copy(sel.addr[:], spelledAddr(label, &buf))
	return sel
}

// spelledAddr is the address whose name label is, in buf; nil: none. An address has
// one name, though other labels could be read as it.
func spelledAddr(label []byte, buf *[16]byte) []byte {
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

// ofAddr is the selection narrowed to the entries with the address.
func (sel selection) ofAddr(addr string) selection {
	sel.by = selectedByAddr
	sel.octets = copy(sel.addr[:], addr)
	return sel
}

// named tells whether the name of entry e is its own, not its address.
func (sel *selection) named(s *slice, e int) bool {
	mark := s.mark(e)
	return mark&markHost != 0 || sel.podNames && mark&markPod != 0
}

// appendName appends the label that entry e is called.
func (sel *selection) appendName(dst []byte, s *slice, e int) []byte {
	if sel.named(s, e) {
		return appendLabel(dst, s.label(e))
	}
	var addr [16]byte
	at := len(dst)
	dst = append(dst, 0)
	dst = appendDashed(dst, addr[:copy(addr[:], s.addr(e))])
	dst[at] = byte(len(dst) - at - 1)
	return dst
}

// any tells whether there is an entry at all.
func (sel *selection) any() bool {
	c := cursor{sel: sel}
	return c.next()
}

// count is how many entries there are, each as often as its slice has ports that
// are meant.
func (sel *selection) count() int {
	n, last, ports := 0, (*slice)(nil), 0
	for c := (cursor{sel: sel}); c.next(); n += ports {
		if c.slice != last {
			last, ports = c.slice, sel.ports.countIn(c.slice.ports())
		}
	}
	return n
}

// firstAddr tells whether the entry that c stands at is the first of the
// selection with its address, in the order of the slices.
func (c *cursor) firstAddr() bool {
	if !c.sel.node.twins {
		return true
	}
	narrow := *c.sel
	if narrow.by == selectedAll {
		narrow = narrow.ofAddr(c.slice.addr(c.entry))
	}
	for o := (cursor{sel: &narrow}); o.next(); {
		if o.slice.addr(o.entry) == c.slice.addr(c.entry) {
			return o.slice == c.slice && o.entry == c.entry
		}
	}
	return true
}

// firstName tells whether no entry of the selection before the one that c stands
// at has its name and a port that is meant: with the number or, if that is
// negative, with any, and then the same address too.
func (c *cursor) firstName(number int) bool {
	if !c.sel.node.twins {
		return true
	}
	var label [64]byte
	narrow := c.sel.ofLabel(c.sel.appendName(label[:0], c.slice, c.entry)[1:])
	for o := (cursor{sel: &narrow}); o.next(); {
		if o.slice == c.slice && o.entry == c.entry {
			return true
		}
		if number < 0 {
			if o.slice.addr(o.entry) == c.slice.addr(c.entry) && narrow.ports.numbered(o.slice.ports()) {
				return false
			}
		} else if narrow.ports.has(o.slice.ports(), uint16(number)) {
			return false
		}
	}
	return true
}
