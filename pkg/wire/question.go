// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
)

// questionEnd returns the offset after the question of q, or -1.
func questionEnd(q []byte) int {
	end := plainNameEnd(q, HeaderLen)
	if end < 0 || end+4 > len(q) {
		return -1
	}
	return end + 4
}

// QueryType returns the type in the question of q, a query that [Query.AppendUpstream] made, or 0.
func QueryType(q []byte) uint16 {
	end := questionEnd(q)
	if end < 0 {
		return 0
	}
	return binary.BigEndian.Uint16(q[end-4:])
}

// CopyQuestion overwrites the question of the answer r with that of the query q. r must have passed
// [Match].
func CopyQuestion(r, q []byte) {
	if end := questionEnd(q); end <= len(r) && end > 0 {
		copy(r[HeaderLen:end], q[HeaderLen:end])
	}
}

// WithUDPSize returns a copy of q, a query that [Query.AppendUpstream] made, with another EDNS
// size. It returns q itself if no OPT record follows the question.
func WithUDPSize(q []byte, size uint16) []byte {
	end := questionEnd(q)
	if end < 0 || len(q) < end+11 || q[end] != 0 || binary.BigEndian.Uint16(q[end+1:]) != TypeOPT {
		return q
	}
	q = slices.Clone(q)
	binary.BigEndian.PutUint16(q[end+3:], size)
	return q
}

// RandomCase changes the case of the letters in the name of the query q: byte i by bit i modulo 64
// of bits. An attacker that forges an answer must guess the bits too (draft-vixie-dnsext-dns0x20).
// The bits must be as unpredictable as an ID. 64 bits suffice: ID and port together have fewer.
func RandomCase(q []byte, bits uint64) {
	end := plainNameEnd(q, HeaderLen)
	if end < 0 {
		return
	}
	name := q[HeaderLen:end]
	for ; len(name) >= 8; name = name[8:] {
		x := binary.LittleEndian.Uint64(name)
		binary.LittleEndian.PutUint64(name, x^letterBits(x)&spreadBits(byte(bits))>>2)
		bits = bits>>8 | bits<<56
	}
	for i, c := range name {
		if 'a' <= c|0x20 && c|0x20 <= 'z' && bits>>i&1 != 0 {
			name[i] = c ^ 0x20
		}
	}
}

// Masks for the eight bytes of a uint64.
const (
	lowBits  = 0x0101010101010101 // the lowest bit of each
	highBits = 0x80 * lowBits     // the highest
)

// letterBits sets the highest bit of each of the eight bytes that is an ASCII letter. Length bytes
// are no letters.
func letterBits(x uint64) uint64 {
	const (
		belowA = (0x80 - 'a') * lowBits
		aboveZ = (0x7f - 'z') * lowBits
	)
	folded := x&^highBits | 0x20*lowBits
	return ^x & highBits & ((folded + belowA) ^ (folded + aboveZ))
}

// spreadBits sets the highest bit of byte i if bit i of bits is set.
func spreadBits(bits byte) uint64 {
	const diagonal = 0x8040201008040201 // bit i of byte i
	return (uint64(bits)*lowBits&diagonal + 0x7f*lowBits) & highBits
}

// A MatchResult says how the question of an answer compares with that of the query.
type MatchResult uint8

// The results of Match.
const (
	NoMatch      MatchResult = iota // another question, or no answer
	CaseMismatch                    // the same question in other case: acceptable only without 0x20
	ExactMatch                      // the same bytes
	// NoEDNS is a bare header with FORMERR or NOTIMP for a query with an OPT record: the answer of a server
	// that does not support EDNS (RFC 6891 section 7).
	NoEDNS
)

// Match compares the answer r with the query q. A match is a response with opcode QUERY, q's ID and
// exactly q's question (RFC 5452 section 9.1). The result says whether the case of the name is the
// same too. r may be any bytes; q must be a query.
func Match(q, r []byte) MatchResult {
	if len(r) < HeaderLen || r[2]&bitQR == 0 || r[2]&opcodeMask != 0 ||
		ID(q) != ID(r) || binary.BigEndian.Uint16(r[4:]) != 1 {
		if deniesEDNS(q, r) {
			return NoEDNS
		}
		return NoMatch
	}
	end := plainNameEnd(q, HeaderLen) + 4
	if end < HeaderLen+4 || end > len(q) || end > len(r) {
		return NoMatch
	}
	if string(q[HeaderLen:end]) == string(r[HeaderLen:end]) {
		return ExactMatch
	}
	name := end - 4
	if equalFold(q[HeaderLen:name], r[HeaderLen:name]) && string(q[name:end]) == string(r[name:end]) {
		return CaseMismatch
	}
	return NoMatch
}

// deniesEDNS reports whether r is a NoEDNS response to q.
func deniesEDNS(q, r []byte) bool {
	return len(r) == HeaderLen && r[2]&bitQR != 0 && r[2]&opcodeMask == 0 && ID(q) == ID(r) &&
		binary.BigEndian.Uint64(r[4:]) == 0 && (r[3]&rcodeMask == RcodeFormErr || r[3]&rcodeMask == RcodeNotImp) &&
		binary.BigEndian.Uint16(q[10:]) > 0 // queries have no additional record but OPT
}

// Answers reports whether r matches the query q, in any case; see [Match].
func Answers(q, r []byte) bool {
	likeness := Match(q, r)
	return likeness == ExactMatch || likeness == CaseMismatch
}

// CanonicalizeQuestion converts the question to canonical case before an answer is stored. If the
// question was sent with random case, it also converts the server's copies of it: uncompressed
// owner names, and the targets of CNAME records that the server synthesized from a DNAME.
func (m *Message) CanonicalizeQuestion() {
	name := m.Raw[HeaderLen : m.qend-4]
	if !hasCapital(name) {
		return
	}
	lower(name, name)
	renamed := false
	for _, r := range m.Records {
		if n := m.Raw[r.Owner]; n != 0 && n < 0xc0 && m.Within(QuestionNameOffset, int(r.Owner)) {
			run := m.Raw[r.Owner:labelsEnd(m.Raw, int(r.Owner))]
			lower(run, run)
		}
		renamed = renamed || r.Type == TypeDNAME
		if renamed && r.Type == TypeCNAME {
			m.lowerCommonLabels(int(r.Owner), r.Data())
		}
	}
}

// lowerCommonLabels converts the uncompressed labels at the start of the name at target to lower
// case, as long as they equal those of the name at owner.
func (m *Message) lowerCommonLabels(owner, target int) {
	msg := m.Raw
	for {
		owner = follow(msg, owner)
		n := int(msg[target])
		if n == 0 || n > MaxLabel || n != int(msg[owner]) {
			return
		}
		label := msg[target+1 : target+1+n]
		if !equalFold(label, msg[owner+1:owner+1+n]) {
			return
		}
		lower(label, label)
		owner, target = owner+1+n, target+1+n
	}
}

// hasCapital reports whether the name contains an upper-case letter.
func hasCapital(name []byte) bool {
	for ; len(name) >= 8; name = name[8:] {
		x := binary.LittleEndian.Uint64(name)
		if letterBits(x)>>2&^x != 0 {
			return true
		}
	}
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			return true
		}
	}
	return false
}
