// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed says that a message breaks RFC 1035's rules and is not to be
// used. It carries no detail: who sent it decides what else is known.
var ErrMalformed = errors.New("malformed message")

// Sections of a message, in their order after the question.
const (
	Answer uint8 = iota
	Authority
	Additional
)

// A Record is where one resource record stands in a message.
type Record struct {
	Owner   uint16 // offset of its owner name
	TTL     uint16 // offset of its TTL field; RDATA begins 6 octets on
	Type    uint16
	Class   uint16
	Size    uint16 // octets of RDATA
	Section uint8
}

// Data is the offset of the record's RDATA.
func (r Record) Data() int { return int(r.TTL) + 6 }

// A Message is a whole answer, walked. The zero value is ready for Parse, which
// may be called again and again and then reuses Records.
type Message struct {
	Raw     []byte   // header to last record, what trails cut off
	Records []Record // all but the OPT record, in order

	qend   int // offset after the question
	opt    int // offset of the OPT record, 0: none
	optEnd int
	steps  int // labels and pointers passed so far behind pointers
	rcode  uint16
	labels labelSet // where a compression pointer may lead
}

// Parse walks msg from end to end: every count, bound and name. It keeps msg.
// A message with other than one question, two OPT records, an OPT outside the
// additional section, an address of the wrong size, bad RDATA of a type with
// names in it, or a pointer to anything but a name before it is [ErrMalformed],
// and then m holds nothing.
func (m *Message) Parse(msg []byte) error {
	m.Raw, m.Records = nil, m.Records[:0]
	m.opt, m.optEnd, m.steps = 0, 0, 0
	if len(msg) < HeaderLen || len(msg) > MaxMessage || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return ErrMalformed
	}
	m.qend = plainNameEnd(msg, HeaderLen) + 4
	if m.qend < HeaderLen+4 || m.qend > len(msg) {
		return ErrMalformed
	}
	m.rcode = uint16(msg[3] & rcodeMask)
	m.labels.reset(len(msg))
	m.labels.addRun(msg, HeaderLen, m.qend-5)
	off := m.qend
	for section := Answer; section <= Additional; section++ {
		for range binary.BigEndian.Uint16(msg[6+2*section:]) {
			if off = m.record(msg, off, section); off < 0 {
				m.Records = m.Records[:0]
				return ErrMalformed
			}
		}
	}
	m.Raw = msg[:off]
	return nil
}

// record walks the record at off and returns the offset after it, or -1.
func (m *Message) record(msg []byte, off int, section uint8) int {
	end := m.nameEnd(msg, off)
	if end < 0 || end+10 > len(msg) {
		return -1
	}
	r := Record{
		Owner: uint16(off), TTL: uint16(end + 4), Section: section,
		Type:  binary.BigEndian.Uint16(msg[end:]),
		Class: binary.BigEndian.Uint16(msg[end+2:]),
		Size:  binary.BigEndian.Uint16(msg[end+8:]),
	}
	next := end + 10 + int(r.Size)
	if next > len(msg) {
		return -1
	}
	if r.Type == TypeOPT {
		if section != Additional || m.opt != 0 || msg[off] != 0 || !optionsFit(msg[end+10:next]) {
			return -1
		}
		m.opt, m.optEnd = off, next
		m.rcode |= uint16(msg[end+4]) << 4
		return next
	}
	if !m.dataFits(msg[:next], r) {
		return -1
	}
	m.Records = append(m.Records, r)
	return next
}

// optionsFit checks that EDNS options fill data exactly (RFC 6891 section 6.1.2).
func optionsFit(data []byte) bool {
	for len(data) > 0 {
		if len(data) < 4 {
			return false
		}
		next := 4 + int(binary.BigEndian.Uint16(data[2:]))
		if next > len(data) {
			return false
		}
		data = data[next:]
	}
	return true
}

