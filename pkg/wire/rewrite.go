// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
)

// A Rewriter rewrites answers with other names or addresses, or with some of their records only. The
// zero value is ready for use and can be reused.
//
// It writes names label by label up to a label that the new message already has, so the compression of
// the old message does not matter. A renamed name is compressed against the new question and
// earlier copies of itself only.
type Rewriter struct {
	m        *Message // the old message
	out      []byte   // the buffer that the new message is appended to
	start    int      // start of the new message in out
	question []byte   // the new question's name
	counts   sectionCounts

	names         func(dst, name []byte) ([]byte, bool) // see Rename; nil: no name changes
	renamedOffset []uint16                              // new offset of the renamed name at an old offset; 0: not written yet; or notRenamed
	newOffset     []uint16                              // new offset of the label at an old offset, for names that are not renamed; 0: not written yet

	compress bool         // find names by their labels too, see Compress
	inFull   bool         // with compress: the name that is being written may keep its pointer, but gets no new one
	suffixes *suffixTable // nil: not needed yet

	current, replacement, targetName, kept []byte // reused
	addr                                   [16]byte
}

// Rename appends m as the answer to question, a canonical wire-form name. m has no OPT record. Owners and
// the names in RDATA are mapped by names. It appends the new name for a name, both canonical and in wire
// form, or returns the unchanged dst and false if the name stays. Rename drops a CNAME record whose target
// becomes its own owner. Type and class of the question stay. AD is cleared, because no server validated
// the result. Beyond [MaxMessage] the result ends early, with TC set unless only additional records are
// left out.
func (c *Rewriter) Rename(dst []byte, m *Message, question []byte, names func(dst, name []byte) ([]byte, bool)) []byte {
	c.begin(dst, m, question, names)
	c.out[c.start+3] &^= bitAD
	for _, r := range m.Records {
		if r.Type == TypeCNAME && c.isSelfAlias(r) {
			continue
		}
		if !c.copyRecord(r) {
			break
		}
	}
	return c.finish()
}

// SynthesizeAAAA appends m, the answer to an A question, as the answer to the AAAA question (RFC 6147). m
// has no OPT record. embed maps each IPv4 address of the answer section to an IPv6 address, or returns false
// to drop it. Synthesized records have a TTL of at most longest seconds (section 5.1.7). RRSIG records over
// A records in the answer section are dropped, and AD is cleared. Beyond [MaxMessage] the result ends early,
// with TC set unless only additional records are left out.
func (c *Rewriter) SynthesizeAAAA(dst []byte, m *Message, embed func(to *[16]byte, from *[4]byte) bool, longest uint32) []byte {
	c.begin(dst, m, m.Raw[HeaderLen:m.qend-4], nil)
	c.out[c.start+3] &^= bitAD
	binary.BigEndian.PutUint16(c.out[len(c.out)-4:], TypeAAAA)
	for i, fits := 0, true; fits && i < len(m.Records); i++ {
		switch r := m.Records[i]; {
		case r.Section == Answer && r.Type == TypeRRSIG && m.TypeCovered(r) == TypeA:
		case r.Section != Answer || r.Type != TypeA || r.Class != ClassIN:
			fits = c.copyRecord(r)
		case embed(&c.addr, (*[4]byte)(m.Raw[r.Data():])):
			fits = c.appendAAAA(r, longest)
		}
	}
	return c.finish()
}

// Keep rewrites m with its question and the records that order lists by their indices in m.Records,
// in that order. The order must keep the sections apart. Keep drops the OPT record. Names keep
// their values even if the records they were compressed against are gone. Keep overwrites m.Raw, or
// replaces it in the rare case that it is too small. If the uncompressed names need more than
// [MaxMessage] bytes, Keep returns [ErrMalformed] and m is no longer valid.
func (c *Rewriter) Keep(m *Message, order []uint16) error {
	c.begin(c.kept[:0], m, m.Raw[HeaderLen:m.qend-4], nil)
	for _, i := range order {
		if !c.copyRecord(m.Records[i]) {
			return ErrMalformed
		}
	}
	c.kept = c.finish()
	m.Raw = append(m.Raw[:0:len(m.Raw)], c.kept...)
	return m.Parse(m.Raw)
}

// begin writes the header and the question.
func (c *Rewriter) begin(dst []byte, m *Message, question []byte, names func(dst, name []byte) ([]byte, bool)) {
	c.m, c.names, c.start, c.counts = m, names, len(dst), sectionCounts{}
	c.out = dst
	c.out = append(c.out, m.Raw[:HeaderLen]...)
	c.out = append(c.out, question...)
	c.out = append(c.out, m.Raw[m.qend-4:m.qend]...)
	c.question = c.out[c.start+HeaderLen:][:len(question):len(question)]
	reach := min(len(m.Raw), pointerReach)
	if c.newOffset == nil {
		c.newOffset = make([]uint16, pointerReach)
	}
	clear(c.newOffset[:reach])
	if names == nil { // the question stays where it is
		for off := HeaderLen; off < m.qend-5; off += int(m.Raw[off]) + 1 {
			c.newOffset[off] = uint16(off)
		}
		return
	}
	if c.renamedOffset == nil {
		c.renamedOffset = make([]uint16, pointerReach)
	}
	clear(c.renamedOffset[:reach])
	c.renamedOffset[HeaderLen] = HeaderLen
}

