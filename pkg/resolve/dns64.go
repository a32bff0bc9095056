// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"net/netip"
	"slices"

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

// embed makes the IPv6 address for an IPv4 address, of which one is to be made.
func (s *DNS64) embed(to *[16]byte, from *[4]byte) bool {
	if !isUsable4(from[:]) {
		return false
	}
	*to = s.octets
	at := s.prefix.Bits() / 8
	for _, octet := range from {
		if at == gap {
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
		if at == gap {
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
const unknownTTL = 600

// markSix has addresses made for the query in hand if it is one for that.
func (l *Worker) markSix(s *DNS64, from *wire.Peer) {
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
	if !failed && w.tail.Parse(msg) != nil {
		return lost
	}
	if !d.second {
		if !failed && !d.six.wanting(&w.tail) {
			return w.usable()
		}
		d.second, d.kept, d.most = true, d.kept[:0], unknownTTL
		if !failed {
			d.kept, d.most = append(d.kept, msg...), longest(&w.tail)
		}
		return again
	}
	if failed {
		return lost
	}
	d.made = hasAddress(&w.tail, wire.TypeA)
	if !d.made {
		useless := hasType(&w.tail, wire.TypeA) // nothing is to be made of them
		if d.back = w.isBetter(d.kept, useless); d.back {
			return w.usable()
		}
		if useless {
			return lost
		}
	}
	w.held = w.cast.SynthesizeAAAA(w.held[:0], &w.tail, d.six.made, d.most)
	return arrived
}

// isBetter tells whether the answer to the first question is the one to give where that
// to the second has nothing to make addresses of. It is in w.tail then. If it only has
// addresses that no client is to get, the denial of others says more.
func (w *way) isBetter(answer []byte, useless bool) bool {
	m := &w.denial
	if m.Parse(answer) != nil || !useless && hasType(m, wire.TypeAAAA) && !hasAddress(m, wire.TypeAAAA) {
		return false
	}
	return w.tail.Parse(answer) == nil
}

// usable has w.held be the answer in w.tail, which may be written over, without the
// addresses that no client is to get (RFC 6147 section 5.1.4).
func (w *way) usable() step {
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
			return lost
		}
		m.ClearAuthentic()
	}
	w.held = append(w.held[:0], m.Raw...)
	return arrived
}

// longest is how long an address may be kept, in seconds, that is made where m says that
// there is none.
func longest(m *wire.Message) uint32 {
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
