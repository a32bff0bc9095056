// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
)

// NoReply is the result of Parse for a packet that gets no answer: it is shorter than a header, or a
// response, which could start a loop between two servers.
const NoReply = -1

// Bounds on what one query may carry.
const (
	maxAdditional = 2  // records after the question: an OPT and a TSIG or SIG(0)
	maxOptions    = 64 // EDNS options; more are an attack on the reader (CVE-2026-41292)
	maxSubnet     = 20 // bytes of a client-subnet option: family, two lengths, an IPv6 address
)

// Key flags: the bits that change the answer to one name and type, and the view.
const (
	keyDO = 1 << iota
	keyCD
	keyOutside
)

// A Question holds what a reply needs from its query. Its slices point into the packet.
type Question struct {
	ID        uint16
	Type      uint16
	Class     uint16
	RD        bool
	AD        bool
	CD        bool
	EDNS      bool   // the query had an OPT record
	DO        bool   // DNSSEC OK
	Keepalive bool   // the query had the RFC 7828 option
	Explain   bool   // the query had OptionExplain, empty or with an address
	nameLen   uint8  // bytes of the name, at most MaxName
	UDPSize   uint16 // bytes that the client accepts over UDP, at least MinUDP

	question []byte // name in the client's spelling, type, class
}

// A Query is one parsed query. The zero value is ready for Parse, which may be called again.
type Query struct {
	Question

	Cookie    []byte // RFC 7873 option data, 8 or 16 to 40 bytes; nil: none
	Subnet    []byte // RFC 7871 option data; nil: none
	ExplainTo []byte // address in OptionExplain: of the client to answer as; nil: the sender's
	Serial    uint32 // zone serial of the client, from an IXFR query
	HasSerial bool   // the query had a serial
	Padding   bool   // the query had the RFC 7830 option
	TSIG      int    // offset of the TSIG record in the packet; 0: none

	outside    bool // see SetOutside
	keyNameLen int  // length of the name at the start of key
	keyLen     int
	key        [MaxName + 3 + maxSubnet]byte
}

// Parse reads pkt in one pass and keeps references to it. It returns RcodeSuccess and has set every
// field, or it returns the rcode of the answer to a defective query, or NoReply. With RcodeFormErr
// and RcodeBadVers (an EDNS version above 0) it has set the fields that precede the defect.
// RcodeNotImp means an opcode other than QUERY.
func (q *Query) Parse(pkt []byte) (rcode int) {
	q.reset()
	if len(pkt) < HeaderLen || pkt[2]&bitQR != 0 {
		return NoReply
	}
	q.ID = binary.BigEndian.Uint16(pkt)
	if pkt[2]&opcodeMask != 0 {
		return RcodeNotImp
	}
	q.RD = pkt[2]&bitRD != 0
	q.AD = pkt[3]&bitAD != 0
	q.CD = pkt[3]&bitCD != 0
	if binary.BigEndian.Uint16(pkt[4:]) != 1 { // RFC 9619
		return RcodeFormErr
	}
	end := plainNameEnd(pkt, HeaderLen)
	if end < 0 || end+4 > len(pkt) {
		return RcodeFormErr
	}
	q.nameLen = uint8(end - HeaderLen) //nolint:gosec // at most MaxName
	q.question = pkt[HeaderLen : end+4]
	q.Type = binary.BigEndian.Uint16(pkt[end:])
	q.Class = binary.BigEndian.Uint16(pkt[end+2:])
	q.keyNameLen = int(q.nameLen)
	lower(q.key[:q.nameLen], pkt[HeaderLen:end])
	end += 4
	if binary.BigEndian.Uint32(pkt[6:]) != 0 {
		if end = q.parseIXFR(pkt, end); end < 0 {
			return RcodeFormErr
		}
	}
	if additional := binary.BigEndian.Uint16(pkt[10:]); additional != 0 {
		rcode = q.parseAdditional(pkt, end, int(additional))
	}
	q.finishKey()
	return rcode
}

