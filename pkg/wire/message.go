// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"slices"
)

// ErrMalformed reports that a message violates RFC 1035 and must not be used. It has no detail:
// only the caller knows who sent the message.
var ErrMalformed = errors.New("malformed message")

// Sections of a message, in their order after the question.
const (
	Answer uint8 = iota
	Authority
	Additional
)

// A Record locates one resource record in a message.
type Record struct {
	Owner   uint16 // offset of its owner name
	TTL     uint16 // offset of its TTL field; RDATA begins 6 bytes on
	Type    uint16
	Class   uint16
	Size    uint16 // bytes of RDATA
	Section uint8
}

// Data returns the offset of the record's RDATA.
func (r Record) Data() int { return int(r.TTL) + 6 }

// A Message is a whole parsed answer. The zero value is ready for Parse, which may be called again
// and then reuses Records.
type Message struct {
	Raw     []byte   // header to last record, without trailing bytes
	Records []Record // all but the OPT record, in order
	Server  string   // upstream that sent the message, such as udp://192.0.2.1:53; empty after Parse
	Kept    bool     // its server reports changes of it, see cache.Answer; false after Parse

	qend       int // offset after the question
	opt        int // offset of the OPT record, 0: none
	optEnd     int // offset after the OPT record
	labelSteps int // labels and pointers visited so far, see maxLabelSteps
	rcode      uint16
	labels     labelSet // offsets that a compression pointer may lead to
}

