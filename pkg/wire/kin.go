// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// QuestionName is the offset of the name that was asked for, in every message.
const QuestionName = HeaderLen

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
		return m.plainName(off, end)
	case TypeNAPTR:
		off += 4
		for range 3 { // flags, services, regular expression (RFC 3403 section 4.1)
			if off >= end {
				return -1
			}
			off += int(m.Raw[off]) + 1
		}
		return m.plainName(off, end)
	}
	return -1
}

// plainName is off if a name without pointers stands there that ends before end, and -1 if not.
func (m *Message) plainName(off, end int) int {
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
	return m.plainName(r.Data()+fixed, r.Data()+int(r.Size))
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