// parseIXFR reads the records before the additional section, at off. Only an IXFR query has such a record:
// the SOA record of the client's zone version, in the authority section (RFC 1995 section 3). It
// returns the offset after it, or -1.
func (q *Query) parseIXFR(pkt []byte, off int) int {
	if q.Type != TypeIXFR || binary.BigEndian.Uint32(pkt[6:]) != 1 {
		return -1
	}
	owner, next := recordEnds(pkt, off)
	if next > len(pkt) || binary.BigEndian.Uint16(pkt[owner:]) != TypeSOA {
		return -1
	}
	serial := owner + 10
	for range 2 {
		if serial = anyNameEnd(pkt[:next], serial); serial < 0 {
			return -1
		}
	}
	if serial+20 != next {
		return -1
	}
	q.Serial, q.HasSerial = binary.BigEndian.Uint32(pkt[serial:]), true
	return next
}

func (q *Query) reset() {
	q.Question = Question{UDPSize: MinUDP}
	q.Cookie, q.Subnet, q.ExplainTo = nil, nil, nil
	q.Serial, q.HasSerial, q.Padding, q.TSIG = 0, false, false, 0
	q.outside, q.keyNameLen, q.keyLen = false, 0, 0
}

// finishKey writes type and flags after the name in the key.
func (q *Query) finishKey() {
	n := q.keyNameLen
	binary.BigEndian.PutUint16(q.key[n:], q.Type)
	q.key[n+2] = q.keyFlags()
	if q.outside {
		q.key[n+2] |= keyOutside
	}
	q.keyLen = n + 3
}

// keyFlags returns the flags byte of a key.
func (q *Question) keyFlags() (flags byte) {
	if q.DO {
		flags |= keyDO
	}
	if q.CD {
		flags |= keyCD
	}
	return flags
}

// parseAdditional reads n records from off: at most one OPT record, a TSIG record, and others, which it skips.
func (q *Query) parseAdditional(pkt []byte, off, n int) (rcode int) {
	if n > maxAdditional {
		return RcodeFormErr
	}
	for range n {
		end, next := recordEnds(pkt, off)
		if next > len(pkt) {
			return RcodeFormErr
		}
		switch binary.BigEndian.Uint16(pkt[end:]) {
		case TypeOPT:
			if q.EDNS || pkt[off] != 0 {
				return RcodeFormErr
			}
			if rcode = q.parseOPT(pkt[end+2 : next]); rcode == RcodeFormErr {
				return rcode
			}
		case TypeTSIG:
			q.TSIG = off
		}
		off = next
	}
	return rcode // RcodeBadVers is returned late, because a record after the OPT could be malformed
}

// recordEnds returns the offset after the owner of the record at off, and the offset after the
// record. The latter is beyond pkt if the record is cut or malformed.
func recordEnds(pkt []byte, off int) (owner, next int) {
	owner = anyNameEnd(pkt, off)
	if owner < 0 || owner+10 > len(pkt) {
		return owner, len(pkt) + 1
	}
	return owner, owner + 10 + int(binary.BigEndian.Uint16(pkt[owner+8:]))
}

// parseOPT reads an OPT record, beginning with its class field (RFC 6891 section 6.1).
func (q *Query) parseOPT(opt []byte) (rcode int) {
	q.EDNS = true
	q.UDPSize = max(binary.BigEndian.Uint16(opt), MinUDP)
	q.DO = opt[4]&0x80 != 0
	if opt[3] != 0 {
		return RcodeBadVers // the options of another EDNS version may have another layout
	}
	options := opt[8:]
	for n := 0; len(options) > 0; n++ {
		if len(options) < 4 || n == maxOptions {
			return RcodeFormErr
		}
		code := binary.BigEndian.Uint16(options)
		size := int(binary.BigEndian.Uint16(options[2:]))
		if 4+size > len(options) {
			return RcodeFormErr
		}
		if !q.parseOption(code, options[4:4+size]) {
			return RcodeFormErr
		}
		options = options[4+size:]
	}
	return RcodeSuccess
}

// parseOption reads one option and reports whether its data are valid. It ignores unknown options
// (RFC 6891 section 6.1.2) and repeated ones after the first.
func (q *Query) parseOption(code uint16, data []byte) bool {
	switch code {
	case optionCookie: // RFC 7873 section 5.2.2
		if len(data) != 8 && (len(data) < 16 || len(data) > 40) {
			return false
		}
		if q.Cookie == nil {
			q.Cookie = data
		}
	case optionSubnet:
		if !subnetFits(data) {
			return false
		}
		if q.Subnet == nil {
			q.Subnet = data
		}
	case optionKeepalive:
		q.Keepalive = true
	case optionPadding:
		q.Padding = true
	case OptionExplain:
		switch len(data) {
		case 4, 16:
			q.ExplainTo = data
			fallthrough
		case 0:
			q.Explain = true
		}
	}
	return true
}

