// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
)

// A Renamer knows other names for some.
type Renamer interface {
	// Rename appends the other name for name, both canonical and in wire form. It returns dst as it was, and false, if
	// there is none.
	Rename(dst, name []byte) ([]byte, bool)
}

// A Rewriter writes answers anew, with other names or addresses. The zero value is ready for use, again and again.
//
// Names are written label by label up to one that is in the new message already, so that it does not matter how, or
// against what, they were compressed. A name that gets another one is compressed against the new question alone and
// against itself where it comes again.
type Rewriter struct {
	m        *Message // as it was
	msg      []byte   // the message as it was
	out      []byte   // what it is appended to
	start    int      // where the message begins in out
	question []byte   // the new question's name
	counts   [Additional + 1]uint16

	renamer       Renamer
	renamedOffset []uint16 // where the name that begins at an offset, and got another one, stands now; 0: nowhere yet; hasNone
	newOffset     []uint16 // where the label that stood at an offset stands now, in a name that stayed what it is

	current, replacement, targetName []byte // reused
	addr                             [16]byte
}

// Rename appends m, which has no OPT record, as the answer to question, a canonical name in wire form: names have what
// names calls them in owners, and in the data of the types that lead to names. A CNAME record that leads to its own
// owner then is left out: what it led to stands there already. Type and class of the question stay, AD goes: nobody has
// signed this. Where that makes more than a message holds it ends before, with TC unless only additional records had to
// go: a set of which a part does not fit has the rest.
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

// An Embedder makes an IPv6 address of an IPv4 address. It is false for one of which none is to be made.
type Embedder func(to *[16]byte, from *[4]byte) bool

// Embed appends m, the answer to a question for addresses of IPv4 without OPT record, as that to the question for
// addresses of IPv6: each address of its answer section is made into one by embed, or left out, with a TTL of longest
// seconds at most (RFC 6147 section 5.1.7). Signatures of what was changed go, and AD. Where that makes more than a
// message holds it ends before, as that of Rename does.
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

// overflows tells whether r, which was appended at an offset, is more than the message holds. It is taken back then, and
// counted if not.
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

// finish gives the message away.
func (c *Rewriter) finish() []byte {
	for section, n := range c.counts {
		binary.BigEndian.PutUint16(c.out[c.start+6+2*section:], n)
	}
	out := c.out
	c.m, c.msg, c.out, c.question, c.renamer = nil, nil, nil, nil, nil
	return out
}

// appendAAAA appends r, an address, as c.addr.
func (c *Rewriter) appendAAAA(m *Message, r Record, longest uint32) {
	c.copyName(int(r.Owner))
	c.out = binary.BigEndian.AppendUint16(c.out, TypeAAAA)
	c.out = binary.BigEndian.AppendUint16(c.out, r.Class)
	c.out = binary.BigEndian.AppendUint32(c.out, min(m.RecordTTL(r), longest))
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(len(c.addr)))
	c.out = append(c.out, c.addr[:]...)
}

// copyRecord appends r with its names passed.
func (c *Rewriter) copyRecord(m *Message, r Record) {
	c.copyName(int(r.Owner))
	c.out = append(c.out, c.msg[r.TTL-4:r.Data()]...)
	c.copyData(m, r)
}

// copyData appends the RDATA of r and corrects its length, which was appended before.
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

// isSelfAlias tells whether the target of r, a CNAME record, gets the name that its owner gets.
func (c *Rewriter) isSelfAlias(r Record) bool {
	c.replacement = c.newName(c.replacement[:0], int(r.Owner))
	c.targetName = c.newName(c.targetName[:0], r.Data())
	return bytes.Equal(c.replacement, c.targetName)
}

// newName appends what the name at off is called in the new message.
func (c *Rewriter) newName(dst []byte, off int) []byte {
	c.current = c.m.AppendName(c.current[:0], off)
	if other, ok := c.renamer.Rename(dst, c.current); ok {
		return other
	}
	return append(dst, c.current...)
}

// hasPlainTarget tells of types with a target that may not be compressed.
func hasPlainTarget(rrtype uint16) bool {
	return rrtype == TypeSVCB || rrtype == TypeHTTPS || rrtype == TypeNAPTR
}

// copyTarget appends the RDATA of r up to its target and the target's other name, if it has one. It returns how far it
// came.
func (c *Rewriter) copyTarget(m *Message, r Record) int {
	off, target := r.Data(), m.Target(r)
	if target < off { // there is none, or it is the owner
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

// pass appends the name at off, or its other name. It returns the offset after the name as it was.
func (c *Rewriter) copyName(off int) (end int) {
	end = anyNameEnd(c.msg, off)
	off = follow(c.msg, off)
	if c.renamer != nil && c.copyRenamed(off) {
		return end
	}
	c.out = appendRelocated(c.out, c.start, c.newOffset, c.msg, off)
	return end
}

// notRenamed stands in Rewriter.renamed for a name that has no other name.
const notRenamed = pointerReach

// copyRenamed appends the other name of the name at off, if it has one.
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

// appendName appends a name, with a pointer to as much of the question as it ends with.
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

// isLabelStart tells whether a label of the question begins at an offset in it.
func (c *Rewriter) isLabelStart(at int) bool {
	off := 0
	for off < at {
		off += int(c.question[off]) + 1
	}
	return off == at
}
