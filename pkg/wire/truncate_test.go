// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// many gives n records made of a format that takes the number once or more.
func many(tb testing.TB, n int, format string) []dns.RR {
	tb.Helper()
	lines := make([]string, 0, n)
	for i := range n {
		lines = append(lines, fmt.Sprintf(format, i))
	}
	return records(tb, lines...)
}

// big gives answers of more than 1232 bytes, by name.
func big(tb testing.TB) map[string]*dns.Msg {
	tb.Helper()
	const name = "www.example."
	const sig = name + " 60 IN RRSIG A 13 2 60 20300101000000 20200101000000 %d example. " +
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
	two := func(a, b []dns.RR) []dns.RR { return append(append([]dns.RR{}, a...), b...) }
	ns := records(tb, "example. 60 IN NS ns1.example.", "example. 60 IN NS ns2.example.")
	return map[string]*dns.Msg{
		"A":    answer(tb, name, dns.TypeA, many(tb, 90, name+" 60 IN A 192.0.2.%d"), nil, nil),
		"AAAA": answer(tb, name, dns.TypeAAAA, many(tb, 60, name+" 60 IN AAAA 2001:db8::%x"), nil, nil),
		"TXT":  answer(tb, name, dns.TypeTXT, many(tb, 30, name+" 60 IN TXT \"a text that takes its time, number %d\""), nil, nil),
		"CNAME chain": answer(tb, name, dns.TypeA,
			two(records(tb, name+" 60 IN CNAME a.example."), many(tb, 80, "A.example. 60 IN A 192.0.2.%d")), nil, nil),
		"long CNAME chain": answer(tb, name, dns.TypeA, many(tb, 60, "a%d.example. 60 IN CNAME b%[1]d.example."), nil, nil),
		"MX": answer(tb, name, dns.TypeMX, many(tb, 12, name+" 60 IN MX 5 m%d.example."), ns,
			two(many(tb, 12, "m%d.example. 60 IN A 192.0.2.1"), many(tb, 30, "m%d.example. 60 IN AAAA 2001:db8::1"))),
		"SRV": answer(tb, name, dns.TypeSRV, many(tb, 8, name+" 60 IN SRV 0 0 53 pod-%d.example."), nil,
			two(many(tb, 40, "pod-%d.example. 60 IN A 192.0.2.1"), many(tb, 40, "pod-7.example. 60 IN A 192.0.2.%d"))),
		"signatures": answer(tb, name, dns.TypeA,
			two(records(tb, name+" 60 IN A 192.0.2.1", name+" 60 IN A 192.0.2.2"), many(tb, 20, sig)), ns, nil),
		"authority": answer(tb, name, dns.TypeA, records(tb, name+" 60 IN A 192.0.2.1"), many(tb, 70, "example. 60 IN NS ns%d.example."),
			many(tb, 70, "ns%d.example. 60 IN A 192.0.2.1")),
		"one class and another": answer(tb, name, dns.TypeTXT, two(many(tb, 15, name+" 60 IN TXT \"in some number %d\""),
			many(tb, 60, name+" 60 CH TXT \"in some number %d\"")), nil, nil),
	}
}

// TestQueryReplyTruncates cuts each answer at every limit that a client may
// have. What replyTo checks is the slow reading of the rule.
func TestQueryReplyTruncates(t *testing.T) {
	t.Parallel()
	for name, stored := range big(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, pack(t, stored))
			if len(m.Raw) <= wire.SafeUDP {
				t.Fatalf("%d bytes are no big answer", len(m.Raw))
			}
			question := m.Raw[12:questionEnd(m.Raw)]
			plain := parseQuery(t, cat(header(0x0100, 1, 0, 0, 0), question))
			edns := parseQuery(t, cat(header(0x0100, 1, 0, 0, 1), question, opt(1232, 0, 0x8000)))
			cookie := make([]byte, 24)
			for limit := 512; limit <= wire.SafeUDP; limit += 3 {
				replyTo(t, plain, m, &wire.ReplyOptions{Limit: limit, UDPSize: 1232, EDE: wire.EDENone})
				replyTo(t, edns, m, &wire.ReplyOptions{Limit: limit, UDPSize: 1232, Cookie: cookie, EDE: 3})
			}
			whole := unpack(t, replyTo(t, edns, m, &wire.ReplyOptions{Limit: wire.MaxMessage, UDPSize: 1232, EDE: wire.EDENone}))
			if got := len(whole.Answer) + len(whole.Ns) + len(whole.Extra) - 1; whole.Truncated || got != len(m.Records) {
				t.Errorf("over TCP: TC %t, %d records, want all %d", whole.Truncated, got, len(m.Records))
			}
		})
	}
}

// TestQueryReplyTruncatesExactly pins the edges by hand.
func TestQueryReplyTruncatesExactly(t *testing.T) {
	t.Parallel()
	self := pointer(12)
	text := func(owner []byte, size int) []byte { return record(owner, wire.TypeTXT, make([]byte, size)) } // 12 bytes and size
	addr := func(owner []byte) []byte { return record(owner, wire.TypeA, make([]byte, 4)) }                // 16 bytes behind a pointer
	set := func(owner []byte) []byte { return cat(text(owner, 100), text(owner, 100)) }
	other, upper := labels("other"), labels("OTHER")
	type result struct {
		TC         bool
		An, Ns, Ar int
		Size       int
	}
	q := parseQuery(t, ask(0, labels("example")))
	tests := []struct {
		name   string
		stored []byte
		limit  int
		want   result
	}{
		{"fits to the byte", reply(1, 0, 0, text(self, 475)), 512, result{false, 1, 0, 0, 512}},
		{"one byte more", reply(1, 0, 0, text(self, 476)), 512, result{true, 0, 0, 0, 25}},
		{"second set goes", reply(2, 0, 0, text(self, 463), text(other, 0)), 512, result{true, 1, 0, 0, 500}},
		{"whole set goes, other spelling", reply(3, 0, 0, text(self, 250), text(other, 80), text(upper, 112)), 512, result{true, 1, 0, 0, 287}},
		{"authority goes with TC", reply(1, 2, 0, text(self, 200), set(other)), 400, result{true, 1, 0, 0, 237}},
		{"additional is left out without TC", reply(1, 0, 2, text(self, 200), set(other)), 400, result{false, 1, 0, 0, 237}},
		{"some additional stays", reply(1, 0, 3, text(self, 200), text(other, 10), set(labels("x"))), 300, result{false, 1, 0, 1, 264}},
		{"same set in two sections is two", reply(1, 0, 1, text(self, 400), text(self, 200)), 512, result{false, 1, 0, 0, 437}},
		{"same set in answer and authority", reply(1, 1, 0, text(self, 400), text(self, 200)), 512, result{true, 1, 0, 0, 437}},
		{"addresses of the answer that fit stay", reply(3, 1, 0, addr(self), addr(self), addr(self), text(self, 0)), 60, result{true, 2, 0, 0, 57}},
		{"addresses elsewhere go whole", reply(1, 0, 2, addr(self), addr(other), addr(other)), 64, result{false, 1, 0, 0, 41}},
		{"answer cut, nothing of the rest stays", reply(2, 1, 1, set(self), text(self, 0), text(self, 0)), 200, result{true, 0, 0, 0, 25}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := replyTo(t, q, parseMessage(t, tt.stored), &wire.ReplyOptions{Limit: tt.limit, EDE: wire.EDENone})
			counts := func(at int) int { return int(got[at])<<8 | int(got[at+1]) }
			assert.Same(t, "result", tt.want, result{got[2]&2 != 0, counts(6), counts(8), counts(10), len(got)})
		})
	}
}
