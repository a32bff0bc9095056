// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nodecache/node-cache/pkg/wire"
)

// DNS64 synthesizes IPv6 addresses from IPv4 addresses, for clients behind a NAT64 (RFC 6147).
//
//	AAAA records exist                returned; with all: synthesized from A if there are A records
//	AAAA, NXDOMAIN                    returned
//	AAAA, NODATA or no answer         synthesized from A, with the denial's SOA TTL as the maximum
//	AAAA, and no A records            the denial of AAAA
//	AAAA in ::ffff:0:0/96             ignored (section 5.1.4)
//	AAAA with DO=1 and CD=1           no DNS64: the client validates (section 5.5)
//	PTR of an address of the prefix   CNAME to the reverse name of its IPv4 address, and its answer
//	ipv4only.arpa, its reverse names,
//	and names below                   answered here (RFC 7050, RFC 8880); NXDOMAIN below
//
// The A query follows the answer to the AAAA query, with the rest of the client's deadline. The AAAA query
// has half of the deadline, because some servers never answer AAAA queries (RFC 4074 section 4.1).
type DNS64 struct {
	prefix      netip.Prefix
	all         bool                                   // synthesize even if there are AAAA records
	ipv4Clients bool                                   // synthesize also for clients over IPv4
	base        [16]byte                               // address of prefix
	embedder    func(to *[16]byte, from *[4]byte) bool // embed as a func, kept because a method value allocates
}

// NewDNS64 returns a DNS64 for an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits (RFC 6052), or an error if it
// is invalid. With all it synthesizes even if there are AAAA records, with ipv4Clients also for clients over
// IPv4.
func NewDNS64(prefix netip.Prefix, all, ipv4Clients bool) (*DNS64, error) {
	p := prefix.Masked()
	s := &DNS64{prefix: p, all: all, ipv4Clients: ipv4Clients}
	if !p.IsValid() || !p.Addr().Is6() {
		return nil, errors.New("DNS64 prefix is not an IPv6 prefix")
	}
	s.base = p.Addr().As16()
	switch p.Bits() {
	case 32, 40, 48, 56, 64, 96:
	default:
		return nil, errors.New("DNS64 prefix length is not 32, 40, 48, 56, 64 or 96")
	}
	if s.base[8] != 0 {
		return nil, errors.New("DNS64 prefix: bits 64 to 71 are not zero")
	}
	s.embedder = s.embed
	return s, nil
}

// appliesTo reports whether a query of a client may get synthesized addresses.
func (s *DNS64) appliesTo(q *wire.Query, from *wire.Peer) bool {
	return q.Type == wire.TypeAAAA && q.RD && (!q.DO || !q.CD) && (s.ipv4Clients || !from.Addr.Addr().Is4())
}

// reservedByte is the index of the address byte that is always zero (RFC 6052 section 2.2).
const reservedByte = 8

// embed writes the IPv6 address for an IPv4 address. It returns false for one that a NAT64 must not translate.
func (s *DNS64) embed(to *[16]byte, from *[4]byte) bool {
	if !isUsable4(from[:]) {
		return false
	}
	*to = s.base
	for i, b := range from {
		to[s.position(i)] = b
	}
	return true
}

// extract returns the IPv4 address embedded in an address of the prefix.
func (s *DNS64) extract(addr *[16]byte) (v4 [4]byte) {
	for i := range v4 {
		v4[i] = addr[s.position(i)]
	}
	return v4
}

// position returns where byte i of the IPv4 address is in an IPv6 address of the prefix.
func (s *DNS64) position(i int) int {
	first := s.prefix.Bits() / 8
	if first <= reservedByte && first+i >= reservedByte {
		i++
	}
	return first + i
}

// defaultTTL is the maximum TTL, in seconds, of synthesized addresses if there is no answer to the AAAA query, or
// if that answer has no SOA record within the client's reply size (RFC 6147 section 5.1.7).
const defaultTTL = 600

// maxSynthesizedTTL returns the maximum TTL, in seconds, of records made in place of the answer m: the TTL of
// its SOA record, or defaultTTL without one.
func maxSynthesizedTTL(m *wire.Message) uint32 {
	for _, r := range m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return m.RecordTTL(r)
		}
	}
	return defaultTTL
}

// needsSynthesis reports whether to replace an AAAA answer by synthesized addresses.
func (s *DNS64) needsSynthesis(m *wire.Message) bool {
	switch {
	case m.Rcode() == wire.RcodeNXDomain:
		return false
	case s.all:
		return true
	}
	return !hasAddress(m, wire.TypeAAAA)
}

// hasAddress reports whether the answer has a usable address of a type.
func hasAddress(m *wire.Message, rrtype uint16) bool {
	for _, r := range m.Records {
		if r.Section == wire.Answer && r.Type == rrtype && r.Class == wire.ClassIN &&
			(rrtype != wire.TypeA || isUsable4(m.Raw[r.Data():])) && !isMapped(m, r) {
			return true
		}
	}
	return false
}