// A layout says where names stand in the RDATA of a type.
type layout struct {
	before, names, after int // octets, names, octets
}

// nameLayout gives the layout of the types whose RDATA may hold compressed
// names (RFC 1035 section 3.3, RFC 3597 section 4), or false. NAPTR, SIG and
// NXT pass as they are: nobody compresses them.
func nameLayout(rrtype uint16) (layout, bool) {
	switch rrtype {
	case TypeNS, 3, 4, TypeCNAME, 7, 8, 9, TypePTR, TypeDNAME: // 3 MD, 4 MF, 7 MB, 8 MG, 9 MR
		return layout{0, 1, 0}, true
	case TypeSOA:
		return layout{0, 2, 20}, true
	case 14, 17: // MINFO, RP
		return layout{0, 2, 0}, true
	case TypeMX, 18, 21, 36: // AFSDB, RT, KX
		return layout{2, 1, 0}, true
	case 26: // PX
		return layout{2, 2, 0}, true
	case TypeSRV:
		return layout{6, 1, 0}, true
	}
	return layout{}, false
}

// dataFits checks the RDATA of r, which ends where msg ends.
func (m *Message) dataFits(msg []byte, r Record) bool {
	switch r.Type {
	case TypeA:
		return r.Size == 4
	case TypeAAAA:
		return r.Size == 16
	}
	l, ok := nameLayout(r.Type)
	if !ok {
		return true
	}
	off := r.Data() + l.before
	for range l.names {
		if off = m.nameEnd(msg, off); off < 0 {
			return false
		}
	}
	return off+l.after == len(msg)
}

// Rcode is the response code with the OPT record's upper bits.
func (m *Message) Rcode() uint16 { return m.rcode }

// Truncated tells whether TC is set.
func (m *Message) Truncated() bool { return m.Raw[2]&bitTC != 0 }

// ClearAuthority takes the AA flag off: who passes an answer on from memory is
// not its authority (RFC 1035 section 4.1.1).
func (m *Message) ClearAuthority() { m.Raw[2] &^= bitAA }

// ClearAuthentic takes the AD flag off: what was left out of an answer, or put into it,
// nobody has vouched for (RFC 4035 section 3.2.3).
func (m *Message) ClearAuthentic() { m.Raw[3] &^= bitAD }

// HasOPT tells whether there was an OPT record.
func (m *Message) HasOPT() bool { return m.opt != 0 }

// QuestionType is the type that was asked for.
func (m *Message) QuestionType() uint16 { return binary.BigEndian.Uint16(m.Raw[m.qend-4:]) }

// RecordTTL is the record's TTL in seconds. One with the top bit set counts as
// zero (RFC 2181 section 8).
func (m *Message) RecordTTL(r Record) uint32 {
	ttl := binary.BigEndian.Uint32(m.Raw[r.TTL:])
	if ttl > 1<<31-1 {
		return 0
	}
	return ttl
}

// SetRecordTTL writes the record's TTL, in seconds, into the message.
func (m *Message) SetRecordTTL(r Record, ttl uint32) {
	binary.BigEndian.PutUint32(m.Raw[r.TTL:], ttl)
}

// SameOwner tells whether two records have one owner name, letter case aside.
func (m *Message) SameOwner(a, b Record) bool {
	return sameName(m.Raw, int(a.Owner), int(b.Owner))
}

// SOAMinimum is the MINIMUM field of the SOA record r, in seconds.
func (m *Message) SOAMinimum(r Record) uint32 {
	minimum := binary.BigEndian.Uint32(m.Raw[r.Data()+int(r.Size)-4:])
	if minimum > 1<<31-1 {
		return 0
	}
	return minimum
}

// ID is the message's ID.
func ID(msg []byte) uint16 { return binary.BigEndian.Uint16(msg) }

// SetID writes the message's ID.
func SetID(msg []byte, id uint16) { binary.BigEndian.PutUint16(msg, id) }
