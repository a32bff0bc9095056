// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
)

// questionEnd is where the question of q ends, a query with one, or -1.
func questionEnd(q []byte) int {
	end := plainNameEnd(q, HeaderLen)
	if end < 0 || end+4 > len(q) {
		return -1
	}
	return end + 4
}

// QueryType is the type that q, a query as [Query.AppendUpstream] makes it, asks for; 0 if it is none.
func QueryType(q []byte) uint16 {
	end := questionEnd(q)
	if end < 0 {
		return 0
	}
	return binary.BigEndian.Uint16(q[end-4:])
}

// CopyQuestion gives the answer r to the query q the spelling of q's question. It is for answers that [Match] has let
// through.
func CopyQuestion(r, q []byte) {
	if end := questionEnd(q); end <= len(r) && end > 0 {
		copy(r[HeaderLen:end], q[HeaderLen:end])
	}
}

// WithUDPSize is a copy of q, a query as [Query.AppendUpstream] makes it, that says another EDNS size. Without an OPT
// record right after the question it is q.
func WithUDPSize(q []byte, octets uint16) []byte {
	end := questionEnd(q)
	if end < 0 || len(q) < end+11 || q[end] != 0 || binary.BigEndian.Uint16(q[end+1:]) != TypeOPT {
		return q
	}
	q = slices.Clone(q)
	binary.BigEndian.PutUint16(q[end+3:], octets)
	return q
}

// RandomCase changes the letter case of the name in q, a query, as the bits say: the name's octet i by bit i modulo 64. Who
// answers without having seen the query must guess them too, if the answer is held to the spelling it was asked with
// (draft-vixie-dnsext-dns0x20). Bits must be as hard to guess as an ID. 64 are enough: more letters add more of a
// secret than the ID and the port hold together.
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

// Masks of eight octets side by side.
const (
	lowBits  = 0x0101010101010101 // the lowest bit of each
	highBits = 0x80 * lowBits     // the highest
)

// letterBits is the highest bit of each of the eight octets that is an ASCII letter. Length octets are none.
func letterBits(x uint64) uint64 {
	const (
		belowA = (0x80 - 'a') * lowBits
		aboveZ = (0x7f - 'z') * lowBits
	)
	folded := x&^highBits | 0x20*lowBits
	return ^x & highBits & ((folded + belowA) ^ (folded + aboveZ))
}

// spreadBits is the highest bit of each of eight octets whose bit is set: the first octet's is the lowest.
func spreadBits(bits byte) uint64 {
	const diagonal = 0x8040201008040201 // bit i of octet i
	return (uint64(bits)*lowBits&diagonal + 0x7f*lowBits) & highBits
}

// A Likeness tells how the question of an answer resembles that of the query.
type MatchResult uint8

// The degrees of likeness.
const (
	NoMatch      MatchResult = iota // another question, or no answer at all
	CaseMismatch                    // the same question in other letters: to be believed only where case says nothing
	ExactMatch                      // the same bytes
	// NoEDNS is no question but a header alone, FORMERR or NOTIMP for a query with an OPT record: what a server
	// answers that stops reading where EDNS begins (RFC 6891 section 7).
	NoEDNS
)

// Match tells whether r can be the answer to the query q: a response to opcode QUERY with q's ID and q's one question
// (RFC 5452 section 9.1), and whether that is spelled as in q. Any octets will do for r; q must be a query.
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

// deniesEDNS is the part of Match for a response without a question.
func deniesEDNS(q, r []byte) bool {
	return len(r) == HeaderLen && r[2]&bitQR != 0 && r[2]&opcodeMask == 0 && ID(q) == ID(r) &&
		binary.BigEndian.Uint64(r[4:]) == 0 && (r[3]&rcodeMask == RcodeFormErr || r[3]&rcodeMask == RcodeNotImp) &&
		binary.BigEndian.Uint16(q[10:]) > 0 // queries have no additional record but OPT
}

// Answers reports whether r can be the answer to the query q, in whatever letters it spells the question; see [Match].
func Answers(q, r []byte) bool {
	likeness := Match(q, r)
	return likeness == ExactMatch || likeness == CaseMismatch
}

// CanonicalizeQuestion brings the question of an answer that is about to be stored to its canonical spelling. Where it was
// asked in mixed letters, the copies that the server made of it are spelled anew too: owner names that stand
// uncompressed, and the targets of CNAME records that were made up for a DNAME.
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

// lowerCommonLabels lowers the letters of the labels that the name at target, as far as it stands uncompressed, begins with
// and that the name at owner begins with too.
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

// hasCapital tells whether an upper-case letter is in the name.
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
