// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// seedQueries are queries as clients send them.
func seedQueries(tb testing.TB) [][]byte {
	tb.Helper()
	plain := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	edns := new(dns.Msg).SetQuestion("WwW.eXample.COM.", dns.TypeAAAA).SetEdns0(1232, true)
	o := edns.IsEdns0()
	o.Option = append(o.Option,
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{10, 1, 2, 0}},
		&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE},
		&dns.EDNS0_PADDING{Padding: make([]byte, 8)})
	odd := new(dns.Msg).SetQuestion("\\000\\.\\255.example.", 65280)
	odd.CheckingDisabled, odd.AuthenticatedData, odd.RecursionDesired = true, true, false
	transfer := new(dns.Msg).SetIxfr("example.", 1, "ns.example.", "mail.example.")
	signed := new(dns.Msg).SetQuestion("example.", dns.TypeSOA).SetEdns0(512, false)
	signed.SetTsig("key.example.", dns.HmacSHA256, 300, 1577836800)
	notify := new(dns.Msg).SetNotify("example.")
	var list [][]byte
	for _, m := range []*dns.Msg{plain, edns, odd, transfer, signed, notify} {
		list = append(list, pack(tb, m))
	}
	return append(list, ask(0, labels("a"), opt(0, 1, 0)), ask(0, labels("a"), opt(0, 0, 0), opt(0, 0, 0)))
}

// seedAnswers are answers as upstreams send them.
func seedAnswers(tb testing.TB) [][]byte {
	tb.Helper()
	denial := answer(tb, "no.example.", dns.TypeA, nil, records(tb, "example. 300 IN SOA ns.example. mail.example. 1 2 3 4 300"), nil)
	denial.Rcode = dns.RcodeNameError
	mixed := answer(tb, "www.example.", dns.TypeA,
		records(tb, "www.example. 300 IN CNAME web.other.test.", "web.other.test. 5 IN A 192.0.2.1", "web.other.test. 5 IN A 192.0.2.2"),
		records(tb, "other.test. 60 IN NS ns.other.test.", "old.test. 60 IN DNAME new.test."),
		records(tb, "ns.other.test. 60 IN AAAA 2001:db8::1", "mx.test. 60 IN MX 5 mail.mx.test.", "mail.mx.test. 60 IN SRV 1 2 3 mx.test.",
			"mx.test. 60 IN HTTPS 1 . alpn=h2", "mx.test. 60 IN TXT \"a\" \"b\"", "rp.test. 60 IN RP a.rp.test. b.rp.test."))
	signed := answer(tb, "example.", dns.TypeNS, records(tb, "example. 60 IN NS ns.sub.example.",
		"example. 60 IN RRSIG NS 13 1 60 20300101000000 20200101000000 1 signer.example. AAAA"), nil,
		records(tb, "ns.signer.example. 60 IN A 192.0.2.1"))
	moved := mixed.Copy()
	moved.Extra = append([]dns.RR{new(dns.Msg).SetEdns0(1232, true).Extra[0]}, moved.Extra...)
	return [][]byte{
		pack(tb, denial), pack(tb, mixed), pack(tb, signed), pack(tb, moved), pack(tb, mixed.Copy().SetEdns0(4096, true)),
		respelled(), chain(5), bare(126), bare(127),
		reply(0, 0, 2, opt(512, 0, 0), record(pointer(firstRecord), wire.TypeA, make([]byte, 4))),
	}
}

// whyNoQuery says why a packet that the oracle reads as m is no query, or
// nothing if it is one.
func whyNoQuery(pkt []byte, m *dns.Msg) string {
	counts := func(at int) uint16 { return binary.BigEndian.Uint16(pkt[at:]) }
	switch {
	case counts(4) != 1 || len(m.Question) != 1:
		return "not one question"
	case len(pkt) < questionEndOf(pkt):
		return "question cut or compressed"
	case counts(6)|counts(8) != 0:
		if m.Question[0].Qtype == dns.TypeIXFR {
			return ""
		}
		return "records before the additional section"
	case counts(10) > 2:
		return "more than two additional records"
	case int(counts(10)) != len(m.Extra):
		return "fewer records than promised"
	}
	opts := 0
	for _, rr := range m.Extra {
		o, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if opts++; opts > 1 || o.Hdr.Name != "." {
			return "OPT out of place"
		}
	}
	return whyNoOPT(pkt, m)
}

