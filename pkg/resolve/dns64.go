// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
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
//	AAAA in ::ffff:0:0/96             as if it were not there (section 5.1.4)
//	AAAA by DO=1 and CD=1             as if there were no DNS64: the client validates (section 5.5)
//	PTR of an address of the prefix   CNAME to the name of its IPv4 address, and its answer
//	ipv4only.arpa, its reverse,
//	and what is below                 answered here (RFC 7050, RFC 8880); NXDOMAIN below
//
// The question for A is asked once that for AAAA was answered, as a flight of its own
// with what is left of the client's time. That for AAAA has half of it: some servers do
// not answer that (RFC 4074 section 4.1).
type DNS64 struct {
	prefix      netip.Prefix
	all         bool // made even where there is an address
	ipv4Clients bool // for clients over IPv4, too
	base        [16]byte
	embedder    wire.Embedder // embed
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
	s := &DNS64{prefix: p, all: cfg.All, ipv4Clients: cfg.IPv4}
	if !p.IsValid() || !p.Addr().Is6() {
		return nil, errors.New("a DNS64 needs a prefix of IPv6")
	}
	s.base = p.Addr().As16()
	switch p.Bits() {
	case 32, 40, 48, 56, 64, 96:
	default:
		return nil, errors.New("a DNS64 needs a prefix of 32, 40, 48, 56, 64 or 96 bits")
	}
	if s.base[8] != 0 {
		return nil, errors.New("a DNS64 needs a prefix whose bits 64 to 71 are zero")
	}
	s.embedder = s.embed
	return s, nil
}

// gap is the octet of an address that is zero and has no part in it (RFC 6052 section
// 2.2).
const reservedByte = 8

// embed makes the IPv6 address for an IPv4 address, of which one is to be made.
func (s *DNS64) embed(to *[16]byte, from *[4]byte) bool {
	if !isUsable4(from[:]) {
		return false
	}
	*to = s.base
	at := s.prefix.Bits() / 8
	for _, octet := range from {
		if at == reservedByte {
			at++
		}
		to[at] = octet
		at++
	}
	return true
}

// extract is the IPv4 address that an address of the prefix was made from.
func (s *DNS64) extract(addr *[16]byte) (v4 [4]byte) {
	at := s.prefix.Bits() / 8
	for i := range v4 {
		if at == reservedByte {
			at++
		}
		v4[i] = addr[at]
		at++
	}
	return v4
}

// unknownTTL is the longest time, in seconds, that an address is kept that was made
// where the denial of an IPv6 address has no SOA record (RFC 6147 section 5.1.7), or has it
// beyond what a reply to the client holds.
const defaultTTL = 600

// markSix has addresses made for the query in hand if it is one for that.
func (l *Worker) enableDNS64(s *DNS64, from *wire.Peer) {
	q := &l.q
	if q.Type != wire.TypeAAAA || !q.RD || q.DO && q.CD || !s.ipv4Clients && from.Addr.Addr().Is4() {
		return
	}
	l.redirect.start()
	l.redirect.dns64, l.redirect.client = s, *from
	if l.plan.anySubnet {
		l.redirect.subnet = q.Subnet
	}
}

// sixth looks at the answer to one of the two questions. It tells that the other is to
// be asked, or has w.held be the answer to the first, or finds that there is none.
func (w *restorer) restoreDNS64(d *redirect, failure bool, msg []byte) restoreState {
	if !failure && w.tail.Parse(msg) != nil {
		return failed
	}
	if !d.retryA {
		if !failure && !d.dns64.needsSynthesis(&w.tail) {
			return w.withoutMapped()
		}
		d.retryA, d.firstAnswer, d.maxTTL = true, d.firstAnswer[:0], defaultTTL
		if !failure {
			d.firstAnswer, d.maxTTL = append(d.firstAnswer, msg...), maxSynthesizedTTL(&w.tail)
		}
		return needsRetry
	}
	if failure {
		return failed
	}
	d.synthesized = hasAddress(&w.tail, wire.TypeA)
	if !d.synthesized {
		useless := hasType(&w.tail, wire.TypeA) // nothing is to be made of them
		if d.useFirst = w.isBetter(d.firstAnswer, useless); d.useFirst {
			return w.withoutMapped()
		}
		if useless {
			return failed
		}
	}
	w.held = w.recaster.SynthesizeAAAA(w.held[:0], &w.tail, d.dns64.embedder, d.maxTTL)
	return restored
}

// isBetter tells whether the answer to the first question is the one to give where that
// to the second has nothing to make addresses of. It is in w.tail then. If it only has
// addresses that no client is to get, the denial of others says more.
func (w *restorer) isBetter(answer []byte, useless bool) bool {
	m := &w.denial
	if m.Parse(answer) != nil || !useless && hasType(m, wire.TypeAAAA) && !hasAddress(m, wire.TypeAAAA) {
		return false
	}
	return w.tail.Parse(answer) == nil
}