// isUsable4 reports whether a NAT64 may translate an IPv4 address: not 0.0.0.0, which block lists use,
// nor loopback.
func isUsable4(addr []byte) bool { return addr[0] != 0 && addr[0] != 127 }

// isMapped reports whether r is an IPv4-mapped IPv6 address in the answer section, which clients must
// not get.
func isMapped(m *wire.Message, r wire.Record) bool {
	const prefix = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" // ::ffff:0:0/96
	return r.Section == wire.Answer && r.Type == wire.TypeAAAA && string(m.Raw[r.Data():][:len(prefix)]) == prefix
}

const (
	nameWellKnown  = "\x08ipv4only\x04arpa\x00"
	nameReverse170 = "\x03170\x010\x010\x03192\x07in-addr\x04arpa\x00"
	nameReverse171 = "\x03171\x010\x010\x03192\x07in-addr\x04arpa\x00"

	wellKnownTTL = 3600 // seconds
	reverseTTL   = 600  // seconds, of the CNAME record at the reverse name of a synthesized address
)

// answerWellKnown appends the answer for the names by which clients discover the prefix, and for names
// below them. No upstream may be queried for these (RFC 8880 section 7). made says whether this client
// gets synthesized addresses.
func (s *DNS64) answerWellKnown(q *wire.Query, made bool, dst []byte) ([]byte, bool) {
	start, name := len(dst), q.Name()
	switch {
	case !bytes.HasSuffix(name, []byte("\x04arpa\x00")): // most queries
		return dst, false
	case string(name) == nameWellKnown:
		dst = appendAnswer(dst, q)
		for _, last := range []byte{170, 171} {
			v4 := [4]byte{192, 0, 0, last}
			switch {
			case q.Type == wire.TypeA:
				dst = appendOwn(dst, start, wire.TypeA, wellKnownTTL, v4[:])
			case q.Type == wire.TypeAAAA && made:
				var v6 [16]byte
				s.embed(&v6, &v4)
				dst = appendOwn(dst, start, wire.TypeAAAA, wellKnownTTL, v6[:])
			}
		}
	case string(name) == nameReverse170, string(name) == nameReverse171:
		dst = appendAnswer(dst, q)
		if q.Type == wire.TypePTR {
			dst = appendOwn(dst, start, wire.TypePTR, wellKnownTTL, []byte(nameWellKnown))
		}
	case isBelow(name, nameWellKnown), isBelow(name, nameReverse170), isBelow(name, nameReverse171):
		dst = appendAnswer(dst, q)
		dst[start+3] |= wire.RcodeNXDomain
	default:
		return dst, false
	}
	return dst, true
}

// isBelow reports whether a canonical name is below another.
func isBelow(name []byte, other string) bool {
	kept := len(name) - len(other)
	return kept > 0 && string(name[kept:]) == other && isLabelAt(name, kept)
}

// isLabelAt reports whether a label of the name begins at an offset.
func isLabelAt(name []byte, at int) bool {
	off := 0
	for off < at {
		off += 1 + int(name[off])
	}
	return off == at
}

// appendReverse appends the answer for the reverse name of an address of the prefix: a CNAME to the
// reverse name of its IPv4 address. It returns the length of that name, or 0 if q is for another name.
func (s *DNS64) appendReverse(q *wire.Query, dst []byte) (out []byte, target int) {
	var addr [16]byte
	if v6, _ := wire.ReverseAddr(q.Name(), &addr); len(v6) != len(addr) || !s.prefix.Contains(netip.AddrFrom16(addr)) {
		return dst, 0
	}
	var room [32]byte
	v4 := s.extract(&addr)
	name := wire.AppendReverse(room[:0], v4[:])
	start := len(dst)
	return appendOwn(appendAnswer(dst, q), start, wire.TypeCNAME, reverseTTL, name), len(name)
}

// appendAnswer appends the header and the question of an answer to q.
func appendAnswer(dst []byte, q *wire.Query) []byte {
	const bitsAnswer = 0x84 // QR, AA
	return q.AppendQuestion(append(dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0))
}

// appendOwn appends a record owned by the query name to the answer section of dst[start:], which has no
// other sections.
func appendOwn(dst []byte, start int, rrtype uint16, ttl uint32, data []byte) []byte {
	dst = append(dst, 0xc0, wire.HeaderLen)
	dst = binary.BigEndian.AppendUint16(dst, rrtype)
	dst = binary.BigEndian.AppendUint16(dst, wire.ClassIN)
	dst = binary.BigEndian.AppendUint32(dst, ttl)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data)))
	dst = append(dst, data...)
	count := dst[start+6 : start+8]
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	return dst
}
