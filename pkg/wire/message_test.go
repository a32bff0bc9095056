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

// respelled is an answer whose question holds the octets 0xc0 'A' at offset 97,
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
		{"trailing octets", cat(reply(1, 0, 0, a), []byte("rubbish")), 1},
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

func TestMessageParseMalformed(t *testing.T) {
	t.Parallel()
	self := pointer(12)
	a := record(self, wire.TypeA, []byte{10, 0, 0, 1})
	txt := func(owner []byte) []byte { return reply(1, 0, 0, record(owner, wire.TypeTXT, []byte{0})) }
	tests := []struct {
		name string
		msg  []byte
		want string
	}{
		{"nothing", nil, badSize},
		{"eleven octets", reply(0, 0, 0)[:11], badSize},
		{"65536 octets", cat(reply(0, 0, 0), make([]byte, 65536-firstRecord)), badSize},
		{"no question", cat(header(flagsAnswer, 0, 0, 0, 0)), badCount},
		{"two questions", cat(header(flagsAnswer, 2, 0, 0, 0), question(labels("a"), 1), question(labels("a"), 1)), badCount},
		{"question missing", reply(0, 0, 0)[:12], badQuestion},
		{"question cut", reply(0, 0, 0)[:firstRecord-1], badQuestion},
		{"question of a pointer", cat(header(flagsAnswer, 1, 0, 0, 0), question(pointer(12), 1)), badQuestion},
		{"question with a label of 64", cat(header(flagsAnswer, 1, 0, 0, 0), question(labels(strings.Repeat("a", 64)), 1)), badLabel},
		{"question of 256", cat(header(flagsAnswer, 1, 0, 0, 0), question(cat([]byte{1, 'b'}, longName(254)), 1)), badLength},
		{"an answer missing", reply(1, 0, 0), badMissing},
		{"a second answer missing", reply(2, 0, 0, a), badMissing},
		{"65535 additional records missing", reply(1, 0, 65535, a), badMissing},
		{"record cut in the owner", reply(1, 0, 0, []byte{0xc0}), badCut},
		{"record cut in the header", reply(1, 0, 0, a[:11]), badCut},
		{"record cut in RDATA", reply(1, 0, 0, a[:15]), badCut},
		{"pointer to itself", txt(pointer(firstRecord)), badPointer},
		{"pointer to its second octet", txt(pointer(firstRecord + 1)), badPointer},
		{"pointer forward", txt(pointer(firstRecord + 2)), badPointer},
		{"pointer beyond the end", txt(pointer(0x3fff)), badPointer},
		{"pointer to the ID", txt(pointer(0)), badPointer},
		{"pointer to the last octet of the header", txt(pointer(11)), badPointer},
		{"pointer into a label", txt(pointer(14)), badPointer},
		{"pointer to octets of the question that are a pointer in one spelling only", respelled(), badPointer},
		{"pointer to the question's type", txt(pointer(21)), badPointer},
		{"pointer to its own first label", txt(cat([]byte{1, 'x'}, pointer(firstRecord))), badPointer},
		{"loop of two", reply(2, 0, 0, record(pointer(firstRecord+12), 16, nil), record(pointer(firstRecord), 16, nil)), badPointer},
		{"pointer to a TTL", reply(2, 0, 0, a, record(pointer(firstRecord+6), 16, nil)), badPointer},
		{"pointer to the type of a record", reply(2, 0, 0, a, record(pointer(firstRecord+2), 16, nil)), badPointer},
		{"pointer to an address", reply(2, 0, 0, a, record(pointer(firstRecord+13), 16, nil)), badPointer},
		{"pointer to the numbers of an SOA", reply(1, 1, 0, record(self, wire.TypeSOA, cat(self, self, make([]byte, 20))),
			record(pointer(firstRecord+20), 16, nil)), badPointer},
		{"pointer into OPT", reply(0, 0, 2, opt(512, 0, 0, option(65001, 0, 0)), record(pointer(firstRecord+15), 16, nil)), badPointer},
		{"pointer to a name that leaves RDATA", reply(2, 0, 0, record(self, 16, []byte{9}), record(pointer(firstRecord+12), 16, nil)), badPointer},
		{"pointer to a pointer in RDATA not looked into", reply(2, 0, 0, record(self, 16, self), record(pointer(firstRecord+12), 16, nil)), badPointer},
		{"127 pointers", bare(127), badChain},
		{"owner of 256", reply(1, 0, 0, record(cat([]byte{1, 'b'}, longName(254)), 16, nil)), badLength},
		{"owner of 256 by a pointer", txt(cat(longName(248)[:247], self)), badLength},
		{"label of 64", txt(labels(strings.Repeat("a", 64))), badLabel},
		{"label type 0x80", txt([]byte{0x80, 0}), badLabel},
		{"A of 3", reply(1, 0, 0, record(self, wire.TypeA, make([]byte, 3))), badAddress},
		{"A of 5", reply(1, 0, 0, record(self, wire.TypeA, make([]byte, 5))), badAddress},
		{"A of 0", reply(1, 0, 0, record(self, wire.TypeA, nil)), badEmpty},
		{"AAAA of 4", reply(1, 0, 0, record(self, wire.TypeAAAA, make([]byte, 4))), badAddress},
		{"AAAA of 17", reply(1, 0, 0, record(self, wire.TypeAAAA, make([]byte, 17))), badAddress},
		{"OPT as an answer", reply(1, 0, 0, opt(512, 0, 0)), badOPT},
		{"OPT as an authority", reply(0, 1, 0, opt(512, 0, 0)), badOPT},
		{"two OPT", reply(0, 0, 2, opt(512, 0, 0), opt(512, 0, 0)), badOPT},
		{"OPT with a name", reply(0, 0, 1, cat(labels("a"), opt(512, 0, 0)[1:])), badOPT},
		{"OPT with a pointer to the root", reply(0, 0, 1, cat(pointer(20), opt(512, 0, 0)[1:])), badOPT},
		{"option header cut", reply(0, 0, 1, opt(512, 0, 0, []byte{0, 1, 0})), badOptions},
		{"option cut", reply(0, 0, 1, opt(512, 0, 0, []byte{0, 1, 0, 1})), badOptions},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m wire.Message
			if err := m.Parse(tt.msg); !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("error %v, want %v", err, wire.ErrMalformed)
			}
			if m.Raw != nil || len(m.Records) != 0 {
				t.Errorf("%d records are left behind", len(m.Records))
			}
			if got := explain(tt.msg); got != tt.want {
				t.Errorf("the slow reader says %q, want %q", got, tt.want)
			}
		})
	}
}

