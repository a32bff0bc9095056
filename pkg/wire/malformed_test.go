// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

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
		{"eleven bytes", reply(0, 0, 0)[:11], badSize},
		{"65536 bytes", cat(reply(0, 0, 0), make([]byte, 65536-firstRecord)), badSize},
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
		{"pointer to its second byte", txt(pointer(firstRecord + 1)), badPointer},
		{"pointer forward", txt(pointer(firstRecord + 2)), badPointer},
		{"pointer beyond the end", txt(pointer(0x3fff)), badPointer},
		{"pointer to the ID", txt(pointer(0)), badPointer},
		{"pointer to the last byte of the header", txt(pointer(11)), badPointer},
		{"pointer into a label", txt(pointer(14)), badPointer},
		{"pointer to bytes of the question that are a pointer in one spelling only", respelled(), badPointer},
		{"pointer to the question's type", txt(pointer(21)), badPointer},
		{"pointer to its own first label", txt(cat([]byte{1, 'x'}, pointer(firstRecord))), badPointer},
		{"loop of two", reply(2, 0, 0, record(pointer(firstRecord+12), 16, nil), record(pointer(firstRecord), 16, nil)), badPointer},
		{"pointer to a TTL", reply(2, 0, 0, a, record(pointer(firstRecord+6), 16, nil)), badPointer},
		{"pointer to the type of a record", reply(2, 0, 0, a, record(pointer(firstRecord+2), 16, nil)), badPointer},
		{"pointer to an address", reply(2, 0, 0, a, record(pointer(firstRecord+13), 16, nil)), badPointer},
		{"pointer to an IPv6 address", reply(2, 0, 0, record(self, wire.TypeAAAA, make([]byte, 16)), record(pointer(firstRecord+20), 16, nil)), badPointer},
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
				{"a byte behind", cat(data(labels("last")), []byte{0}), false},
				{"a byte missing", data(labels("last"))[:len(data(labels("last")))-1], false},
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
			t.Errorf("the first %d bytes: %v, want %v", n, err, wire.ErrMalformed)
		}
	}
	if got, want := len(parseMessage(t, whole).Records), 4; got != want {
		t.Errorf("%d records, want %d", got, want)
	}
}
