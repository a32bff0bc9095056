// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// DNS64 makes IPv6 addresses of IPv4 addresses, for clients that reach those through a
// NAT64 (RFC 6147).
//
//	AAAA, and there is one            that; made from A all the same if All
//	AAAA, the name does not exist     that
//	AAAA, none, or no answer          made from A, with the SOA's TTL of the denial at most
//	AAAA, and none of A               the denial of AAAA
//	AAAA by DO=1 and CD=1             as if there were no DNS64: the client validates (section 5.5)
//	PTR of an address of the prefix   CNAME to the name of its IPv4 address, and its answer
//	ipv4only.arpa and its reverse     answered here (RFC 7050, RFC 8880)
//
// The question for A is asked once that for AAAA was answered, as a flight of its own
// with what is left of the client's time. That for AAAA has half of it: some servers do
// not answer that (RFC 4074 section 4.1).
type DNS64 struct {
	prefix netip.Prefix
	all    bool // made even where there is an address
	any    bool // for clients over IPv4, too
	octets [16]byte
	made   wire.Embedder // embed
}

// DNS64Config is what a DNS64 is made from.
type DNS64Config struct {
	Prefix netip.Prefix // of IPv6, of 32, 40, 48, 56, 64 or 96 bits (RFC 6052)
	All    bool         // addresses are made even where there are some
	IPv4   bool         // clients that ask over IPv4 get them, too
}

// NewDNS64 checks the prefix.
func NewDNS64(cfg DNS64Config) (*DNS64, error) {
	p := cfg.Prefix.Masked()
	s := &DNS64{prefix: p, all: cfg.All, any: cfg.IPv4}
	if !p.IsValid() || !p.Addr().Is6() {
		return nil, errors.New("a DNS64 needs a prefix of IPv6")
	}
	s.octets = p.Addr().As16()
	switch p.Bits() {
	case 32, 40, 48, 56, 64, 96:
	default:
		return nil, errors.New("a DNS64 needs a prefix of 32, 40, 48, 56, 64 or 96 bits")
	}
	if s.octets[8] != 0 {
		return nil, errors.New("a DNS64 needs a prefix whose bits 64 to 71 are zero")
	}
	s.made = s.embed
	return s, nil
}

// gap is the octet of an address that is zero and has no part in it (RFC 6052 section
// 2.2).
const gap = 8

// embed makes the IPv6 address for an IPv4 address.
func (s *DNS64) embed(to *[16]byte, from *[4]byte) {
	*to = s.octets
	at := s.prefix.Bits() / 8
	for _, octet := range from {
		if at == gap {
			at++
		}
		to[at] = octet
		at++
	}
}

// extract is the IPv4 address that an address of the prefix was made from.
func (s *DNS64) extract(addr *[16]byte) (v4 [4]byte) {
	at := s.prefix.Bits() / 8
	for i := range v4 {
		if at == gap {
			at++
		}
		v4[i] = addr[at]
		at++
	}
	return v4
}

// unknownTTL is the longest time, in seconds, that an address is kept that was made
// where nobody said for how long there is none (RFC 6147 section 5.1.7).
const unknownTTL = 600

// markSix has addresses made for the query in hand if it is one for that.
func (l *Lane) markSix(s *DNS64, from *wire.Peer) {
	q := &l.q
	if q.Type != wire.TypeAAAA || !q.RD || q.DO && q.CD || !s.any && from.Addr.Addr().Is4() {
		return
	}
	l.detour.take()
	l.detour.six, l.detour.from = s, *from
	if l.plan.anySubnet {
		l.detour.subnet = q.Subnet
	}
}

// sixth looks at the answer to one of the two questions. It tells that the other is to
// be asked, or has w.held be the answer to the first, or finds that there is none.
func (w *way) sixth(d *detour, failed bool, msg []byte) step {
	if !d.second {
		if !failed && w.tail.Parse(msg) != nil {
			return lost
		}
		if !failed && !d.six.wanting(&w.tail) {
			w.held = append(w.held[:0], msg...)
			return arrived
		}
		d.second, d.kept = true, d.kept[:0]
		if !failed {
			d.kept = append(d.kept, msg...)
		}
		return again
	}
	if failed || w.tail.Parse(msg) != nil {
		return lost
	}
	d.made = hasAddress(&w.tail, wire.TypeA)
	switch {
	case d.made:
	case len(d.kept) > 0 && !w.excluded(d.kept):
		w.held = append(w.held[:0], d.kept...)
		return arrived
	case hasType(&w.tail, wire.TypeA): // nothing is to be made of them
		return lost
	}
	held, ok := w.cast.Embed(w.held[:0], &w.tail, d.six.made, w.longest(d.kept))
	if w.held = held; !ok {
		return lost
	}
	return arrived
}

// excluded tells whether an answer has only addresses that are none, which no client is to get (RFC 6147 section 5.1.4).
func (w *way) excluded(answer []byte) bool {
	m := &w.denial
	if m.Parse(answer) != nil || hasAddress(m, wire.TypeAAAA) {
		return false
	}
	return hasType(m, wire.TypeAAAA)
}

// longest is how long an address may be kept, in seconds, that is made where denial
// says that there is none.
func (w *way) longest(denial []byte) uint32 {
	m := &w.denial
	if m.Parse(denial) != nil {
		return unknownTTL
	}
	for _, r := range m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return m.RecordTTL(r)
		}
	}
	return unknownTTL
}