// whyNoOPT is the part of whyNoQuery that reads the OPT record's octets.
func whyNoOPT(pkt []byte, m *dns.Msg) string {
	off := questionEndOf(pkt)
	for _, rr := range m.Extra {
		_, end, err := dns.UnpackDomainName(pkt, off)
		if err != nil {
			return "owner cut"
		}
		next := end + 10 + int(rr.Header().Rdlength)
		if rr.Header().Rrtype == dns.TypeOPT {
			if pkt[off] != 0 {
				return "OPT out of place"
			}
			if pkt[end+5] != 0 {
				return "version"
			}
			list := slowOptions(pkt[end+10 : next])
			if list == nil || len(list) > 64 {
				return "options"
			}
			for _, o := range list {
				n := len(o.data)
				if o.code == 10 && n != 8 && (n < 16 || n > 40) || o.code == 8 && (n < 4 || n > 20) {
					return "option length"
				}
			}
		}
		off = next
	}
	return ""
}

// questionEndOf is the offset after the plain name of a packet's question, its
// type and its class, or beyond every packet.
func questionEndOf(pkt []byte) int {
	off := 12
	for off < len(pkt) && pkt[off] != 0 {
		if pkt[off] > 63 {
			return 1 << 20
		}
		off += int(pkt[off]) + 1
	}
	return off + 5
}

// FuzzQuery holds Query.Parse against the oracle.
func FuzzQuery(f *testing.F) {
	for _, pkt := range append(seedQueries(f), seedAnswers(f)...) {
		f.Add(pkt)
	}
	f.Fuzz(func(t *testing.T, pkt []byte) {
		var q wire.Query
		fault := q.Parse(pkt)
		m := new(dns.Msg)
		err := m.Unpack(pkt)
		switch {
		case fault == wire.FaultDrop:
			if len(pkt) >= 12 && pkt[2]&0x80 == 0 {
				t.Fatal("a query is dropped")
			}
		case fault == wire.FaultNotImp:
			if pkt[2]>>3&0xf == 0 {
				t.Fatal("a query of opcode QUERY is not implemented")
			}
		case fault == wire.FaultNone:
			compareQuery(t, pkt, &q, m, err)
		case err == nil:
			why := whyNoQuery(pkt, m)
			if why == "" || (why == "version") != (fault == wire.FaultBadVers) {
				t.Fatalf("fault %d, but %q for %v", fault, why, m)
			}
		}
	})
}

// compareQuery compares what was read of a query. The oracle may refuse it for
// the RDATA of an additional record or for the inside of an EDNS option, which
// are not looked into; then the question alone is compared.
func compareQuery(tb testing.TB, pkt []byte, q *wire.Query, m *dns.Msg, err error) {
	tb.Helper()
	if err == nil {
		if why := whyNoQuery(pkt, m); why != "" {
			tb.Fatalf("taken in spite of %q", why)
		}
	} else {
		if binary.BigEndian.Uint16(pkt[10:]) == 0 && q.Type != wire.TypeIXFR {
			tb.Fatalf("the oracle refuses a query without additional record: %v", err)
		}
		m = unpack(tb, cat(pkt[:4], u16(1, 0, 0, 0), q.Question()))
	}
	want := asked{
		ID: m.Id, Type: m.Question[0].Qtype, Class: m.Question[0].Qclass, UDPSize: 512,
		RD: m.RecursionDesired, AD: m.AuthenticatedData, CD: m.CheckingDisabled,
	}
	got := askedBy(q)
	name, _, nameErr := dns.UnpackDomainName(q.Name(), 0)
	if nameErr != nil || name != strings.ToLower(m.Question[0].Name) {
		tb.Fatalf("name %q (%v), want %q in lower case", name, nameErr, m.Question[0].Name)
	}
	if o := m.IsEdns0(); o != nil && q.Type != wire.TypeIXFR {
		want.EDNS, want.UDPSize, want.DO = true, max(o.UDPSize(), 512), o.Do()
		for _, option := range slices.Backward(o.Option) {
			switch option := option.(type) {
			case *dns.EDNS0_COOKIE:
				cookie, _ := hex.DecodeString(option.Cookie)
				want.Cookie = string(cookie)
			case *dns.EDNS0_TCP_KEEPALIVE:
				want.Keepalive = true
			}
		}
	}
	got.Name = ""
	if err != nil || q.Type == wire.TypeIXFR {
		got.EDNS, got.DO, got.UDPSize, got.Cookie, got.Keepalive = false, false, 512, "", false
	}
	if !bytes.Contains(pkt, q.Subnet) {
		tb.Errorf("subnet %x is not of the packet", q.Subnet)
	}
	got.Subnet = ""
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Fatalf("(-want +got)\n%s", diff)
	}
}