// Parse checks every count, bound and name of msg. It keeps msg. It returns [ErrMalformed], and
// leaves m empty, for a message with a question count other than one, two OPT records, an OPT
// record outside the additional section, an address of the wrong size, invalid RDATA of a type that
// contains names, or a pointer to anything but an earlier name.
func (m *Message) Parse(msg []byte) error {
	m.Raw, m.Records, m.Server, m.Kept = nil, m.Records[:0], "", false
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

// record parses the record at off and returns the offset after it, or -1.
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

// nameLayout returns where the RDATA of a type has names that may be compressed (RFC 1035 section
// 3.3, RFC 3597 section 4): the number of names, and the bytes before and after them. NAPTR, SIG and
// NXT have none here, because no server compresses them.
func nameLayout(rrtype uint16) (before, names, after int) {
	switch rrtype {
	case TypeNS, 3, 4, TypeCNAME, 7, 8, 9, TypePTR, TypeDNAME: // 3 MD, 4 MF, 7 MB, 8 MG, 9 MR
		return 0, 1, 0
	case TypeSOA:
		return 0, 2, 20
	case 14, 17: // MINFO, RP
		return 0, 2, 0
	case TypeMX, 18, 21, 36: // AFSDB, RT, KX
		return 2, 1, 0
	case 26: // PX
		return 2, 2, 0
	case TypeSRV:
		return 6, 1, 0
	}
	return 0, 0, 0
}

// dataFits checks the RDATA of r, which ends where msg ends.
func (m *Message) dataFits(msg []byte, r Record) bool {
	switch r.Type {
	case TypeA:
		return r.Size == 4
	case TypeAAAA:
		return r.Size == 16
	}
	before, names, after := nameLayout(r.Type)
	if names == 0 {
		return true
	}
	off := r.Data() + before
	for range names {
		if off = m.nameEnd(msg, off); off < 0 {
			return false
		}
	}
	return off+after == len(msg)
}

// Rcode returns the response code, including the upper bits from the OPT record.
func (m *Message) Rcode() uint16 { return m.rcode }

// Truncated reports whether TC is set.
func (m *Message) Truncated() bool { return m.Raw[2]&bitTC != 0 }

// ClearAuthority clears AA: a cache is not the authority for an answer (RFC 1035 section 4.1.1).
func (m *Message) ClearAuthority() { m.Raw[2] &^= bitAA }

// ClearAuthentic clears AD: an answer with records added or removed is no longer validated (RFC
// 4035 section 3.2.3).
func (m *Message) ClearAuthentic() { m.Raw[3] &^= bitAD }

// HasOPT reports whether the message had an OPT record.
func (m *Message) HasOPT() bool { return m.opt != 0 }

// QuestionType returns the type in the question.
func (m *Message) QuestionType() uint16 { return binary.BigEndian.Uint16(m.Raw[m.qend-4:]) }

// RecordTTL returns the record's TTL in seconds. A TTL with the top bit set counts as zero (RFC
// 2181 section 8).
func (m *Message) RecordTTL(r Record) uint32 { return seconds(m.Raw[r.TTL:]) }

func seconds(field []byte) uint32 {
	n := binary.BigEndian.Uint32(field)
	if n > 1<<31-1 {
		return 0
	}
	return n
}

// SetRecordTTL writes the record's TTL, in seconds, into the message.
func (m *Message) SetRecordTTL(r Record, ttl uint32) {
	binary.BigEndian.PutUint32(m.Raw[r.TTL:], ttl)
}

// SOAMinimum returns the MINIMUM field of the SOA record r, in seconds.
func (m *Message) SOAMinimum(r Record) uint32 { return seconds(m.Raw[r.Data()+int(r.Size)-4:]) }

// ID returns the message's ID.
func ID(msg []byte) uint16 { return binary.BigEndian.Uint16(msg) }

// SetID sets the message's ID.
func SetID(msg []byte, id uint16) { binary.BigEndian.PutUint16(msg, id) }

// QuestionNameOffset is the offset of the name in the question, in every message.
const QuestionNameOffset = HeaderLen

// SameName reports whether the names at two offsets are equal, ignoring case. Valid offsets are
// [QuestionNameOffset], those of owners, and the results of [Message.Target] and [Message.Signer].
func (m *Message) SameName(a, b int) bool { return sameName(m.Raw, a, b) }

// Within reports whether the name at one offset is the zone at the other, or below it.
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

// countLabels counts the labels of the name at off without the root label. The name must have
// passed nameEnd.
func countLabels(msg []byte, off int) int {
	for n := 0; ; n++ {
		off = follow(msg, off)
		if msg[off] == 0 {
			return n
		}
		off += int(msg[off]) + 1
	}
}

// Target returns the offset of the name that the record r points to, for CNAME, DNAME, NS, MX, SRV,
// SVCB, HTTPS and NAPTR. A root target means the owner in SVCB and HTTPS (RFC 9460 section 2.5),
// and no target in MX, SRV and NAPTR. Target returns -1 if there is none, or if it is compressed
// where that is forbidden.
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

// plainNameAt returns off if a name without pointers begins there and ends before end, else -1.
func (m *Message) plainNameAt(off, end int) int {
	if off >= end || plainNameEnd(m.Raw[:end], off) < 0 {
		return -1
	}
	return off
}

// TypeCovered returns the type that the RRSIG record r signs, or 0 if r is too short.
func (m *Message) TypeCovered(r Record) uint16 {
	if r.Size < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(m.Raw[r.Data():])
}

// Signer returns the offset of the signer's name in the RRSIG record r (RFC 4034 section 3.1.7), or
// -1 if there is no valid one.
func (m *Message) Signer(r Record) int {
	const fixed = 18
	if r.Size <= fixed {
		return -1
	}
	return m.plainNameAt(r.Data()+fixed, r.Data()+int(r.Size))
}

// AppendName appends the canonical, uncompressed form of the name at an offset: at most [MaxName]
// bytes.
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

// IsReferral reports whether the message is a referral, which a server sends for a name that it
// neither serves nor resolves: NOERROR without AA, without answers, and with NS records but no SOA
// record in the authority section (RFC 2308 section 2.2).
func (m *Message) IsReferral() bool {
	if m.rcode != RcodeSuccess || m.Raw[2]&bitAA != 0 || binary.BigEndian.Uint16(m.Raw[6:]) != 0 {
		return false
	}
	return m.has(Authority, TypeNS) && !m.has(Authority, TypeSOA)
}

// IsInconclusive reports whether the message says nothing about the records that were asked for. The rcode is NOERROR, and
// there are
//
//   - records in the answer section, such as aliases, but none of the type, and no SOA record that denies them: the sender
//     did not find out about the target of an alias; or
//   - no records, and neither AA nor RA: the sender neither serves nor resolves the name, and does not say who does.
func (m *Message) IsInconclusive() bool {
	switch {
	case m.rcode != RcodeSuccess:
		return false
	case len(m.Records) == 0:
		return m.Raw[2]&bitAA == 0 && m.Raw[3]&bitRA == 0
	}
	return m.Records[0].Section == Answer && !m.has(Answer, m.QuestionType()) && !m.has(Authority, TypeSOA)
}

// has reports whether a section has a record of a type.
func (m *Message) has(section uint8, rrtype uint16) bool {
	return slices.ContainsFunc(m.Records, func(r Record) bool { return r.Section == section && r.Type == rrtype })
}

// AddressRun finds the first address RRset in the answer section: a run of two or more A or AAAA
// records with the same owner and TTL. It returns the index of the first record in Records and the
// number of records, or 0 and 0. The addresses of such a run may be rotated.
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
		m.RecordTTL(a) == m.RecordTTL(b) && sameName(m.Raw, int(a.Owner), int(b.Owner))
}

