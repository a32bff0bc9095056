// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A sieve is an upstream that looks at what reaches it, and never answers well.
type privacyUpstream struct {
	tb     testing.TB
	subnet bool
	client *dns.Msg // what the client sent, nil if that cannot be read
	caught int
}

// Ask implements resolve.Asker.
func (s *privacyUpstream) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	s.caught++
	s.check(q)
	to.Answered(nil, dns.ErrId, batch)
}

// check fails the test if q is anything but a plain query of our own making: what
// a client hid in his does not leave (CVE-2026-42004, CVE-2025-59030).
func (s *privacyUpstream) check(q []byte) {
	m := new(dns.Msg)
	if err := m.Unpack(q); err != nil {
		s.tb.Fatalf("%x left, and cannot be read: %v", q, err)
	}
	question := m.Question[0]
	_, end, err := dns.UnpackDomainName(q, wire.HeaderLen)
	assert.NoError(s.tb, err)
	end += 4
	switch {
	case m.Response, m.Opcode != dns.OpcodeQuery, m.Authoritative, m.Truncated, m.Zero, m.RecursionAvailable, m.Rcode != 0, !m.RecursionDesired, !m.AuthenticatedData:
		s.tb.Errorf("flags of\n%v", m)
	case question.Qclass != dns.ClassINET, question.Qtype == 0, question.Qtype == dns.TypeOPT, question.Qtype >= 128 && question.Qtype <= 255:
		s.tb.Errorf("question of\n%v", m)
	case question.Name != strings.ToLower(question.Name):
		s.tb.Errorf("spelling of\n%v", m)
	case binary.BigEndian.Uint32(q[4:]) != 1<<16, binary.BigEndian.Uint32(q[8:]) != 1, m.IsEdns0() == nil:
		s.tb.Errorf("records of\n%v", m)
	case m.IsEdns0().UDPSize() != wire.SafeUDP, m.IsEdns0().Hdr.Ttl&^0x8000 != 0, m.IsEdns0().Hdr.Name != ".":
		s.tb.Errorf("OPT of\n%v", m)
	case s.subnet:
		for _, option := range m.IsEdns0().Option {
			if option.Option() != dns.EDNS0SUBNET || len(m.IsEdns0().Option) > 1 {
				s.tb.Errorf("options of\n%v", m)
			}
		}
	case len(q) != end+11:
		s.tb.Errorf("%d bytes more than the question and an OPT: %x", len(q)-end-11, q)
	}
	if s.client != nil && (s.client.Question[0].Qtype != question.Qtype || !strings.EqualFold(s.client.Question[0].Name, question.Name) || s.client.CheckingDisabled != m.CheckingDisabled) {
		s.tb.Errorf("the client asked\n%v\nand this left\n%v", s.client, m)
	}
}

// FuzzLeaves sends arbitrary packets of a client and checks that upstream queries contain only the
// question.
func FuzzLeaves(f *testing.F) {
	www := question("WWW.test.", dns.TypeA)
	edns := www.Copy().SetEdns0(4096, true)
	edns.CheckingDisabled, edns.Zero = true, true
	edns.IsEdns0().Hdr.Ttl |= 0x1234
	edns.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{10, 1, 2, 0}},
		&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("hidden")},
	}
	signed := www.Copy()
	signed.SetTsig("key.", dns.HmacSHA256, 300, 1577836800)
	chaos := www.Copy()
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for _, m := range []*dns.Msg{
		www, edns, signed, chaos, question("test.", dns.TypeAXFR), question("test.", dns.TypeANY), question("test.", dns.TypeOPT), question("a.", 65280), question(".", dns.TypeNS),
		new(dns.Msg).SetNotify("test."), new(dns.Msg).SetUpdate("test."), new(dns.Msg).SetIxfr("test.", 1, "ns.", "host."), new(dns.Msg).SetReply(www),
	} {
		f.Add(pack(f, m), false)
		f.Add(pack(f, m), true)
	}
	f.Fuzz(func(t *testing.T, pkt []byte, subnet bool) {
		s := &privacyUpstream{tb: t, subnet: subnet}
		if m := new(dns.Msg); m.Unpack(pkt) == nil && len(m.Question) == 1 {
			s.client = m
		}
		p := plan(t, s)
		p.Routes = []resolve.Route{{Suffix: []byte{0}, Upstream: s, Subnet: subnet, TTL: bounds()}}
		r := newResolver(t, p)
		before := bytes.Clone(pkt)
		newClient(r, true).exchange(t, pkt)
		if s.caught > 1 {
			t.Errorf("%d queries left for one", s.caught)
		}
		if !bytes.Equal(before, pkt) {
			t.Error("the client's packet was written to")
		}
	})
}
