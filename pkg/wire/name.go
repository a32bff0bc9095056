// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"sort"
)

// maxPointers is the most compression pointers that one name may follow. A name of 255 bytes has at
// most 127 labels, so a valid name needs no more. Without the bound a 64 KiB message of pointers
// costs quadratic time (CVE-2024-8508).
const maxPointers = 126

// maxLabelSteps bounds the labels and pointers that all names of a message visit after their first
// pointers. 4,096 addresses of a name below ip6.arpa need 151,552. The bound also limits the cost
// of walking all names of a parsed message.
const maxLabelSteps = 1 << 18

// plainNameEnd returns the offset after the uncompressed name at off, or -1.
func plainNameEnd(msg []byte, off int) int {
	start := off
	for {
		if off >= len(msg) {
			return -1
		}
		n := int(msg[off])
		if n > MaxLabel {
			return -1
		}
		off += n + 1
		if off-start > MaxName {
			return -1
		}
		if n == 0 {
			return off
		}
	}
}

// anyNameEnd returns the offset after the name at off, or -1. A pointer at its end is not followed.
func anyNameEnd(msg []byte, off int) int {
	start := off
	for {
		if off >= len(msg) {
			return -1
		}
		n := int(msg[off])
		switch {
		case n == 0:
			return off + 1
		case n <= MaxLabel:
			off += n + 1
		case n >= 0xc0:
			if off+2 > len(msg) {
				return -1
			}
			return off + 2
		default:
			return -1
		}
		if off-start >= MaxName { // the root label is still to come
			return -1
		}
	}
}

// sameName compares the names at a and b, following pointers and ignoring case. Both must have
// passed nameEnd.
func sameName(msg []byte, a, b int) bool {
	for {
		a, b = follow(msg, a), follow(msg, b)
		if a == b {
			return true
		}
		n := int(msg[a])
		if n != int(msg[b]) {
			return false
		}
		if n == 0 {
			return true
		}
		if !equalFold(msg[a+1:a+1+n], msg[b+1:b+1+n]) {
			return false
		}
		a, b = a+n+1, b+n+1
	}
}

// follow returns the offset of the label that the pointers at off lead to.
func follow(msg []byte, off int) int {
	for msg[off] >= 0xc0 {
		off = pointer(msg, off)
	}
	return off
}

// lower writes src to dst in lower case. Both have the same length. Length bytes are below 'A', so
// src may be a whole wire-form name.
func lower(dst, src []byte) {
	const (
		ones   = 0x0101010101010101
		high   = 0x80 * ones
		belowA = (0x80 - 'A') * ones
		aboveZ = (0x7f - 'Z') * ones
	)
	for len(src) >= 8 && len(dst) >= 8 {
		x := binary.LittleEndian.Uint64(src)
		low := x &^ high
		upper := ^x & high & ((low + belowA) ^ (low + aboveZ))
		binary.LittleEndian.PutUint64(dst, x|upper>>2)
		src, dst = src[8:], dst[8:]
	}
	for i, c := range src {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst[i] = c
	}
}

// Canonical writes the canonical form of the uncompressed wire-form name to dst, which has the same
// length.
func Canonical(dst, name []byte) { lower(dst, name) }