// StripOPT removes the OPT record in place: it is valid for one hop only and must not be stored
// (RFC 6891 section 6.1.1). Records after it move up and their pointers are corrected. StripOPT
// fails, and m is no longer valid, if a pointer led into the OPT record itself.
func (m *Message) StripOPT() error {
	if m.opt == 0 {
		return nil
	}
	cut := m.optEnd - m.opt
	moved := func(target int) int {
		switch {
		case target < m.opt:
			return target
		case target < m.optEnd:
			return -1
		}
		return target - cut
	}
	for i, r := range m.Records {
		if int(r.Owner) < m.opt {
			continue
		}
		if !relocateRecord(m.Raw, r, moved) {
			return ErrMalformed
		}
		m.Records[i].Owner -= uint16(cut)
		m.Records[i].TTL -= uint16(cut)
	}
	m.Raw = append(m.Raw[:m.opt], m.Raw[m.optEnd:]...)
	count := binary.BigEndian.Uint16(m.Raw[10:])
	binary.BigEndian.PutUint16(m.Raw[10:], count-1)
	m.opt, m.optEnd = 0, 0
	return nil
}

// AppendToChain appends m, the answer for a CNAME target, to the answer buf[start:], which ends
// with that CNAME record in its answer section. m has no OPT record and does not change. The target
// is uncompressed at offset target of the answer and equals m's name. The result has m's rcode (RFC
// 6604 section 3), and TC if m has TC. Records that do not fit are left out, with TC unless only
// additional records are. AppendToChain returns the grown buf, or the unchanged buf and false if a
// compression pointer can no longer reach its label.
func (m *Message) AppendToChain(buf []byte, start, target int) ([]byte, bool) {
	by := len(buf) - start - m.qend
	moved := func(label int) int {
		if label < m.qend {
			return label - HeaderLen + target
		}
		return label + by
	}
	head := len(buf)
	buf = append(buf, m.Raw[m.qend:]...)
	msg := buf[start:]
	var counts sectionCounts
	for _, r := range m.Records {
		if r.Data()+int(r.Size)+by > MaxMessage {
			setTruncated(msg, r.Section)
			buf = buf[:start+int(r.Owner)+by]
			break
		}
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !relocateRecord(msg, r, moved) {
			return buf[:head], false
		}
		counts[r.Section]++
	}
	msg[2] |= m.Raw[2] & bitTC
	msg[3] = msg[3]&^rcodeMask | m.Raw[3]&rcodeMask
	for section, n := range counts {
		count := msg[6+2*section:]
		binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+n)
	}
	return buf, true
}

// relocateRecord corrects the pointers of r in msg, or returns false like relocateName. moved maps old label offsets to new ones, or to -1.
func relocateRecord(msg []byte, r Record, moved func(int) int) bool {
	off := relocateName(msg, int(r.Owner), moved)
	if off < 0 {
		return false
	}
	before, names, _ := nameLayout(r.Type)
	off = r.Data() + before
	for range names {
		if off = relocateName(msg, off, moved); off < 0 {
			return false
		}
	}
	return true
}

// relocateName corrects the pointer at the end of the name at off, if it has one. It returns the
// offset after the name, or -1 if the pointer's label is gone or out of reach.
func relocateName(msg []byte, off int, moved func(int) int) int {
	off = labelsEnd(msg, off)
	if msg[off] == 0 {
		return off + 1
	}
	to := moved(pointer(msg, off))
	if to < 0 || to >= pointerReach {
		return -1
	}
	binary.BigEndian.PutUint16(msg[off:], uint16(0xc000|to))
	return off + 2
}

// AppendDenial appends m, an NXDOMAIN answer, as the answer for name and rrtype: no name exists
// below a name that does not exist (RFC 8020). name is canonical and ends in the name that m
// denies. The question of m is canonical too. m has no OPT record and does not change. The result
// has AD clear, because no server validated it for this name. AppendDenial returns the unchanged
// dst and false if the message gets too long, or a pointer cannot reach its label.
func (m *Message) AppendDenial(dst, name []byte, rrtype uint16) ([]byte, bool) {
	by := len(name) - (m.qend - 4 - HeaderLen)
	if len(m.Raw)+by > MaxMessage {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, m.Raw[:HeaderLen]...)
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = append(dst, m.Raw[m.qend-2:]...) // the class in the question, and all records
	msg := dst[start:]
	msg[3] &^= bitAD
	// The new labels shift the denied name and all records.
	moved := func(label int) int { return label + by }
	for _, r := range m.Records {
		r.Owner, r.TTL = uint16(int(r.Owner)+by), uint16(int(r.TTL)+by)
		if !relocateRecord(msg, r, moved) {
			return dst[:start], false
		}
	}
	return dst, true
}
