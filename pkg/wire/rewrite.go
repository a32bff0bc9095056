// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
)

// A Renamer maps names to other names.
type Renamer interface {
	// Rename appends the new name for name. Both are canonical and in wire form. Rename returns the
	// unchanged dst and false if the name has no new name.
	Rename(dst, name []byte) ([]byte, bool)
}

// A Rewriter rewrites answers with other names or addresses. The zero value is ready for use and
// can be reused.
//
// It writes names label by label up to one that the new message already has, so the compression of
// the old message does not matter. A renamed name is compressed against the new question and
// earlier copies of itself only.
type Rewriter struct {
	m        *Message // the old message
	msg      []byte   // m.Raw
	out      []byte   // the buffer that the new message is appended to
	start    int      // start of the new message in out
	question []byte   // the new question's name
	counts   [Additional + 1]uint16

	renamer       Renamer
	renamedOffset []uint16 // new offset of the renamed name at an old offset; 0: not written yet; or notRenamed
	newOffset     []uint16 // new offset of the label at an old offset, for names that are not renamed

	current, replacement, targetName []byte // reused
	addr                             [16]byte
}

// Rename appends m as the answer to question, a canonical wire-form name. m has no OPT record.
// Rename maps owners and the names in RDATA by names. It drops a CNAME record whose target becomes
// its own owner. Type and class of the question stay. AD is cleared, because no server validated
// the result. If the result exceeds [MaxMessage], Rename stops early and sets TC, unless only
// additional records are left out.
func (c *Rewriter) Rename(dst []byte, m *Message, question []byte, names Renamer) []byte {
	c.begin(dst, m, question, names)
	for _, r := range m.Records {
		if r.Type == TypeCNAME && c.isSelfAlias(r) {
			continue
		}
		at := len(c.out)
		c.copyRecord(m, r)
		if c.overflows(r, at) {
			break
		}
	}
	return c.finish()
}

// An Embedder maps an IPv4 address to an IPv6 address. It returns false for an address that must
// not be mapped.
type Embedder func(to *[16]byte, from *[4]byte) bool

// SynthesizeAAAA appends m, the answer to an A question, as the answer to the AAAA question (RFC
// 6147). m has no OPT record. embed maps each address of the answer section or drops it. TTLs are
// at most longest seconds (RFC 6147 section 5.1.7). Signatures of changed records and AD are
// dropped. A result that exceeds [MaxMessage] is cut as by Rename.
func (c *Rewriter) SynthesizeAAAA(dst []byte, m *Message, embed Embedder, longest uint32) []byte {
	c.begin(dst, m, m.Raw[HeaderLen:m.qend-4], nil)
	binary.BigEndian.PutUint16(c.out[len(c.out)-4:], TypeAAAA)
	for _, r := range m.Records {
		at := len(c.out)
		switch {
		case r.Section == Answer && r.Type == TypeRRSIG && m.TypeCovered(r) == TypeA:
			continue
		case r.Section != Answer || r.Type != TypeA || r.Class != ClassIN:
			c.copyRecord(m, r)
		case embed(&c.addr, (*[4]byte)(c.msg[r.Data():])):
			c.appendAAAA(m, r, longest)
		default:
			continue
		}
		if c.overflows(r, at) {
			break
		}
	}
	return c.finish()
}

// begin writes the header and the question.
func (c *Rewriter) begin(dst []byte, m *Message, question []byte, names Renamer) {
	c.m, c.msg, c.renamer, c.start, c.counts = m, m.Raw, names, len(dst), [Additional + 1]uint16{}
	if c.newOffset == nil {
		c.newOffset, c.renamedOffset = make([]uint16, pointerReach), make([]uint16, pointerReach)
	}
	reach := min(len(m.Raw), pointerReach)
	clear(c.newOffset[:reach])
	clear(c.renamedOffset[:reach])
	c.out = dst
	c.out = append(c.out, m.Raw[:HeaderLen]...)
	c.out = append(c.out, question...)
	c.out = append(c.out, m.Raw[m.qend-4:m.qend]...)
	c.out[c.start+3] &^= bitAD
	c.question = c.out[c.start+HeaderLen:][:len(question):len(question)]
	if names == nil { // the question stands where it stood
		for off := HeaderLen; off < m.qend-5; off += int(m.Raw[off]) + 1 {
			c.newOffset[off] = uint16(off)
		}
		return
	}
	c.renamedOffset[HeaderLen] = HeaderLen
}