// subnetFits checks a client-subnet option (RFC 7871 section 6): family, source and scope prefix
// length, and an address no longer than the source prefix. A query's scope must be zero.
func subnetFits(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	addressBits := [...]int{0, 32, 128} // by address family; family 0: the client asks that no subnet is sent
	family, source := int(binary.BigEndian.Uint16(data)), int(data[2])
	return family < len(addressBits) && source <= addressBits[family] && data[3] == 0 && len(data) == 4+(source+7)/8
}

// Name returns the canonical wire-form name to look up: the name in the question, or the one of the
// last SetName. It is valid until the next Parse or SetName.
func (q *Query) Name() []byte { return q.key[:q.keyNameLen] }

// SetName replaces the name to look up by target, which is canonical and in wire form. The reply keeps
// the question of the client.
func (q *Query) SetName(target []byte) {
	q.keyNameLen = copy(q.key[:MaxName], target)
	q.finishKey()
}

// SetType replaces the type to look up. [Question.OriginalType] keeps the type of the client's
// question.
func (q *Query) SetType(rrtype uint16) {
	q.Type = rrtype
	q.finishKey()
}

// SetOutside gives q the cache key of the outside view: another one than the same question has without it.
func (q *Query) SetOutside() {
	q.outside = true
	q.finishKey()
}

// AppendQuestion appends the question to look up: canonical name, type, class.
func (q *Query) AppendQuestion(dst []byte) []byte {
	dst = append(dst, q.Name()...)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	return binary.BigEndian.AppendUint16(dst, q.Class)
}

// SetQuestion makes q the query that a was taken from, without its cookie and client subnet. The
// name and type to look up are again those of the client's question.
func (q *Query) SetQuestion(a *Question) {
	q.reset()
	q.Question = *a
	q.Type = a.OriginalType()
	q.keyNameLen = int(q.nameLen)
	lower(q.key[:q.nameLen], q.question[:q.nameLen])
	q.finishKey()
}

// OriginalType returns the type of the client's question, for a query with a question.
func (q *Question) OriginalType() uint16 { return binary.BigEndian.Uint16(q.question[q.nameLen:]) }

// QuestionSection returns the question as received: name in the client's spelling, type, class. It
// points into the packet.
func (q *Question) QuestionSection() []byte { return q.question }

// Key returns the cache key: canonical name, type, the DO and CD bits (RFC 4035 section 3.2, CVE-2024-0874) and that of the outside view. It is valid until the next Parse. It has no class: only IN is looked up.
func (q *Query) Key() []byte { return q.key[:q.keyLen] }

// AddSubnetToKey adds the client subnet to the key, for a route that forwards the subnet. An answer
// for one subnet is then never given to another.
func (q *Query) AddSubnetToKey() {
	q.finishKey()
	q.keyLen += copy(q.key[q.keyLen:], q.Subnet)
}

// Limit returns the most bytes that a reply to q may have: what the client accepts, and over UDP at
// most udpMax.
func (q *Question) Limit(stream bool, udpMax int) int {
	if stream {
		return MaxMessage
	}
	return min(int(q.UDPSize), udpMax)
}

// CloneTo returns a Question whose bytes are appended to room, and the grown room.
func (q *Question) CloneTo(room []byte) (Question, []byte) {
	a := *q
	if q.question != nil { // a nil question stays nil
		start := len(room)
		room = append(room, q.question...)
		a.question = room[start:len(room):len(room)]
	}
	return a, room
}

// For returns a question of the same client, without EDNS, for the name that is prefix and suffix together, in canonical
// wire form. Its bytes are appended to room. For also returns the grown room.
func (q *Question) For(room, prefix, suffix []byte, rrtype uint16) (Question, []byte) {
	start := len(room)
	room = append(append(room, prefix...), suffix...)
	a := Question{Type: rrtype, Class: q.Class, RD: q.RD, AD: q.AD, CD: q.CD, UDPSize: q.UDPSize, nameLen: uint8(len(room) - start)} //nolint:gosec // at most MaxName
	room = binary.BigEndian.AppendUint16(room, rrtype)
	room = binary.BigEndian.AppendUint16(room, q.Class)
	a.question = room[start:len(room):len(room)]
	return a, room
}

