// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
)

// StripOPT removes the OPT record in place: it is valid for one hop only and must not be stored
// (RFC 6891 section 6.1.1). Records after it move up and their pointers are corrected. StripOPT
// fails, and m is no longer valid, if a pointer led into the OPT record itself.
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
		if !relocateRecord(m.Raw, r, moved) {
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

// AppendToChain appends m, the answer for a CNAME target, to the answer buf[start:], which ends
// with that CNAME record in its answer section. m has no OPT record and does not change. The target
// is uncompressed at offset target of the answer and equals m's name. The result has m's rcode (RFC
// 6604 section 3), and TC if m has TC. Records that do not fit are left out, with TC unless only
// additional records are. AppendToChain returns the grown buf, or the unchanged buf and false if a
// compression pointer can no longer reach its label.
func (m *Message) AppendToChain(buf []byte, start, target int) ([]byte, bool) {
	by := len(buf) - start - m.qend
	moved := func(label int) int {
		if label < m.qend {
			return label - HeaderLen + target
		}
		return label + by
	}
	head := len(buf)
	fits, counts, end := m.recordsWithin(MaxMessage - by)
	buf = append(buf, m.Raw[m.qend:end]...)
	msg := buf[start:]
	for _, r := range m.Records[:fits] {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !relocateRecord(msg, r, moved) {
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

// recordsWithin returns how many records end at or before limit, their number by section, and the
// end of the last one.
func (m *Message) recordsWithin(limit int) (fits int, counts [Additional + 1]uint16, end int) {
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

// relocateRecord corrects the pointers of the record r of msg after labels have moved.
func relocateRecord(msg []byte, r Record, moved func(int) int) bool {
	off := relocateName(msg, int(r.Owner), moved)
	l, ok := nameLayout(r.Type)
	if off < 0 || !ok {
		return off >= 0
	}
	off = r.Data() + l.before
	for range l.names {
		if off = relocateName(msg, off, moved); off < 0 {
			return false
		}
	}
	return true
}

// relocateName corrects the pointer at the end of the name at off, if it has one. It returns the
// offset after the name, or -1 if the pointer's label is gone.
func relocateName(msg []byte, off int, moved func(int) int) int {
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

// AppendDenial appends m, an NXDOMAIN answer, as the answer for name and rrtype: no name exists
// below a name that does not exist (RFC 8020). name is canonical and ends in the name that m
// denies. The question of m is canonical too. m has no OPT record and does not change. The result
// has AD clear, because no server validated it for this name. AppendDenial returns the unchanged
// dst and false if the message or a compression pointer gets too long.
func (m *Message) AppendDenial(dst, name []byte, rrtype uint16) ([]byte, bool) {
	by := len(name) - (m.qend - 4 - HeaderLen)
	if len(m.Raw)+by > MaxMessage {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, m.Raw[:HeaderLen]...)
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = append(dst, m.Raw[m.qend-2:]...) // the class, and all records
	msg := dst[start:]
	msg[3] &^= bitAD
	// The new labels shift the denied name and all records.
	moved := func(label int) int { return label + by }
	for _, r := range m.Records {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !relocateRecord(msg, r, moved) {
			return dst[:start], false
		}
	}
	return dst, true
}