// overflows reports whether r, which was appended at an offset, exceeds the message size. If so it
// removes r, otherwise it counts r.
func (c *Rewriter) overflows(r Record, at int) bool {
	if len(c.out)-c.start <= MaxMessage {
		c.counts[r.Section]++
		return false
	}
	c.out = c.out[:at]
	if r.Section < Additional { // RFC 2181 section 9
		c.out[c.start+2] |= bitTC
	}
	return true
}

// finish writes the section counts and returns the message.
func (c *Rewriter) finish() []byte {
	for section, n := range c.counts {
		binary.BigEndian.PutUint16(c.out[c.start+6+2*section:], n)
	}
	out := c.out
	c.m, c.msg, c.out, c.question, c.renamer = nil, nil, nil, nil, nil
	return out
}

// appendAAAA appends the address record r with the address c.addr.
func (c *Rewriter) appendAAAA(m *Message, r Record, longest uint32) {
	c.copyName(int(r.Owner))
	c.out = binary.BigEndian.AppendUint16(c.out, TypeAAAA)
	c.out = binary.BigEndian.AppendUint16(c.out, r.Class)
	c.out = binary.BigEndian.AppendUint32(c.out, min(m.RecordTTL(r), longest))
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(len(c.addr)))
	c.out = append(c.out, c.addr[:]...)
}

// copyRecord appends r with its names mapped.
func (c *Rewriter) copyRecord(m *Message, r Record) {
	c.copyName(int(r.Owner))
	c.out = append(c.out, c.msg[r.TTL-4:r.Data()]...)
	c.copyData(m, r)
}

// copyData appends the RDATA of r and corrects its length field, which the caller appended.
func (c *Rewriter) copyData(m *Message, r Record) {
	size := len(c.out)
	off, end := r.Data(), r.Data()+int(r.Size)
	if l, ok := nameLayout(r.Type); ok {
		c.out = append(c.out, c.msg[off:off+l.before]...)
		off += l.before
		for range l.names {
			off = c.copyName(off)
		}
	} else if c.renamer != nil && hasPlainTarget(r.Type) {
		off = c.copyTarget(m, r)
	}
	c.out = append(c.out, c.msg[off:end]...)
	binary.BigEndian.PutUint16(c.out[size-2:], uint16(len(c.out)-size))
}

// isSelfAlias reports whether the CNAME record r points to its own owner after renaming.
func (c *Rewriter) isSelfAlias(r Record) bool {
	c.replacement = c.newName(c.replacement[:0], int(r.Owner))
	c.targetName = c.newName(c.targetName[:0], r.Data())
	return bytes.Equal(c.replacement, c.targetName)
}

// newName appends the name that the name at off gets in the new message.
func (c *Rewriter) newName(dst []byte, off int) []byte {
	c.current = c.m.AppendName(c.current[:0], off)
	if other, ok := c.renamer.Rename(dst, c.current); ok {
		return other
	}
	return append(dst, c.current...)
}

// hasPlainTarget reports whether the type has a target that must not be compressed.
func hasPlainTarget(rrtype uint16) bool {
	return rrtype == TypeSVCB || rrtype == TypeHTTPS || rrtype == TypeNAPTR
}

// copyTarget appends the RDATA of r up to and including its renamed target, if it has one. It
// returns the offset of the rest.
func (c *Rewriter) copyTarget(m *Message, r Record) int {
	off, target := r.Data(), m.Target(r)
	if target < off { // no target, or the owner
		return off
	}
	c.current = m.AppendName(c.current[:0], target)
	other, ok := c.renamer.Rename(c.replacement[:0], c.current)
	if c.replacement = other; !ok {
		return off
	}
	c.out = append(c.out, c.msg[off:target]...)
	c.out = append(c.out, c.replacement...)
	return plainNameEnd(c.msg, target)
}

// copyName appends the name at off, or its new name. It returns the offset after the name in the
// old message.
func (c *Rewriter) copyName(off int) (end int) {
	end = anyNameEnd(c.msg, off)
	off = follow(c.msg, off)
	if c.renamer != nil && c.copyRenamed(off) {
		return end
	}
	c.out = appendRelocated(c.out, c.start, c.newOffset, c.msg, off)
	return end
}

// notRenamed marks a name in Rewriter.renamedOffset that has no new name.
const notRenamed = pointerReach

// copyRenamed appends the new name of the name at off, if it has one.
func (c *Rewriter) copyRenamed(off int) bool {
	if off < pointerReach {
		switch to := c.renamedOffset[off]; to {
		case 0:
		case notRenamed:
			return false
		default:
			c.out = binary.BigEndian.AppendUint16(c.out, 0xc000|to)
			return true
		}
	}
	c.current = c.m.AppendName(c.current[:0], off)
	other, ok := c.renamer.Rename(c.replacement[:0], c.current)
	if c.replacement = other; !ok {
		if off < pointerReach {
			c.renamedOffset[off] = notRenamed
		}
		return false
	}
	if at := len(c.out) - c.start; off < pointerReach && at < pointerReach {
		c.renamedOffset[off] = uint16(at)
	}
	c.appendName(other)
	return true
}

