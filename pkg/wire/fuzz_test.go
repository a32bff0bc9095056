// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// FuzzQuery holds Query.Parse against the oracle.
func FuzzQuery(f *testing.F) {
	for _, pkt := range slices.Concat(seedQueries(f), seedAnswers(f), oddQueries()) {
		f.Add(pkt)
	}
	f.Fuzz(func(t *testing.T, pkt []byte) {
		var q wire.Query
		fault := q.Parse(pkt)
		m := new(dns.Msg)
		err := m.Unpack(pkt)
		switch {
		case len(pkt) < 12 || pkt[2]&0x80 != 0:
			if fault != wire.NoReply {
				t.Fatalf("fault %d of what is no query", fault)
			}
		case pkt[2]>>3&0xf != 0:
			if fault != wire.RcodeNotImp {
				t.Fatalf("fault %d of another opcode", fault)
			}
		case fault == wire.NoReply, fault == wire.RcodeNotImp:
			t.Fatalf("fault %d of a query", fault)
		case fault == wire.RcodeSuccess:
			compareQuery(t, pkt, &q, m, err)
		case err == nil:
			why := whyNoQuery(pkt, m)
			if why == "" || why == "version" && fault != wire.RcodeBadVers {
				t.Fatalf("fault %d, but %q for %v", fault, why, m)
			}
			if o := m.IsEdns0(); fault == wire.RcodeBadVers && (o == nil || o.Version() == 0) {
				t.Fatalf("BADVERS for %v", m)
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
		if binary.BigEndian.Uint16(pkt[10:]) == 0 && !q.HasSerial {
			tb.Fatalf("the oracle refuses a query without other records: %v", err)
		}
		if why := whyNoOPT(pkt); why != "" && why != "owner cut" { // the oracle follows pointers of owners
			tb.Fatalf("taken in spite of %q", why)
		}
		m = unpack(tb, cat(pkt[:4], u16(1, 0, 0, 0), q.QuestionSection()))
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
	if len(m.Ns) == 1 {
		want.Serial, want.HasSerial = m.Ns[0].(*dns.SOA).Serial, true
	}
	if o := m.IsEdns0(); o != nil {
		want.EDNS, want.UDPSize, want.DO = true, max(o.UDPSize(), 512), o.Do()
		for _, option := range slices.Backward(o.Option) {
			switch option := option.(type) {
			case *dns.EDNS0_COOKIE:
				cookie, _ := hex.DecodeString(option.Cookie)
				want.Cookie = string(cookie)
			case *dns.EDNS0_SUBNET:
				addr := option.Address
				if option.Family == 1 {
					addr = addr.To4()
				}
				size := (int(option.SourceNetmask) + 7) / 8
				want.Subnet = string(cat(u16(option.Family), []byte{option.SourceNetmask, option.SourceScope}, addr[:size]))
			case *dns.EDNS0_TCP_KEEPALIVE:
				want.Keepalive = true
			case *dns.EDNS0_LOCAL:
				want.Explain = want.Explain || option.Code == wire.OptionExplain && len(option.Data) == 0
			}
		}
	}
	got.Name = ""
	if err != nil {
		got.Serial, got.HasSerial = 0, false
		got.EDNS, got.DO, got.UDPSize, got.Cookie, got.Subnet, got.Keepalive, got.Explain = false, false, 512, "", "", false, false
	}
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Fatalf("(-want +got)\n%s", diff)
	}
}

// FuzzMessage holds Message.Parse against the slow reader, and both against the
// oracle: what is taken the oracle reads the same way, and what only the oracle
// takes is refused for one of the reasons that oracleTakes lists.
func FuzzMessage(f *testing.F) {
	for _, msg := range slices.Concat(seedAnswers(f), seedQueries(f), oddMessages(f)) {
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
			if !errors.Is(err, wire.ErrMalformed) || m.Raw != nil || len(m.Records) != 0 {
				t.Fatalf("error %v, %d records are left behind", err, len(m.Records))
			}
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
	for _, msg := range slices.Concat(seedAnswers(f), oddMessages(f)) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if m := new(wire.Message); m.Parse(msg) == nil {
			_ = stripOPT(t, m) // an OPT record that is pointed at stays
		}
	})
}

// stripOPT removes the OPT record and compares what the oracle reads before and after.
func stripOPT(t *testing.T, m *wire.Message) error {
	t.Helper()
	before := view(t, m)
	if err := m.StripOPT(); err != nil {
		return err
	}
	again := parseMessage(t, m.Raw)
	if again.HasOPT() || m.HasOPT() || len(again.Raw) != len(m.Raw) {
		t.Fatalf("OPT %t, %d of %d bytes", again.HasOPT(), len(again.Raw), len(m.Raw))
	}
	if diff := cmp.Diff(before, view(t, m)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(again.Records, m.Records, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("records (-want +got)\n%s", diff)
	}
	return m.StripOPT() // there is none any more
}

// FuzzReply answers any query with any answer to its question, TTLs patched.
func FuzzReply(f *testing.F) {
	for i, pkt := range seedQueries(f) {
		for _, msg := range seedAnswers(f) {
			end := questionEnd(msg)
			f.Add(pkt, msg[:12], msg[end:], uint16(20*i), uint32(i)<<28, byte(i))
			f.Add(pkt, cat(msg[:2], []byte{0x87, 0xb0}, msg[4:12]), msg[end:], uint16(1232), uint32(1)<<31, byte(0xff-i)) // all flags
		}
	}
	f.Fuzz(func(t *testing.T, pkt, head, tail []byte, limit uint16, ttl uint32, kind byte) {
		var q wire.Query
		var m wire.Message
		if q.Parse(pkt) != wire.RcodeSuccess || len(head) != 12 {
			return
		}
		stored := cat(head[:4], u16(1), head[6:12], q.QuestionSection(), tail)
		if m.Parse(stored) != nil || m.StripOPT() != nil {
			return
		}
		m.CanonicalizeQuestion()
		for _, r := range m.Records {
			m.SetRecordTTL(r, ttl)
		}
		opts := &wire.ReplyOptions{Limit: 512 + int(limit), UDPSize: 1232, Keepalive: uint16(kind & 1), EDE: int(kind&2) - 1}
		if kind&4 != 0 {
			opts.Cookie = make([]byte, 8+int(kind>>3)) // 8 to 39 bytes
		}
		replyTo(t, &q, &m, opts)
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

// FuzzLower holds the letter cases against a byte-by-byte reading.
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

// FuzzAppendName compares names with what the oracle reads.
func FuzzAppendName(f *testing.F) {
	for _, text := range []string{".", "www.Example.", `a\.b\065.\000`, "a..b", `\999`, `a\`, "\xf6", "\u03db\\.", strings.Repeat("a.", 127), strings.Repeat("a", 64)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := wire.AppendName(nil, text)
		room := make([]byte, 4*len(text)+2)
		n, oracle := dns.PackDomainName(absolute(text), room, 0, nil, false)
		if err != nil {
			// The oracle takes a backslash before one or two digits, and "" for the root.
			if oracle == nil && n <= wire.MaxName && text != "" && !strings.Contains(text, `\`) {
				t.Fatalf("%q: refused, the oracle reads %x", text, room[:n])
			}
			return
		}
		overlooked := errors.Is(oracle, dns.ErrFqdn) // see absolute
		if !overlooked && (oracle != nil || !bytes.Equal(slowLower(room[:n]), got)) {
			t.Fatalf("%q: %x, the oracle reads %x, %v", text, got, room[:n], oracle)
		}
		if again, err := wire.AppendName(nil, string(wire.AppendText(nil, got))); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%q: %x there and %x back, %v", text, got, again, err)
		}
	})
}

// absolute returns a name with a final dot. [dns.Fqdn] overlooks that a dot is escaped behind a letter of several bytes.
func absolute(text string) string {
	rest, dot := strings.CutSuffix(text, ".")
	escapes := len(rest) - len(strings.TrimRight(rest, `\`))
	if dot && escapes%2 == 0 {
		return text
	}
	return text + "."
}
