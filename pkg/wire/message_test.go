// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// reply is an answer to example. A with records of the three sections.
func reply(an, ns, ar uint16, sections ...[]byte) []byte {
	return cat(header(flagsAnswer, 1, an, ns, ar), question(labels("example"), wire.TypeA), cat(sections...))
}

// firstRecord is where the first record of such an answer begins.
const firstRecord = 12 + 9 + 4

// chain is a TXT record and behind it names, each a label and a pointer to the
// one before: the last follows n pointers.
func chain(n int) []byte {
	msg := reply(uint16(n), 0, 0)
	at := 12
	for range n {
		here := len(msg)
		msg = append(msg, record(cat([]byte{1, 'x'}, pointer(at)), wire.TypeTXT, []byte{0})...)
		at = here
	}
	return msg
}

// bare is like chain, of pointers to pointers.
func bare(n int) []byte {
	msg := reply(uint16(n), 0, 0)
	at := 12
	for range n {
		here := len(msg)
		msg = append(msg, record(pointer(at), wire.TypeTXT, []byte{0})...)
		at = here
	}
	return msg
}

// respelled is an answer whose question holds the bytes 0xc0 'A' at offset 97,
// a pointer to a label at 65, and an owner that leads there. With the letter in
// lower case, as the question is stored, that pointer would lead to itself.
func respelled() []byte {
	inner := []byte(strings.Repeat("y", 33)) // at 68
	copy(inner[97-68:], "\xc0A")
	name := labels(strings.Repeat("x", 52), "q", string(inner))
	return cat(header(flagsAnswer, 1, 1, 0, 0), question(name, 1), record(pointer(97), wire.TypeTXT, nil))
}

func TestMessageParse(t *testing.T) {
	t.Parallel()
	root, self := labels(), pointer(12)
	a := record(self, wire.TypeA, []byte{10, 0, 0, 1})
	signed := record(self, wire.TypeRRSIG, cat(make([]byte, 18), labels("signer"), []byte("sig")))
	tests := []struct {
		name string
		msg  []byte
		want int // records
	}{
		{"no record", reply(0, 0, 0), 0},
		{"one", reply(1, 0, 0, a), 1},
		{"one in each section", reply(1, 1, 1, a, record(self, wire.TypeNS, labels("ns")), a), 3},
		{"OPT is not counted", reply(1, 0, 1, a, opt(1232, 0, 0)), 1},
		{"OPT first", reply(1, 0, 2, a, opt(1232, 0, 0, option(3, 1)), a), 2},
		{"OPT of version 3", reply(1, 0, 1, a, opt(1232, 3, 0)), 1},
		{"trailing bytes", cat(reply(1, 0, 0, a), []byte("rubbish")), 1},
		{"no RDATA in an unknown type", reply(1, 0, 0, record(self, 65280, nil)), 1},
		{"pointer in an unknown type is no name", reply(1, 0, 0, record(self, 65280, pointer(0x3fff))), 1},
		{"pointer into the question name", reply(1, 0, 0, record(pointer(20), wire.TypeTXT, nil)), 1},
		{"pointer to a pointer", reply(2, 0, 0, a, record(pointer(firstRecord), wire.TypeA, make([]byte, 4))), 2},
		{"pointer from RDATA to the owner of the record", reply(1, 0, 0, record(labels("x"), wire.TypeCNAME, pointer(firstRecord))), 1},
		{"pointer to a name in RDATA", reply(2, 0, 0, record(root, wire.TypeMX, cat(u16(5), labels("m", "x"))),
			record(pointer(firstRecord+1+10+2+2), wire.TypeA, make([]byte, 4))), 2},
		{"pointer from one SOA name to the other", reply(0, 1, 0, record(root, wire.TypeSOA,
			cat(labels("m"), pointer(firstRecord+11), make([]byte, 20)))), 1},
		{"pointer to the signer of an RRSIG", reply(2, 0, 0, signed, record(pointer(firstRecord+12+18), wire.TypeA, make([]byte, 4))), 2},
		{"pointer to a label of it, and again", reply(3, 0, 0, signed,
			record(cat([]byte{1, 'w'}, pointer(firstRecord+12+18)), wire.TypeA, make([]byte, 4)),
			record(pointer(firstRecord+12+25), wire.TypeA, make([]byte, 4))), 3},
		{"122 labels with a pointer each", chain(122), 122},
		{"126 bare pointers", bare(126), 126},
		{"pointer of 14 bits", reply(3, 0, 0, record(self, wire.TypeTXT, make([]byte, 0x3fff-firstRecord-12)),
			record(labels("far"), wire.TypeTXT, nil), record(pointer(0x3fff), wire.TypeTXT, nil)), 3},
		{"owner of 255", reply(1, 0, 0, record(longName(255), wire.TypeTXT, nil)), 1},
		{"owner of 255 by a pointer", reply(1, 0, 0, record(cat(longName(247)[:246], self), wire.TypeTXT, nil)), 1},
		{"RDATA name of 255", reply(1, 0, 0, record(self, wire.TypeCNAME, longName(255))), 1},
		{"class CH", reply(1, 0, 0, cat(self, u16(wire.TypeTXT, wire.ClassCH, 0, 0, 1, 0))), 1},
	}
	var m wire.Message // reused on purpose: nothing may be left of the one before
	for _, tt := range tests {
		if err := m.Parse(tt.msg); err != nil {
			t.Errorf("%s: %v, by the slow reader %q", tt.name, err, explain(tt.msg))
			continue
		}
		if got := len(m.Records); got != tt.want {
			t.Errorf("%s: %d records, want %d", tt.name, got, tt.want)
		}
		if reason := explain(tt.msg); reason != "" {
			t.Errorf("%s: the slow reader says %q", tt.name, reason)
		}
		compareRecords(t, &m)
	}
}

