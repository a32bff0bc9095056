// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"strings"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Header bits and offsets, and sizes in bytes.
const (
	bitsAnswer   = 0x84   // third byte: QR, AA
	bitTruncated = 0x02   // third byte: TC
	offsetCounts = 6      // ANCOUNT, which NSCOUNT and ARCOUNT follow
	fixedLen     = 10     // bytes of a record between owner and RDATA
	maxPointer   = 0x3fff // largest offset that a compression pointer can have
)

// The sections of a message, as its counts are ordered.
const (
	sectionAnswer = iota
	sectionAuthority
	sectionAdditional
	sectionCount
)

// A message is a response under construction, with a limit of bytes. Owners are pointers to an earlier copy of the name, if in reach.
type message struct {
	dst    []byte
	start  int // offset of the message in dst
	limit  int // most bytes of the message
	counts [sectionCount]uint16

	seen seenTable
}

// Kinds of entries in a seenTable.
const (
	seenName   = 1 + iota // the first copy of a target
	seenRecord            // a record, at the offset of its owner
	seenSet               // the first record of a set, at the offset of its owner
)

// maxSeen is twice the entries of a message that needs maxRead records: for each an answer, its target, an address and a set.
const maxSeen = 4 * maxRead * 2

// A seenTable is a hash table of what a message has. A slot is the kind<<16 plus the offset in the message; 0: free.
type seenTable struct {
	seed  maphash.Seed
	used  bool
	slots [maxSeen]uint32
}