// finish writes the section counts and returns the message.
func (c *Rewriter) finish() []byte {
	c.counts.put(c.out[c.start:])
	out := c.out
	c.m, c.out, c.question, c.names = nil, nil, nil, nil
	return out
}

// count counts r, which was appended at an offset. If the new message exceeds MaxMessage, count removes r
// and returns false.
func (c *Rewriter) count(r Record, at int) bool {
	if len(c.out)-c.start > MaxMessage {
		c.out = c.out[:at]
		setTruncated(c.out[c.start:], r.Section)
		return false
	}
	c.counts[r.Section]++
	return true
}

// appendAAAA appends the A record r as an AAAA record with the address c.addr. It returns false if the
// new message would get too long.
func (c *Rewriter) appendAAAA(r Record, longest uint32) bool {
	at := len(c.out)
	c.copyName(int(r.Owner))
	c.out = binary.BigEndian.AppendUint16(c.out, TypeAAAA)
	c.out = binary.BigEndian.AppendUint16(c.out, r.Class)
	c.out = binary.BigEndian.AppendUint32(c.out, min(c.m.RecordTTL(r), longest))
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(len(c.addr)))
	c.out = append(c.out, c.addr[:]...)
	return c.count(r, at)
}

// copyRecord appends r with its names mapped. It returns false if the new message would get too long.
func (c *Rewriter) copyRecord(r Record) bool {
	at, msg := len(c.out), c.m.Raw
	c.copyName(int(r.Owner))
	c.out = append(c.out, msg[r.TTL-4:r.Data()]...)
	data := len(c.out)
	off, end := r.Data(), r.Data()+int(r.Size)
	if before, names, _ := nameLayout(r.Type); names > 0 {
		c.out = append(c.out, msg[off:off+before]...)
		off += before
		c.inFull = c.compress && !mayCompress(r.Type)
		for range names {
			off = c.copyName(off)
		}
		c.inFull = false
	} else if c.names != nil && hasPlainTarget(r.Type) {
		off = c.copyTarget(r)
	}
	c.out = append(c.out, msg[off:end]...)
	binary.BigEndian.PutUint16(c.out[data-2:], uint16(len(c.out)-data))
	return c.count(r, at)
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
	if other, ok := c.names(dst, c.current); ok {
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
func (c *Rewriter) copyTarget(r Record) int {
	off, target := r.Data(), c.m.Target(r)
	if target < off || !c.lookup(target) { // r has no target, its target is the root (which means the owner), or the target keeps its name
		return off
	}
	c.out = append(c.out, c.m.Raw[off:target]...)
	c.out = append(c.out, c.replacement...)
	return plainNameEnd(c.m.Raw, target)
}

// lookup writes the new name of the name at off to c.replacement, and reports whether it has one.
func (c *Rewriter) lookup(off int) (ok bool) {
	c.current = c.m.AppendName(c.current[:0], off)
	c.replacement, ok = c.names(c.replacement[:0], c.current)
	return ok
}

// copyName appends the name at off, or its new name. It returns the offset after the name in the
// old message.
func (c *Rewriter) copyName(off int) (end int) {
	end = anyNameEnd(c.m.Raw, off)
	off = follow(c.m.Raw, off)
	if c.names == nil || !c.copyRenamed(off) {
		c.copyLabels(off)
	}
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
	if !c.lookup(off) {
		if off < pointerReach {
			c.renamedOffset[off] = notRenamed
		}
		return false
	}
	if at := len(c.out) - c.start; off < pointerReach && at < pointerReach {
		c.renamedOffset[off] = uint16(at)
	}
	c.appendName(c.replacement)
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

// copyLabels appends the name at off of the old message: the labels up to the first one that was
// written before, then a pointer to that one.
func (c *Rewriter) copyLabels(off int) {
	msg, hashed := c.m.Raw, false
	for label := 0; ; label++ {
		off = follow(msg, off)
		if msg[off] == 0 {
			c.out = append(c.out, 0)
			return
		}
		if off < pointerReach {
			if to := c.newOffset[off]; to != 0 {
				c.out = binary.BigEndian.AppendUint16(c.out, 0xc000|to)
				return
			}
			if at := len(c.out) - c.start; at < pointerReach {
				c.newOffset[off] = uint16(at)
			}
		}
		if c.compress {
			if !hashed {
				c.suffixes.hashName(msg, off)
				hashed, label = true, 0
			}
			if c.pointBack(off, label) {
				return
			}
		}
		next := off + int(msg[off]) + 1
		c.out = append(c.out, msg[off:next]...)
		off = next
	}
}
