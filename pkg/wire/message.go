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

	qend       int // offset after the question
	opt        int // offset of the OPT record, 0: none
	optEnd     int
	labelSteps int // labels and pointers passed so far behind pointers
	rcode      uint16
	labels     labelSet // where a compression pointer may lead
}

// Parse walks msg from end to end: every count, bound and name. It keeps msg.
// A message with other than one question, two OPT records, an OPT outside the
// additional section, an address of the wrong size, bad RDATA of a type with
// names in it, or a pointer to anything but a name before it is [ErrMalformed],
// and then m holds nothing.
func (m *Message) Parse(msg []byte) error {
	m.Raw, m.Records = nil, m.Records[:0]
	m.opt, m.optEnd, m.labelSteps = 0, 0, 0
	if len(msg) < HeaderLen || len(msg) > MaxMessage || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return ErrMalformed
	}
	m.qend = plainNameEnd(msg, HeaderLen) + 4
	if m.qend < HeaderLen+4 || m.qend > len(msg) {
		return ErrMalformed
	}
	m.rcode = uint16(msg[3] & rcodeMask)
	m.labels.reset(len(msg))
	m.labels.addLabels(msg, HeaderLen, m.qend-5)
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

// QuestionNameOffset is the offset of the name that was asked for, in every message.
const QuestionNameOffset = HeaderLen

// SameName tells whether the names at two offsets of the message are one, letter case aside. Offsets of names are those
// of the question, of owners, and of what [Message.Target] and [Message.Signer] give.
func (m *Message) SameName(a, b int) bool { return sameName(m.Raw, a, b) }

// Within tells whether the name at one offset is the zone at the other, or a name below it.
func (m *Message) Within(name, zone int) bool {
	msg := m.Raw
	for deeper := countLabels(msg, name) - countLabels(msg, zone); deeper != 0; deeper-- {
		if deeper < 0 {
			return false
		}
		name = follow(msg, name)
		name += int(msg[name]) + 1
	}
	return sameName(msg, name, zone)
}

// countLabels counts the labels of the name at off, which passed nameEnd, but for the root label.
func countLabels(msg []byte, off int) int {
	for n := 0; ; n++ {
		off = follow(msg, off)
		if msg[off] == 0 {
			return n
		}
		off += int(msg[off]) + 1
	}
}

// Target is the offset of the name that the record r sends its reader on to: of CNAME, DNAME, NS, MX, SRV, SVCB, HTTPS
// and NAPTR. A target that is the root stands for the owner in SVCB and HTTPS (RFC 9460 section 2.5), and for none in
// MX, SRV and NAPTR. It is -1 if there is none, or one that is compressed where that is forbidden.
func (m *Message) Target(r Record) int {
	off := r.Data()
	end := off + int(r.Size)
	switch r.Type {
	case TypeCNAME, TypeDNAME, TypeNS:
		return off
	case TypeMX:
		return off + 2
	case TypeSRV:
		return off + 6
	case TypeSVCB, TypeHTTPS:
		off += 2
		if off < end && m.Raw[off] == 0 {
			return int(r.Owner)
		}
		return m.plainNameAt(off, end)
	case TypeNAPTR:
		off += 4
		for range 3 { // flags, services, regular expression (RFC 3403 section 4.1)
			if off >= end {
				return -1
			}
			off += int(m.Raw[off]) + 1
		}
		return m.plainNameAt(off, end)
	}
	return -1
}

// plainNameAt is off if a name without pointers stands there that ends before end, and -1 if not.
func (m *Message) plainNameAt(off, end int) int {
	if off >= end || plainNameEnd(m.Raw[:end], off) < 0 {
		return -1
	}
	return off
}

// Covered is the type that r, a RRSIG record, signs; 0 if it is cut short.
func (m *Message) TypeCovered(r Record) uint16 {
	if r.Size < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(m.Raw[r.Data():])
}

// Signer is the offset of the name of the zone whose key made r, a RRSIG record (RFC 4034 section 3.1.7), or -1 if there
// is none to be read.
func (m *Message) Signer(r Record) int {
	const fixed = 18
	if r.Size <= fixed {
		return -1
	}
	return m.plainNameAt(r.Data()+fixed, r.Data()+int(r.Size))
}

// AppendName appends the canonical form of the name at an offset, uncompressed, at most [MaxName] octets.
func (m *Message) AppendName(dst []byte, name int) []byte {
	for {
		name = follow(m.Raw, name)
		next := name + int(m.Raw[name]) + 1
		start := len(dst)
		dst = append(dst, m.Raw[name:next]...)
		lower(dst[start:], dst[start:])
		if m.Raw[name] == 0 {
			return dst
		}
		name = next
	}
}

// Lame tells whether the message says no more than who else might know: a referral, which is what a server sends that
// is asked for a name it neither serves nor resolves. NOERROR, no answer, not from the name's authority, and in the
// authority section NS records but no SOA record (RFC 2308 section 2.2).
func (m *Message) IsReferral() bool {
	if m.rcode != RcodeSuccess || m.Raw[2]&bitAA != 0 || binary.BigEndian.Uint16(m.Raw[6:]) != 0 {
		return false
	}
	refers := false
	for _, r := range m.Records {
		if r.Section == Authority {
			if r.Type == TypeSOA {
				return false
			}
			refers = refers || r.Type == TypeNS
		}
	}
	return refers
}

// AddressRun finds the first set of addresses in the answer section: a run of two or more A or AAAA records of one owner
// and TTL. It gives the place of its first record in Records and how many there are, 0 and 0 if there is none. A set like
// that may be given in any order.
func (m *Message) AddressRun() (first, count int) {
	for first < len(m.Records) && m.Records[first].Section == Answer {
		count = 1
		if a := m.Records[first]; a.Type == TypeA || a.Type == TypeAAAA {
			for first+count < len(m.Records) && m.sameSet(a, m.Records[first+count]) {
				count++
			}
		}
		if count > 1 {
			return first, count
		}
		first++
	}
	return 0, 0
}

func (m *Message) sameSet(a, b Record) bool {
	return b.Section == a.Section && b.Type == a.Type && b.Class == a.Class && b.Size == a.Size &&
		m.RecordTTL(a) == m.RecordTTL(b) && m.SameOwner(a, b)
}