// equalFold compares two strings of the same length, ignoring the case of ASCII letters (RFC 4343).
// Bytes above 127 must match exactly.
func equalFold(a, b []byte) bool {
	for i, c := range a {
		d := b[i]
		if c == d {
			continue
		}
		if c|0x20 != d|0x20 || c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}

// AppendText appends the wire-form name in presentation format (RFC 1035 section 5.1), with a final
// dot. It escapes all bytes but letters, digits, '-', '_' and '*'.
func AppendText(dst, name []byte) []byte {
	if len(name) == 1 {
		return append(dst, '.')
	}
	for name[0] != 0 {
		label := name[1 : 1+name[0]]
		for _, c := range label {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '*':
				dst = append(dst, c)
			default:
				dst = append(dst, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
			}
		}
		dst = append(dst, '.')
		name = name[1+name[0]:]
	}
	return dst
}

// pointerReach is one more than the highest offset that fits a compression pointer.
const pointerReach = 1 << 14

// A labelSet records the offsets of labels that a compression pointer may lead to.
//
// A valid pointer leads only to such an offset, so a name consists of other names' labels only.
// Later edits (question case, TTLs, the OPT record, truncation, rotation of addresses) then cannot
// change a checked name or turn it into a loop.
type labelSet [pointerReach / 64]uint64

// reset empties the set for a message of size bytes.
func (s *labelSet) reset(size int) { clear(s[:min(size/64+1, len(s))]) }

func (s *labelSet) add(off int) {
	if off < pointerReach {
		s[off/64] |= 1 << (off % 64)
	}
}

func (s *labelSet) has(off int) bool { return s[off/64]&(1<<(off%64)) != 0 }

// addLabels adds the labels from off up to the root label or pointer at stop.
func (s *labelSet) addLabels(msg []byte, off, stop int) {
	for ; off < stop; off += int(msg[off]) + 1 {
		s.add(off)
	}
	s.add(stop)
}

// labelsEnd skips the labels at off. It returns the offset of the root label or pointer that ends
// them, or -1 if the message ends first.
func labelsEnd(msg []byte, off int) int {
	for off < len(msg) && msg[off] != 0 && msg[off] <= MaxLabel {
		off += int(msg[off]) + 1
	}
	if off >= len(msg) {
		return -1
	}
	return off
}

// nameEnd returns the offset after the name at off. It checks that every pointer leads to a label
// of an earlier name, and that the name has at most [MaxName] bytes. It returns -1 if the name is
// malformed.
func (m *Message) nameEnd(msg []byte, off int) int {
	stop := labelsEnd(msg, off)
	if stop < 0 || stop-off+1 > MaxName {
		return -1
	}
	m.labels.addLabels(msg, off, stop)
	if msg[stop] == 0 {
		return stop + 1
	}
	end, size := stop+2, stop-off+1
	to := m.target(msg, stop, off)
	if to < 0 {
		return -1
	}
	for range maxPointers { // what to leads to was checked with its own name
		stop = to
		for ; msg[stop] != 0 && msg[stop] <= MaxLabel; stop += int(msg[stop]) + 1 {
			m.labelSteps++
		}
		m.labelSteps++
		if size += stop - to; size > MaxName || m.labelSteps > maxLabelSteps {
			return -1
		}
		if msg[stop] == 0 {
			return end
		}
		to = pointer(msg, stop)
	}
	return -1
}

// target returns where the pointer at off leads. It returns -1 unless that is a label before start,
// where the name begins.
func (m *Message) target(msg []byte, off, start int) int {
	if msg[off] < 0xc0 || off+2 > len(msg) {
		return -1
	}
	to := pointer(msg, off)
	if to >= start || !m.isLabel(msg, to) {
		return -1
	}
	return to
}

// pointer returns the target of the compression pointer at off.
func pointer(msg []byte, off int) int {
	return int(binary.BigEndian.Uint16(msg[off:]) & (pointerReach - 1))
}

// isLabel reports whether a pointer may lead to off: to a label of a parsed name, or of an
// uncompressed name in the RDATA of a type that Parse does not inspect. Some servers compress
// against the signer of an RRSIG. Addresses do not count, because they may be rotated.
func (m *Message) isLabel(msg []byte, off int) bool {
	if m.labels.has(off) {
		return true
	}
	i := sort.Search(len(m.Records), func(i int) bool { return m.Records[i].Data() > off }) - 1
	if i < 0 || m.Records[i].Type == TypeA || m.Records[i].Type == TypeAAAA {
		return false
	}
	r := m.Records[i]
	if _, walked := nameLayout(r.Type); walked || plainNameEnd(msg[:r.Data()+int(r.Size)], off) < 0 {
		return false
	}
	m.labels.addLabels(msg, off, labelsEnd(msg, off))
	return true
}