// begin starts a message with the header and the question.
func (m *message) begin(q *wire.Query, dst []byte, limit int) {
	m.dst, m.start, m.limit, m.counts = dst, len(dst), limit, [sectionCount]uint16{}
	if m.seen.used {
		m.seen.slots, m.seen.used = [maxSeen]uint32{}, false
	}
	m.dst = append(m.dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	m.dst = q.AppendQuestion(m.dst)
}

// finish writes the rcode and the counts.
func (m *message) finish(rcode byte) {
	h := m.dst[m.start:]
	h[3] = rcode
	for section, n := range m.counts {
		binary.BigEndian.PutUint16(h[offsetCounts+2*section:], n)
	}
}

// isTruncated reports whether a record of the answer is missing.
func (m *message) isTruncated() bool { return m.dst[m.start+2]&bitTruncated != 0 }

// offset returns the offset of the message's end.
func (m *message) offset() int { return len(m.dst) - m.start }

// beginRecord appends a record without its RDATA, whose owner is the name at an offset, and returns the record's offset in dst.
func (m *message) beginRecord(owner int, rrtype uint16, ttl uint32) (at int) {
	at = len(m.dst)
	if owner <= maxPointer {
		m.dst = append(m.dst, 0xc0|byte(owner>>8), byte(owner))
	} else {
		m.dst = append(m.dst, nameAt(m.dst[m.start+owner:])...)
	}
	m.dst = binary.BigEndian.AppendUint16(m.dst, rrtype)
	m.dst = binary.BigEndian.AppendUint16(m.dst, wire.ClassIN)
	m.dst = binary.BigEndian.AppendUint32(m.dst, ttl)
	m.dst = append(m.dst, 0, 0)
	return at
}

// nameAt returns the name without pointers that msg begins with.
func nameAt(msg []byte) []byte {
	end := 0
	for msg[end] != 0 {
		end += 1 + int(msg[end])
	}
	return msg[:end+1]
}

// fixedAt returns the offset in dst of the fixed fields of the record at an offset in dst.
func (m *message) fixedAt(at int) int {
	if m.dst[at] >= 0xc0 {
		return at + 2
	}
	return at + len(nameAt(m.dst[at:]))
}

// endRecord ends the record from an offset in dst on. It removes the record if it is a duplicate or exceeds the limit, and returns
// false only if it exceeds the limit.
func (m *message) endRecord(at, section int) bool {
	fixed := m.fixedAt(at)
	size := len(m.dst) - fixed - fixedLen
	isDuplicate := false
	if size <= 1<<16-1 {
		binary.BigEndian.PutUint16(m.dst[fixed+fixedLen-2:], uint16(size))
		if m.offset() <= m.limit { // no offset in the table is beyond the limit
			hash := m.hash(at, fixed+4) + 31*m.hash(fixed+8, len(m.dst))
			isDuplicate = m.find(seenRecord, hash, at, func(other int) bool { return m.sameRecord(at, other) }) != at
		}
	}
	switch {
	case isDuplicate:
		m.dst = m.dst[:at]
	case m.offset() > m.limit:
		m.dst = m.dst[:at]
		if section == sectionAnswer {
			m.dst[m.start+2] |= bitTruncated
		}
		return false
	default:
		m.counts[section]++
	}
	return true
}

// sameRecord reports whether the records at two offsets in dst differ in nothing but their TTL.
func (m *message) sameRecord(a, b int) bool {
	x, y := m.fixedAt(a), m.fixedAt(b)
	size := fixedLen + int(binary.BigEndian.Uint16(m.dst[x+fixedLen-2:]))
	return bytes.Equal(m.dst[a:x+4], m.dst[b:y+4]) && y+size <= len(m.dst) && bytes.Equal(m.dst[x+8:x+size], m.dst[y+8:y+size])
}

// find returns the offset in dst of the first name, record or set that is the same as the one at the offset at in dst. If there is
// none, it adds that one and returns at. hash is a hash of the bytes that same compares.
func (m *message) find(kind uint32, hash uint64, at int, same func(other int) bool) int {
	m.seen.used = true
	for i := hash % maxSeen; ; i = (i + 1) % maxSeen {
		switch slot := m.seen.slots[i]; {
		case slot == 0:
			m.seen.slots[i] = kind<<16 | uint32(at-m.start)
			return at
		case slot>>16 == kind && same(m.start+int(slot&0xffff)):
			return m.start + int(slot&0xffff)
		}
	}
}

// hash returns a hash of bytes of the message.
func (m *message) hash(from, to int) uint64 { return maphash.Bytes(m.seen.seed, m.dst[from:to]) }

// nameOffset returns the offset in the message of the first copy of the name that begins at dst[at] and ends dst.
func (m *message) nameOffset(at int) int {
	name := m.dst[at:]
	same := func(other int) bool { return bytes.HasPrefix(m.dst[other:], name) }
	return m.find(seenName, m.hash(at, len(m.dst)), at, same) - m.start
}

// lowerTTL compares the record at an offset in dst with the first of its set, and gives both the lower of their TTLs. It returns
// true if the record had the lower TTL: records of the set between the two still have a higher one.
func (m *message) lowerTTL(at int) bool {
	fixed := m.fixedAt(at)
	set := m.dst[at : fixed+4]
	first := m.find(seenSet, m.hash(at, fixed+4), at, func(other int) bool { return bytes.HasPrefix(m.dst[other:], set) })
	mine, others := m.dst[fixed+4:fixed+8], m.dst[m.fixedAt(first)+4:][:4]
	switch bytes.Compare(mine, others) {
	case -1:
		copy(others, mine)
		return true
	case 1:
		copy(mine, others)
	}
	return false
}

// appendHost appends a host name in wire form. It omits the first strip labels, unless none would remain.
func appendHost(dst []byte, host string, strip int) []byte {
	if strip <= strings.Count(host, ".") {
		for range strip {
			_, host, _ = strings.Cut(host, ".")
		}
	}
	for more := true; more; {
		var label string
		label, host, more = strings.Cut(host, ".")
		dst = append(append(dst, byte(len(label))), label...)
	}
	return append(dst, 0)
}

// appendPath appends the name of a path in wire form. It omits the first strip labels of the name, unless none would remain.
func appendPath(dst []byte, path string, labels, strip int) []byte {
	path = path[:len(path)-1]
	for n := range labels {
		at := strings.LastIndexByte(path, '/')
		if label := path[at+1:]; n >= strip || strip >= labels {
			dst = append(append(dst, byte(len(label))), label...)
		}
		path = path[:max(0, at)]
	}
	return append(dst, 0)
}