// usable has w.held be the answer in w.tail, which may be written over, without the
// addresses that no client is to get (RFC 6147 section 5.1.4).
func (w *restorer) withoutMapped() restoreState {
	m := &w.tail
	if hasMapped(m) {
		w.order = w.order[:0]
		for i, r := range m.Records {
			if isMapped(m, r) || r.Section == wire.Answer && r.Type == wire.TypeRRSIG && m.TypeCovered(r) == wire.TypeAAAA {
				continue
			}
			w.order = append(w.order, uint16(i))
		}
		if w.sift.Keep(m, w.order) != nil {
			return failed
		}
		m.ClearAuthentic()
	}
	w.held = append(w.held[:0], m.Raw...)
	return restored
}

// longest is how long an address may be kept, in seconds, that is made where m says that
// there is none.
func maxSynthesizedTTL(m *wire.Message) uint32 {
	for _, r := range m.Records {
		if r.Section == wire.Authority && r.Type == wire.TypeSOA {
			return m.RecordTTL(r)
		}
	}
	return defaultTTL
}

// wanting tells whether addresses are to be made in place of an answer.
func (s *DNS64) needsSynthesis(m *wire.Message) bool {
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

// hasAddress tells whether the answer has an address of a type that is one to a client.
func hasAddress(m *wire.Message, rrtype uint16) bool {
	for _, r := range m.Records {
		if r.Section == wire.Answer && r.Type == rrtype && r.Class == wire.ClassIN &&
			(rrtype != wire.TypeA || isUsable4(m.Raw[r.Data():])) && !isMapped(m, r) {
			return true
		}
	}
	return false
}

// hasMapped tells whether the answer has an address that isMapped tells of.
func hasMapped(m *wire.Message) bool {
	return slices.ContainsFunc(m.Records, func(r wire.Record) bool { return isMapped(m, r) })
}

// isUsable4 tells whether an IPv4 address is one that a NAT64 may lead to: not 0.0.0.0,
// by which lists of hosts block names, nor one of the client itself.
func isUsable4(addr []byte) bool { return addr[0] != 0 && addr[0] != 127 }

// isMapped tells whether r is an IPv4 address in the form of an IPv6 address that
// answers the question: no client is to get one.
func isMapped(m *wire.Message, r wire.Record) bool {
	const prefix = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" // ::ffff:0:0/96
	return r.Section == wire.Answer && r.Type == wire.TypeAAAA && string(m.Raw[r.Data():][:len(prefix)]) == prefix
}

// fromPrefix answers for the names that are about the prefix itself, or leads on from
// one.
func (l *Worker) answerFromPrefix(x *extras, from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	q, start := &l.q, len(dst)
	if q.DO && q.CD {
		return dst, false
	}
	if q.Type == wire.TypePTR && !l.redirect.hasAlias() {
		out, target := x.dns64.appendReverse(q, dst)
		if dst = out[:start]; target > 0 && l.followAlias(out, start, target) && x.static != nil {
			var done bool
			if dst, done = l.answerFromStatic(from, now, dst); done {
				return dst, true
			}
		}
	}
	out, ok := x.dns64.answerWellKnown(q, l.redirect.active && l.redirect.dns64 != nil, dst)
	if !ok {
		return dst, false
	}
	if out, done := l.restoreAndReply(SourceLocal, from, now, out, start); done {
		return out, true
	}
	return l.answerFromPrefix(x, from, now, out[:start])
}

const (
	nameWellKnown  = "\x08ipv4only\x04arpa\x00"
	nameReverse170 = "\x03170\x010\x010\x03192\x07in-addr\x04arpa\x00"
	nameReverse171 = "\x03171\x010\x010\x03192\x07in-addr\x04arpa\x00"

	wellKnownTTL = 3600 // seconds
	reverseTTL   = 600  // seconds, of the CNAME record that leads on from an address of the prefix
)

// wellKnown appends the answer to q if it is for the name by which clients find the
// prefix, or for what leads back to that: nobody else is to be asked (RFC 8880 section
// 7). No name is below these. made says whether the client gets addresses that are made.
func (s *DNS64) answerWellKnown(q *wire.Query, made bool, dst []byte) ([]byte, bool) {
	start, name := len(dst), q.Name()
	switch {
	case !bytes.HasSuffix(name, []byte("\x04arpa\x00")): // nearly every name
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

// isBelow tells whether a canonical name is below another.
func isBelow(name []byte, other string) bool {
	kept := len(name) - len(other)
	return kept > 0 && string(name[kept:]) == other && isLabelAt(name, kept)
}

// appendReverse appends the answer to q, for the name of an address of the prefix: the
// alias of the name of its IPv4 address, which has target octets; 0: it is none.
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
