// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// StripOPT takes the OPT record out, in place: it is between two hops only and
// belongs to no stored answer (RFC 6891 section 6.1.1). Where records follow
// it, they move up and the pointers in them are mended; it fails, with the
// message spoilt, if one of them pointed into the OPT record itself.
func (m *Message) StripOPT() error {
	if m.opt == 0 {
		return nil
	}
	cut := m.optEnd - m.opt
	moved := func(target int) int {
		switch {
		case target < m.opt:
			return target
		case target < m.optEnd:
			return -1
		}
		return target - cut
	}
	for i, r := range m.Records {
		if int(r.Owner) < m.opt {
			continue
		}
		if !mendRecord(m.Raw, r, moved) {
			return ErrMalformed
		}
		m.Records[i].Owner -= uint16(cut)
		m.Records[i].TTL -= uint16(cut)
	}
	m.Raw = append(m.Raw[:m.opt], m.Raw[m.optEnd:]...)
	count := binary.BigEndian.Uint16(m.Raw[10:])
	binary.BigEndian.PutUint16(m.Raw[10:], count-1)
	m.opt, m.optEnd = 0, 0
	return nil
}

// AppendToChain completes the answer buf[start:], which ends with a CNAME record in its
// answer section, by m, the answer to the question for that record's target: m's
// records follow, m's rcode is the whole answer's (RFC 6604 section 3), and what is
// not all of m is not all of the whole: TC. m has no OPT record and stays as it is.
// The target stands uncompressed at offset target of the answer, and is m's name.
// Records that a message has no room for are left out, with TC unless only
// additional ones are. AppendToChain returns buf grown, or as it was and false if a
// compression pointer cannot reach its label any more.
func (m *Message) AppendToChain(buf []byte, start, target int) ([]byte, bool) {
	by := len(buf) - start - m.qend
	moved := func(label int) int {
		if label < m.qend {
			return label - HeaderLen + target
		}
		return label + by
	}
	head := len(buf)
	fits, counts, end := m.upTo(MaxMessage - by)
	buf = append(buf, m.Raw[m.qend:end]...)
	msg := buf[start:]
	for _, r := range m.Records[:fits] {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !mendRecord(msg, r, moved) {
			return buf[:head], false
		}
	}
	msg[2] |= m.Raw[2] & bitTC
	if fits < len(m.Records) && m.Records[fits].Section < Additional { // RFC 2181 section 9
		msg[2] |= bitTC
	}
	msg[3] = msg[3]&^rcodeMask | m.Raw[3]&rcodeMask
	for section, n := range counts {
		count := msg[6+2*section:]
		binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+n)
	}
	return buf, true
}

// upTo finds how many records end at or before a limit, how many of them each
// section has, and where the last one ends.
func (m *Message) upTo(limit int) (fits int, counts [Additional + 1]uint16, end int) {
	end = m.qend
	for i, r := range m.Records {
		next := r.Data() + int(r.Size)
		if next > limit {
			return i, counts, end
		}
		counts[r.Section]++
		end = next
	}
	return len(m.Records), counts, end
}

// mendRecord corrects the pointers of the record r of msg, whose labels have
// moved.
func mendRecord(msg []byte, r Record, moved func(int) int) bool {
	off := mendName(msg, int(r.Owner), moved)
	l, ok := nameLayout(r.Type)
	if off < 0 || !ok {
		return off >= 0
	}
	off = r.Data() + l.before
	for range l.names {
		if off = mendName(msg, off, moved); off < 0 {
			return false
		}
	}
	return true
}

// mendName corrects the pointer that the name at off may end with, and returns
// the offset after the name, or -1 if the pointer's label is lost.
func mendName(msg []byte, off int, moved func(int) int) int {
	for {
		n := int(msg[off])
		switch {
		case n == 0:
			return off + 1
		case n <= MaxLabel:
			off += n + 1
		default:
			to := moved(pointer(msg, off))
			if to < 0 || to >= pointerReach {
				return -1
			}
			binary.BigEndian.PutUint16(msg[off:], uint16(0xc000|to))
			return off + 2
		}
	}
}