// TestMessageParseForgets walks messages whose pointer leads to where the one
// before, of the same size, had a label.
func TestMessageParseForgets(t *testing.T) {
	t.Parallel()
	var m wire.Message
	for n := range 130 {
		at := firstRecord + 12 + n
		before := reply(2, 0, 0, record(pointer(12), wire.TypeTXT, make([]byte, n)), record(labels("pp"), wire.TypeTXT, nil))
		after := reply(2, 0, 0, record(pointer(12), wire.TypeTXT, bytes.Repeat([]byte{0xff}, n+2)), record(pointer(at), wire.TypeTXT, nil))
		if err := m.Parse(before); err != nil {
			t.Fatal(err)
		}
		if err := m.Parse(after); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("pointer to %d of %d bytes: %v, want %v", at, len(after), err, wire.ErrMalformed)
		}
	}
}

// compareRecords holds what m says of its records against the oracle.
func compareRecords(tb testing.TB, m *wire.Message) {
	tb.Helper()
	want := unpack(tb, blur(m))
	var all []dns.RR
	sections := map[int]uint8{}
	for section, list := range [][]dns.RR{want.Answer, want.Ns, want.Extra} {
		for _, rr := range list {
			if rr.Header().Rrtype == 65281 {
				continue
			}
			sections[len(all)] = uint8(section)
			all = append(all, rr)
		}
	}
	if len(all) != len(m.Records) {
		tb.Fatalf("%d records, want %d in %x", len(m.Records), len(all), m.Raw)
	}
	for i, r := range m.Records {
		h := all[i].Header()
		owner, end, err := dns.UnpackDomainName(m.Raw, int(r.Owner))
		if err != nil || owner != h.Name || end+4 != int(r.TTL) {
			tb.Errorf("record %d: owner %q to %d (%v), want %q to %d", i, owner, end, err, h.Name, int(r.TTL)-4)
		}
		ttl := h.Ttl
		if ttl >= 1<<31 {
			ttl = 0
		}
		_, looked := namesIn[r.Type]
		if looked = looked || r.Type == dns.TypeA || r.Type == dns.TypeAAAA; looked && r.Type != h.Rrtype {
			tb.Errorf("record %d: type %d, want %d", i, r.Type, h.Rrtype)
		}
		if r.Class != h.Class || r.Size != h.Rdlength || r.Section != sections[i] || m.RecordTTL(r) != ttl {
			tb.Errorf("record %d: %+v with TTL %d, want section %d, TTL %d, %+v", i, r, m.RecordTTL(r), sections[i], ttl, h)
		}
		if soa, ok := all[i].(*dns.SOA); ok && m.SOAMinimum(r) != soa.Minttl && soa.Minttl < 1<<31 {
			tb.Errorf("record %d: SOA minimum %d, want %d", i, m.SOAMinimum(r), soa.Minttl)
		}
	}
}

func TestMessageFields(t *testing.T) {
	t.Parallel()
	soa := record(pointer(12), wire.TypeSOA, cat(pointer(12), pointer(12), make([]byte, 16), []byte{0, 0, 14, 16}))
	msg := reply(1, 1, 1, record(pointer(12), wire.TypeTXT, nil), soa, cat([]byte{0}, u16(wire.TypeOPT, 1232, 0x0100, 0, 0)))
	msg[2] |= 2 // TC
	m := parseMessage(t, msg)
	if got, want := m.Rcode(), uint16(wire.RcodeBadVers); got != want {
		t.Errorf("rcode %d, want %d", got, want)
	}
	if !m.Truncated() || !m.HasOPT() {
		t.Errorf("truncated %t, OPT %t, want both", m.Truncated(), m.HasOPT())
	}
	if got, want := m.QuestionType(), wire.TypeA; got != want {
		t.Errorf("question type %d, want %d", got, want)
	}
	if got, want := m.SOAMinimum(m.Records[1]), uint32(3600); got != want {
		t.Errorf("SOA minimum %d, want %d", got, want)
	}
	copy(m.Raw[m.Records[1].Data()+20:], []byte{0x80, 0, 0, 1})
	if got := m.SOAMinimum(m.Records[1]); got != 0 {
		t.Errorf("SOA minimum with its top bit set: %d, want 0", got)
	}
}

func TestMessageRecordTTL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		ttl, want uint32
	}{
		{"zero", 0, 0},
		{"a day", 86400, 86400},
		{"the greatest", 1<<31 - 1, 1<<31 - 1},
		{"top bit", 1 << 31, 0},
		{"all bits", 1<<32 - 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, reply(1, 0, 0, record(pointer(12), wire.TypeA, make([]byte, 4))))
			m.SetRecordTTL(m.Records[0], tt.ttl)
			if got := m.RecordTTL(m.Records[0]); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got := binary.BigEndian.Uint32(m.Raw[m.Records[0].TTL:]); got != tt.ttl {
				t.Errorf("wrote %d, want %d", got, tt.ttl)
			}
		})
	}
}

func TestMessageStoredQuestion(t *testing.T) {
	t.Parallel()
	msg := cat(header(flagsAnswer, 1, 1, 0, 0), question(labels("WwW", "\xc1\x00Z"), 0x4141), record(labels("UP"), 0x4141, []byte("UP")))
	want := cat(header(flagsAnswer, 1, 1, 0, 0), question(labels("www", "\xc1\x00z"), 0x4141), record(labels("UP"), 0x4141, []byte("UP")))
	m := parseMessage(t, msg)
	m.CanonicalizeQuestion()
	if diff := cmp.Diff(want, m.Raw); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
