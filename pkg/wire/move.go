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

// Graft completes the answer buf[start:], which ends with a CNAME record in its
// answer section, by m, the answer to the question for that record's target: m's
// records follow and m's rcode is the whole answer's (RFC 6604 section 3). m has
// no OPT record and stays as it is. The target stands uncompressed at offset
// target of the answer, and is m's name. Graft returns buf grown, or as it was
// and false if a compression pointer cannot reach its label any more.
func (m *Message) Graft(buf []byte, start, target int) ([]byte, bool) {
	by := len(buf) - start - m.qend
	moved := func(label int) int {
		if label < m.qend {
			return label - HeaderLen + target
		}
		return label + by
	}
	if len(buf)-start+len(m.Raw)-m.qend > MaxMessage {
		return buf, false
	}
	head := len(buf)
	buf = append(buf, m.Raw[m.qend:]...)
	msg := buf[start:]
	for _, r := range m.Records {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !mendRecord(msg, r, moved) {
			return buf[:head], false
		}
	}
	msg[3] = msg[3]&^rcodeMask | m.Raw[3]&rcodeMask
	for count := 6; count < HeaderLen; count += 2 {
		n := binary.BigEndian.Uint16(msg[count:]) + binary.BigEndian.Uint16(m.Raw[count:])
		binary.BigEndian.PutUint16(msg[count:], n)
	}
	return buf, true
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