// FuzzMessage holds Message.Parse against the slow reader, and both against the
// oracle: what is taken the oracle reads the same way, and what only the oracle
// takes is refused for one of the reasons that oracleTakes lists.
func FuzzMessage(f *testing.F) {
	for _, msg := range append(seedAnswers(f), seedQueries(f)...) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		err, why := m.Parse(msg), explain(msg)
		if (err != nil) != (why != "") {
			t.Fatalf("error %v, but the slow reader says %q", err, why)
		}
		read := new(dns.Msg)
		oracle := read.Unpack(msg)
		if err != nil {
			if oracle == nil && !oracleTakes(why) {
				t.Fatalf("the oracle takes what is refused for %q", why)
			}
			return
		}
		compareRecords(t, &m)
		if oracle == nil && int(m.Rcode()) != read.Rcode {
			t.Fatalf("rcode %d, want %d", m.Rcode(), read.Rcode)
		}
	})
}

// FuzzStripOPT compares what the oracle reads before and after.
func FuzzStripOPT(f *testing.F) {
	for _, msg := range seedAnswers(f) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		if m.Parse(msg) != nil {
			return
		}
		before := view(t, &m)
		if m.StripOPT() != nil {
			return
		}
		again := parseMessage(t, m.Raw)
		if again.HasOPT() || len(again.Raw) != len(m.Raw) {
			t.Fatalf("OPT %t, %d of %d octets", again.HasOPT(), len(again.Raw), len(m.Raw))
		}
		if diff := cmp.Diff(before, view(t, &m)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(again.Records, m.Records, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("records (-want +got)\n%s", diff)
		}
	})
}

// FuzzReply answers any query with any answer to its question, TTLs patched.
func FuzzReply(f *testing.F) {
	for i, pkt := range seedQueries(f) {
		for _, msg := range seedAnswers(f) {
			end := questionEnd(msg)
			f.Add(pkt, msg[:12], msg[end:], uint16(20*i), uint32(i)<<28, byte(i))
		}
	}
	f.Fuzz(func(t *testing.T, pkt, head, tail []byte, limit uint16, ttl uint32, kind byte) {
		var q wire.Query
		var m wire.Message
		if q.Parse(pkt) != wire.FaultNone || len(head) != 12 {
			return
		}
		stored := cat(head[:4], u16(1), head[6:12], q.Question(), tail)
		if m.Parse(stored) != nil || m.StripOPT() != nil {
			return
		}
		m.StoredQuestion()
		for _, r := range m.Records {
			m.SetRecordTTL(r, ttl)
		}
		seal := &wire.Seal{Limit: 512 + int(limit), UDPSize: 1232, Keepalive: uint16(kind & 1), EDE: int(kind&2) - 1}
		if kind&4 != 0 {
			seal.Cookie = make([]byte, 8+int(kind>>3)) // 8 to 39 octets
		}
		replyTo(t, &q, &m, seal)
		if ttl > 1<<31-1 {
			ttl = 0
		}
		for _, r := range m.Records {
			if got := m.RecordTTL(r); got != ttl {
				t.Fatalf("TTL %d, want %d", got, ttl)
			}
		}
	})
}

// FuzzLower holds the letter cases against an octet-by-octet reading.
func FuzzLower(f *testing.F) {
	f.Add([]byte("\x03WWW\x07eXAMPLE\x00"), []byte("\x03www\x07example\x00"))
	f.Add([]byte("@AZ[`az{\x00\x7f\x80\xc1\xda\xff"), []byte("`az{@AZ[\x00\x7f\x80\xe1\xfa\xdf"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		got := make([]byte, len(a))
		wire.Lower(got, a)
		if want := slowLower(a); !bytes.Equal(want, got) {
			t.Fatalf("%x: got %x, want %x", a, got, want)
		}
		b = b[:min(len(a), len(b))]
		a = a[:len(b)]
		if got, want := wire.EqualFold(a, b), bytes.Equal(slowLower(a), slowLower(b)); got != want {
			t.Fatalf("%x and %x: got %t, want %t", a, b, got, want)
		}
	})
}