// AppendKey appends a cache key like that of [Query.Key], but for name, which is canonical and in wire
// form. The key has no subnet, and is none of the outside view.
func (q *Question) AppendKey(dst, name []byte) []byte {
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	return append(dst, q.keyFlags())
}

// AppendOutsideKey appends the key of the outside view where AppendKey appends that of the other.
func (q *Question) AppendOutsideKey(dst, name []byte) []byte {
	dst = q.AppendKey(dst, name)
	dst[len(dst)-1] |= keyOutside
	return dst
}

// KeyFlags decodes the flags byte of a key, which follows name and type, into the DO and CD bits and the outside view.
func KeyFlags(flags byte) (do, cd, outside bool) {
	return flags&keyDO != 0, flags&keyCD != 0, flags&keyOutside != 0
}

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

// QueryName returns the name in the question of q, a query that [Query.AppendUpstream] made, or nil. It points into q.
func QueryName(q []byte) []byte {
	end := questionEnd(q)
	if end < 0 {
		return nil
	}
	return q[HeaderLen : end-4]
}

// optAfterQuestion returns the offset of the OPT record that follows the question of q, or -1.
func optAfterQuestion(q []byte) int {
	end := questionEnd(q)
	if end < 0 || len(q) < end+optFixed || q[end] != 0 || binary.BigEndian.Uint16(q[end+1:]) != TypeOPT {
		return -1
	}
	return end
}

// WithUDPSize returns a copy of q, a query that [Query.AppendUpstream] made, with another EDNS
// size. It returns q itself if no OPT record follows the question.
func WithUDPSize(q []byte, size uint16) []byte {
	opt := optAfterQuestion(q)
	if opt < 0 {
		return q
	}
	q = slices.Clone(q)
	binary.BigEndian.PutUint16(q[opt+3:], size)
	return q
}

// Padding (RFC 8467 section 4.1): queries to a multiple of padBlock bytes, replies to one of padReplyBlock.
const (
	padBlock      = 128
	padReplyBlock = 468
	optionPadding = 12               // RFC 7830
	MaxPadding    = 4 + padBlock - 1 // bytes that AppendPadded adds at most
)

// AppendPadded appends the query q, which has no padding, with a padding option, so that its size reveals little about
// the name. A query without an OPT record as its only record is appended unchanged.
func AppendPadded(dst, q []byte) []byte {
	opt, start := optAfterQuestion(q), len(dst)
	dst = append(dst, q...)
	if opt < 0 || len(q)+MaxPadding > MaxMessage || binary.BigEndian.Uint64(q[4:]) != 1<<48|1 {
		return dst
	}
	size := binary.BigEndian.Uint16(q[opt+9:])
	if opt+optFixed+int(size) != len(q) {
		return dst
	}
	var zeros [padBlock]byte
	n := -(len(q) + 4) & (padBlock - 1)
	dst = append(dst, 0, optionPadding, 0, byte(n))
	dst = append(dst, zeros[:n]...)
	binary.BigEndian.PutUint16(dst[start+opt+9:], size+uint16(4+n))
	return dst
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
	highBits = 0x80 * lowBits     // the highest bit of each
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
	NoMatch      MatchResult = iota // not an answer to the query, or one to another question
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

// Answers reports whether r is an answer to the query q, whatever the case of the name; see [Match].
func Answers(q, r []byte) bool {
	likeness := Match(q, r)
	return likeness == ExactMatch || likeness == CaseMismatch
}

// CanonicalizeQuestion converts the question to canonical case before an answer is stored. If the
// question was sent with random case, it also converts the server's copies of it: uncompressed
// owner names, and the targets of CNAME records that the server synthesized from a DNAME.
func (m *Message) CanonicalizeQuestion() {
	name := m.Raw[HeaderLen : m.qend-4]
	if IsCanonical(name) {
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

// IsCanonical reports whether an uncompressed wire-form name has no upper-case letter.
func IsCanonical(name []byte) bool {
	return !slices.ContainsFunc(name, func(c byte) bool { return 'A' <= c && c <= 'Z' })
}