// appendName appends a name. It compresses the suffix that the name shares with the question.
func (c *Rewriter) appendName(name []byte) {
	for off := 0; name[off] != 0; off += int(name[off]) + 1 {
		if at := len(c.question) - (len(name) - off); at >= 0 && c.isLabelStart(at) && bytes.Equal(c.question[at:], name[off:]) {
			c.out = append(c.out, name[:off]...)
			c.out = binary.BigEndian.AppendUint16(c.out, 0xc000|uint16(HeaderLen+at))
			return
		}
	}
	c.out = append(c.out, name...)
}

// isLabelStart reports whether a label of the question begins at offset at of the question.
func (c *Rewriter) isLabelStart(at int) bool {
	off := 0
	for off < at {
		off += int(c.question[off]) + 1
	}
	return off == at
}

// A RecordFilter rewrites messages with some of their records only. The zero value is ready for use
// and can be reused.
type RecordFilter struct {
	msg       []byte   // the message before
	out       []byte   // the message after
	newOffset []uint16 // new offset of the label at an old offset; 0: not written yet
}

// Keep rewrites m with its question and the records that order lists by their indices in m.Records,
// in that order. The order must keep the sections apart. Keep drops the OPT record. Names keep
// their values even if the records they were compressed against are gone. Keep overwrites m.Raw, or
// replaces it in the rare case that it is too small. If the uncompressed names need more than
// [MaxMessage] bytes, Keep returns [ErrMalformed] and m is no longer valid.
func (s *RecordFilter) Keep(m *Message, order []uint16) error {
	s.copyQuestion(m)
	var counts [Additional + 1]uint16
	for _, i := range order {
		r := m.Records[i]
		s.copyRecord(r)
		if len(s.out) > MaxMessage {
			return ErrMalformed
		}
		counts[r.Section]++
	}
	for section, n := range counts {
		binary.BigEndian.PutUint16(s.out[6+2*section:], n)
	}
	m.Raw = append(m.Raw[:0:len(m.Raw)], s.out...)
	return m.Parse(m.Raw)
}

// copyQuestion copies the header and the question, which do not change.
func (s *RecordFilter) copyQuestion(m *Message) {
	s.msg = m.Raw
	s.out = append(s.out[:0], m.Raw[:m.qend]...)
	if s.newOffset == nil {
		s.newOffset = make([]uint16, pointerReach)
	}
	clear(s.newOffset[:min(len(m.Raw), pointerReach)])
	for off := HeaderLen; off < m.qend-5; off += int(m.Raw[off]) + 1 {
		s.newOffset[off] = uint16(off)
	}
}

// copyRecord appends the record r.
func (s *RecordFilter) copyRecord(r Record) {
	s.copyName(int(r.Owner))
	s.out = append(s.out, s.msg[r.TTL-4:r.Data()]...)
	data := len(s.out)
	off, end := r.Data(), r.Data()+int(r.Size)
	if l, ok := nameLayout(r.Type); ok {
		s.out = append(s.out, s.msg[off:off+l.before]...)
		off += l.before
		for range l.names {
			off = s.copyName(off)
		}
	}
	s.out = append(s.out, s.msg[off:end]...)
	binary.BigEndian.PutUint16(s.out[data-2:], uint16(len(s.out)-data))
}

// copyName appends the name at off. It returns the offset after the name in the old message.
func (s *RecordFilter) copyName(off int) (end int) {
	s.out = appendRelocated(s.out, 0, s.newOffset, s.msg, off)
	return anyNameEnd(s.msg, off)
}

// appendRelocated appends the name at off in msg to the message that begins at start in out. It
// writes the labels up to the first one that was written before, then a pointer to that one.
// newOffset holds the new offset of each label by its offset in msg; 0 means not written yet.
func appendRelocated(out []byte, start int, moved []uint16, msg []byte, off int) []byte {
	for {
		off = follow(msg, off)
		if msg[off] == 0 {
			return append(out, 0)
		}
		if off < pointerReach {
			if to := moved[off]; to != 0 {
				return binary.BigEndian.AppendUint16(out, 0xc000|to)
			}
			if at := len(out) - start; at < pointerReach {
				moved[off] = uint16(at)
			}
		}
		next := off + int(msg[off]) + 1
		out = append(out, msg[off:next]...)
		off = next
	}
}
