// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// suffixSlots is the number of names that a suffixTable can hold.
const suffixSlots = 1 << 12

// A suffixTable finds a name that a new message already has. It holds offsets by hash of the name; a newer name replaces
// an older one in its slot. So its cost is bounded. A name that was replaced is written in full again.
type suffixTable struct {
	seed    maphash.Seed // random, so that senders cannot construct collisions
	offsets [suffixSlots]uint16

	hashes [MaxName / 2]uint64 // hashes of the suffixes of the name being written, by their first label; see hashName
}

// hashName computes the hashes of the name at off, and of its suffixes.
func (t *suffixTable) hashName(msg []byte, off int) {
	var starts [MaxName / 2]uint16
	n := 0
	for off = follow(msg, off); msg[off] != 0; off = follow(msg, off+int(msg[off])+1) {
		starts[n] = uint16(off)
		n++
	}
	const multiplier = 0x9e3779b97f4a7c15
	for hash := uint64(0); n > 0; {
		n--
		at := int(starts[n])
		hash = (hash ^ maphash.Bytes(t.seed, msg[at:at+int(msg[at])+1])) * multiplier
		t.hashes[n] = hash
	}
}

// slot returns the slot of the suffix that begins with the given label of the hashed name, counted from 0.
func (t *suffixTable) slot(label int) *uint16 { return &t.offsets[t.hashes[label]>>52] }

// Compress rewrites m, which has no OPT record, with compressed names if its sender did not compress it. The case of all
// letters stays. It leaves m unchanged if the result exceeds [MaxMessage].
func (c *Rewriter) Compress(m *Message) error {
	if !hasFullOwner(m) {
		return nil
	}
	if c.suffixes == nil {
		c.suffixes = &suffixTable{seed: maphash.MakeSeed()}
	}
	clear(c.suffixes.offsets[:])
	c.begin(c.kept[:0], m, m.Raw[HeaderLen:m.qend-4], nil)
	c.compress = true
	defer func() { c.compress = false }()
	c.suffixes.hashName(m.Raw, HeaderLen)
	for off, label := HeaderLen, 0; m.Raw[off] != 0; off, label = off+int(m.Raw[off])+1, label+1 {
		*c.suffixes.slot(label) = uint16(off)
	}
	for _, r := range m.Records {
		if !c.copyRecord(r) {
			return nil
		}
	}
	c.kept = c.finish()
	m.Raw = append(m.Raw[:0:len(m.Raw)], c.kept...)
	return m.Parse(m.Raw)
}

// hasFullOwner reports whether an owner name is written in full. Servers that compress write an owner in full only if it
// shares no label with an earlier name.
func hasFullOwner(m *Message) bool {
	for _, r := range m.Records {
		if end := int(r.TTL) - 5; m.Raw[end] == 0 && end > int(r.Owner) { // it ends in the root label, and is not the root itself
			return true
		}
	}
	return false
}

// pointBack handles the name at off of the old message, which begins with the given label of the hashed name. If the new
// message has the name, pointBack appends a pointer. Otherwise it records that the name begins here, and returns false.
func (c *Rewriter) pointBack(off, label int) bool {
	if !c.inFull {
		if to := c.writtenAt(off, label); to != 0 {
			c.out = binary.BigEndian.AppendUint16(c.out, 0xc000|uint16(to))
			return true
		}
	}
	if at := len(c.out) - c.start; at < pointerReach {
		*c.suffixes.slot(label) = uint16(at)
	}
	return false
}

// writtenAt returns the offset in the new message of the name at off of the old one, 0 if it is not known. The name
// begins with the given label of the hashed name.
func (c *Rewriter) writtenAt(off, label int) int {
	at := int(*c.suffixes.slot(label))
	if at == 0 {
		return 0
	}
	msg, out := c.m.Raw, c.out[c.start:]
	for to := at; to < len(out); { // the end of out: the candidate is part of the name that is being written
		off, to = follow(msg, off), follow(out, to)
		n := int(msg[off]) + 1
		switch {
		case !bytes.Equal(msg[off:off+n], out[to:min(to+n, len(out))]):
			return 0
		case n == 1:
			return at
		}
		off, to = off+n, to+n
	}
	return 0
}

// mayCompress reports whether pointers may be in the RDATA of a type (RFC 3597 section 4).
func mayCompress(rrtype uint16) bool {
	switch rrtype {
	case TypeNS, 3, 4, TypeCNAME, TypeSOA, 7, 8, 9, TypePTR, 14, TypeMX: // 3 MD, 4 MF, 7 MB, 8 MG, 9 MR, 14 MINFO
		return true
	}
	return false
}