// wanting tells whether addresses are to be made in place of an answer.
func (s *DNS64) wanting(m *wire.Message) bool {
	switch {
	case m.Rcode() == wire.RcodeNXDomain:
		return false
	case s.all:
		return true
	}
	return !hasAddress(m, wire.TypeAAAA)
}

// hasType tells whether the answer section has a record of a type.
func hasType(m *wire.Message, rrtype uint16) bool {
	return slices.ContainsFunc(m.Records, func(r wire.Record) bool { return r.Section == wire.Answer && r.Type == rrtype })
}

// hasAddress tells whether the answer has an address of a type. IPv4 addresses in the
// form of IPv6 addresses are none (RFC 6147 section 5.1.4), nor are those of IPv4 that
// no NAT64 leads to: 0.0.0.0, by which lists of hosts block names, and those of the
// client itself.
func hasAddress(m *wire.Message, rrtype uint16) bool {
	mapped := netip.PrefixFrom(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff}), 96)
	for _, r := range m.Records {
		if r.Section != wire.Answer || r.Type != rrtype || r.Class != wire.ClassIN {
			continue
		}
		data := m.Raw[r.Data():]
		if rrtype == wire.TypeA && data[0] != 0 && data[0] != 127 || rrtype != wire.TypeA && !mapped.Contains(netip.AddrFrom16([16]byte(data))) {
			return true
		}
	}
	return false
}

// fromPrefix answers for the names that are about the prefix itself, or leads on from
// one.
func (l *Lane) fromPrefix(x *extras, from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	q, start := &l.q, len(dst)
	if q.DO && q.CD {
		return dst, false
	}
	if out, ok := x.six.wellKnown(q, l.detour.taken && l.detour.six != nil, dst); ok {
		if out, done := l.deliver(SourceLocal, from, now, out, start); done {
			return out, true
		}
		return l.fromPrefix(x, from, now, dst)
	}
	if q.Type != wire.TypePTR {
		return dst, false
	}
	out, target := x.six.appendReverse(q, dst)
	if target == 0 || !l.follow(out, start, target) {
		return dst, false
	}
	if x.static != nil {
		return l.fromStatic(from, now, out[:start])
	}
	return out[:start], false
}

const (
	nameWellKnown  = "\x08ipv4only\x04arpa\x00"
	nameReverse170 = "\x03170\x010\x010\x03192\x07in-addr\x04arpa\x00"
	nameReverse171 = "\x03171\x010\x010\x03192\x07in-addr\x04arpa\x00"

	wellKnownTTL = 3600 // seconds
	reverseTTL   = 600  // seconds, of the CNAME record that leads on from an address of the prefix
)

// wellKnown appends the answer to q if it is for the name by which clients find the
// prefix, or for what leads back to that: nobody else is to be asked (RFC 8880
// section 7). made says whether the client gets addresses that are made.
func (s *DNS64) wellKnown(q *wire.Query, made bool, dst []byte) ([]byte, bool) {
	start := len(dst)
	switch string(q.Name()) {
	case nameWellKnown:
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
	case nameReverse170, nameReverse171:
		dst = appendAnswer(dst, q)
		if q.Type == wire.TypePTR {
			dst = appendOwn(dst, start, wire.TypePTR, wellKnownTTL, []byte(nameWellKnown))
		}
	default:
		return dst, false
	}
	return dst, true
}

// appendReverse appends the answer to q, for the name of an address of the prefix: the
// alias of the name of its IPv4 address, which has target octets; 0: it is none.
func (s *DNS64) appendReverse(q *wire.Query, dst []byte) (out []byte, target int) {
	addr, ok := reversed(q.Name())
	if !ok || !s.prefix.Contains(netip.AddrFrom16(addr)) {
		return dst, 0
	}
	var room [32]byte
	name := room[:0]
	v4 := s.extract(&addr)
	for i := len(v4) - 1; i >= 0; i-- {
		at := len(name)
		name = append(name, 0)
		name = appendDecimal(name, v4[i])
		name[at] = byte(len(name) - at - 1)
	}
	name = append(name, "\x07in-addr\x04arpa\x00"...)
	start := len(dst)
	return appendOwn(appendAnswer(dst, q), start, wire.TypeCNAME, reverseTTL, name), len(name)
}

func appendDecimal(dst []byte, n byte) []byte {
	if n >= 100 {
		dst = append(dst, '0'+n/100)
	}
	if n >= 10 {
		dst = append(dst, '0'+n/10%10)
	}
	return append(dst, '0'+n%10)
}

// reversed is the address that a canonical name is the reverse of.
func reversed(name []byte) (addr [16]byte, ok bool) {
	const tree = "\x03ip6\x04arpa\x00"
	const nibbles = 2 * len(addr)
	if len(name) != 2*nibbles+len(tree) || string(name[2*nibbles:]) != tree {
		return addr, false
	}
	for i := range nibbles {
		digit := hexDigit(name[2*i+1])
		if name[2*i] != 1 || digit < 0 {
			return addr, false
		}
		addr[len(addr)-1-i/2] |= byte(digit << (4 * (i % 2)))
	}
	return addr, true
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// appendAnswer appends the beginning of an answer to q: header and question.
func appendAnswer(dst []byte, q *wire.Query) []byte {
	const bitsAnswer = 0x84 // QR, AA
	return q.AppendQuestion(append(dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0))
}

// appendOwn appends a record of the name that is asked for to the answer section of
// dst[start:], which has nothing behind that.
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