// TestMessageParseNamesInRDATA spoils the RDATA of every type with names in it.
func TestMessageParseNamesInRDATA(t *testing.T) {
	t.Parallel()
	for rrtype, l := range namesIn {
		t.Run(dns.TypeToString[rrtype], func(t *testing.T) {
			t.Parallel()
			data := func(last []byte) []byte {
				first := bytes.Repeat(labels("first"), l[1]-1)
				return cat(make([]byte, l[0]), first, last, make([]byte, l[2]))
			}
			start := firstRecord + 12 // of RDATA
			last := start + len(data(nil)) - l[2]
			tests := []struct {
				name string
				data []byte
				want bool
			}{
				{"plain", data(labels("last")), true},
				{"compressed", data(pointer(12)), true},
				{"label and pointer", data(cat([]byte{1, 'x'}, pointer(14-2))), true},
				{"root", data(labels()), true},
				{"name of 255", data(longName(255)), true},
				{"name of 256", data(cat([]byte{1, 'b'}, longName(254))), false},
				{"pointer to itself", data(pointer(last)), false},
				{"pointer forward", data(pointer(last + 2)), false},
				{"pointer to the header", data(pointer(4)), false},
				{"label of 64", data(labels(strings.Repeat("a", 64))), false},
				{"an octet behind", cat(data(labels("last")), []byte{0}), false},
				{"an octet missing", data(labels("last"))[:len(data(labels("last")))-1], false},
				{"half a pointer", cat(make([]byte, l[0]), []byte{0xc0}), false},
				{"nothing", nil, false},
			}
			for _, tt := range tests {
				msg := reply(2, 0, 0, record(pointer(12), rrtype, tt.data), record(pointer(12), wire.TypeTXT, make([]byte, 40)))
				var m wire.Message
				if got := m.Parse(msg) == nil; got != tt.want {
					t.Errorf("%s: well-formed %t, want %t", tt.name, got, tt.want)
				} else if got {
					compareRecords(t, &m)
				}
			}
		})
	}
}

// TestMessageParseEveryCut walks every prefix of an answer.
func TestMessageParseEveryCut(t *testing.T) {
	t.Parallel()
	whole := pack(t, answer(t, "www.example.", dns.TypeA,
		records(t, "www.example. 300 IN CNAME web.example.", "web.example. 60 IN A 192.0.2.1"),
		records(t, "example. 300 IN NS ns1.example."),
		records(t, "ns1.example. 300 IN AAAA 2001:db8::1")).SetEdns0(4096, true))
	for n := range len(whole) {
		var m wire.Message
		if err := m.Parse(whole[:n:n]); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("the first %d octets: %v, want %v", n, err, wire.ErrMalformed)
		}
	}
	if got, want := len(parseMessage(t, whole).Records), 4; got != want {
		t.Errorf("%d records, want %d", got, want)
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
	m.StoredQuestion()
	if diff := cmp.Diff(want, m.Raw); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
