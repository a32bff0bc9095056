// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
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

// TestMessageParseForgets walks messages whose pointer leads to where the one
// before, of the same size, had a label.
func TestMessageParseForgets(t *testing.T) {
	t.Parallel()
	var m wire.Message
	for n := range 130 {
		at := firstRecord + 12 + n
		before := reply(2, 0, 0, record(pointer(12), wire.TypeTXT, make([]byte, n)), record(labels("pp"), wire.TypeTXT, nil))
		after := reply(2, 0, 0, record(pointer(12), wire.TypeTXT, bytes.Repeat([]byte{0xff}, n+2)), record(pointer(at), wire.TypeTXT, nil))
		assert.NoError(t, m.Parse(before))
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
	assert.Same(t, "rcode", uint16(wire.RcodeBadVers), m.Rcode())
	if !m.Truncated() || !m.HasOPT() {
		t.Errorf("truncated %t, OPT %t, want both", m.Truncated(), m.HasOPT())
	}
	assert.Same(t, "question type", wire.TypeA, m.QuestionType())
	assert.Same(t, "SOA minimum", uint32(3600), m.SOAMinimum(m.Records[1]))
	copy(m.Raw[m.Records[1].Data()+20:], []byte{0x80, 0, 0, 1})
	assert.Same(t, "SOA minimum with its top bit set", 0, m.SOAMinimum(m.Records[1]))
}
