// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// oddMessages are messages at the edges of the rules, on both sides. FuzzMessage compares what Parse makes of them with the
// slow reader and with the oracle.
func oddMessages(tb testing.TB) [][]byte {
	tb.Helper()
	root, self := labels(), pointer(12)
	a := record(self, wire.TypeA, []byte{10, 0, 0, 1})
	txt := func(owner []byte) []byte { return reply(1, 0, 0, record(owner, wire.TypeTXT, []byte{0})) }
	signed := record(self, wire.TypeRRSIG, cat(make([]byte, 18), labels("signer"), []byte("sig")))
	addr := func(owner []byte) []byte { return record(owner, wire.TypeA, make([]byte, 4)) }
	list := [][]byte{
		// Counts, sections and OPT records.
		reply(0, 0, 0),
		reply(1, 0, 0, a),
		reply(1, 1, 1, a, record(self, wire.TypeNS, labels("ns")), a),
		reply(1, 0, 1, a, opt(1232, 0, 0)),
		reply(1, 0, 2, a, opt(1232, 0, 0, option(3, 1)), a),
		reply(1, 0, 1, a, opt(1232, 3, 0)),
		cat(reply(1, 0, 0, a), []byte("rubbish")),
		reply(1, 0, 0, cat(self, u16(wire.TypeTXT, wire.ClassCH, 0, 0, 1, 0))),
		nil, reply(0, 0, 0)[:11], cat(reply(0, 0, 0), make([]byte, 65536-firstRecord)),
		cat(header(flagsAnswer, 0, 0, 0, 0)),
		cat(header(flagsAnswer, 2, 0, 0, 0), question(labels("a"), 1), question(labels("a"), 1)),
		reply(0, 0, 0)[:12], reply(0, 0, 0)[:firstRecord-1],
		reply(1, 0, 0), reply(2, 0, 0, a), reply(1, 0, 65535, a),
		reply(1, 0, 0, []byte{0xc0}), reply(1, 0, 0, a[:11]), reply(1, 0, 0, a[:15]),
		reply(1, 0, 0, opt(512, 0, 0)), reply(0, 1, 0, opt(512, 0, 0)),
		reply(0, 0, 2, opt(512, 0, 0), opt(512, 0, 0)),
		reply(0, 0, 1, cat(labels("a"), opt(512, 0, 0)[1:])), reply(0, 0, 1, cat(pointer(20), opt(512, 0, 0)[1:])),
		reply(0, 0, 1, opt(512, 0, 0, []byte{0, 1, 0})), reply(0, 0, 1, opt(512, 0, 0, []byte{0, 1, 0, 1})),

		// Addresses.
		reply(1, 0, 0, record(self, wire.TypeA, nil)), reply(1, 0, 0, record(self, wire.TypeA, make([]byte, 3))), reply(1, 0, 0, record(self, wire.TypeA, make([]byte, 5))),
		reply(1, 0, 0, record(self, wire.TypeAAAA, make([]byte, 4))), reply(1, 0, 0, record(self, wire.TypeAAAA, make([]byte, 17))),

		// Lengths of labels and names.
		cat(header(flagsAnswer, 1, 0, 0, 0), question(labels(strings.Repeat("a", 64)), 1)),
		cat(header(flagsAnswer, 1, 0, 0, 0), question(cat([]byte{1, 'b'}, longName(254)), 1)),
		txt(longName(255)), txt(cat([]byte{1, 'b'}, longName(254))),
		txt(cat(longName(247)[:246], self)), txt(cat(longName(248)[:247], self)),
		txt(labels(strings.Repeat("a", 64))), txt([]byte{0x80, 0}),

		// Pointers to names.
		txt(pointer(20)),
		reply(1, 0, 0, record(self, 65280, nil)), reply(1, 0, 0, record(self, 65280, pointer(0x3fff))),
		reply(2, 0, 0, a, addr(pointer(firstRecord))),
		reply(1, 0, 0, record(labels("x"), wire.TypeCNAME, pointer(firstRecord))),
		reply(2, 0, 0, record(root, wire.TypeMX, cat(u16(5), labels("m", "x"))), addr(pointer(firstRecord+1+10+2+2))),
		reply(0, 1, 0, record(root, wire.TypeSOA, cat(labels("m"), pointer(firstRecord+11), make([]byte, 20)))),
		reply(2, 0, 0, signed, addr(pointer(firstRecord+12+18))),
		reply(3, 0, 0, signed, addr(cat([]byte{1, 'w'}, pointer(firstRecord+12+18))), addr(pointer(firstRecord+12+25))),
		chain(122), bare(126), bare(127),
		reply(3, 0, 0, record(self, wire.TypeTXT, make([]byte, 0x3fff-firstRecord-12)), record(labels("far"), wire.TypeTXT, nil), record(pointer(0x3fff), wire.TypeTXT, nil)),

		// Pointers to anything else.
		cat(header(flagsAnswer, 1, 0, 0, 0), question(pointer(12), 1)),
		txt(pointer(firstRecord)), txt(pointer(firstRecord + 1)), txt(pointer(firstRecord + 2)), txt(pointer(0x3fff)),
		txt(pointer(0)), txt(pointer(11)), txt(pointer(14)), txt(pointer(21)), txt(cat([]byte{1, 'x'}, pointer(firstRecord))),
		respelled(),
		reply(2, 0, 0, record(pointer(firstRecord+12), 16, nil), record(pointer(firstRecord), 16, nil)),
		reply(2, 0, 0, a, record(pointer(firstRecord+6), 16, nil)), reply(2, 0, 0, a, record(pointer(firstRecord+2), 16, nil)), reply(2, 0, 0, a, record(pointer(firstRecord+13), 16, nil)),
		reply(2, 0, 0, record(self, wire.TypeAAAA, make([]byte, 16)), record(pointer(firstRecord+20), 16, nil)),
		reply(1, 1, 0, record(self, wire.TypeSOA, cat(self, self, make([]byte, 20))), record(pointer(firstRecord+20), 16, nil)),
		reply(0, 0, 2, opt(512, 0, 0, option(65001, 0, 0)), record(pointer(firstRecord+15), 16, nil)),
		reply(2, 0, 0, record(self, 16, []byte{9}), record(pointer(firstRecord+12), 16, nil)), reply(2, 0, 0, record(self, 16, self), record(pointer(firstRecord+12), 16, nil)),
	}
	list = append(list, oddNames()...)
	whole := pack(tb, answer(tb, "www.example.", dns.TypeA, records(tb, "www.example. 300 IN CNAME web.example.", "web.example. 60 IN A 192.0.2.1"),
		records(tb, "example. 300 IN NS ns1.example."), records(tb, "ns1.example. 300 IN AAAA 2001:db8::1")).SetEdns0(4096, true))
	for n := range len(whole) {
		list = append(list, whole[:n:n])
	}
	return list
}

// oddNames are messages with well-formed and malformed names in the RDATA of every type that has some.
func oddNames() (list [][]byte) {
	for rrtype, l := range namesIn {
		data := func(last []byte) []byte {
			return cat(make([]byte, l[0]), bytes.Repeat(labels("first"), l[1]-1), last, make([]byte, l[2]))
		}
		last := firstRecord + 12 + len(data(nil)) - l[2]
		good := data(labels("last"))
		for _, data := range [][]byte{
			good, data(pointer(12)), data(cat([]byte{1, 'x'}, pointer(12))), data(labels()), data(longName(255)),
			data(cat([]byte{1, 'b'}, longName(254))), data(pointer(last)), data(pointer(last + 2)), data(pointer(4)), data(labels(strings.Repeat("a", 64))),
			cat(good, []byte{0}), good[:len(good)-1], cat(make([]byte, l[0]), []byte{0xc0}), nil,
		} {
			list = append(list, reply(2, 0, 0, record(pointer(12), rrtype, data), record(pointer(12), wire.TypeTXT, make([]byte, 40))))
		}
	}
	return list
}

// oddQueries are packets at the edges of the rules for queries, on both sides. FuzzQuery compares what Parse makes of them
// with the oracle.
func oddQueries() [][]byte {
	a := labels("a")
	good := ask(flagsQuery, a)
	withCounts := func(qd, an, ns, ar uint16) []byte {
		return cat(header(flagsQuery, qd, an, ns, ar), question(a, wire.TypeA), record(pointer(12), wire.TypeA, make([]byte, 4)))
	}
	list := [][]byte{
		// Headers.
		good, ask(0, a), ask(flagsQuery|0x30, a), ask(flagsQuery|0x06cf, a), cat(good, []byte("rubbish")),
		nil, good[:11], ask(flagsAnswer, a), ask(0xa800, a), ask(1<<11, a), ask(2<<11, a), ask(3<<11, a), ask(4<<11, a), ask(5<<11, a), header(15<<11, 0, 0, 0, 0),
		header(flagsQuery, 0, 0, 0, 0), withCounts(0, 0, 0, 0), withCounts(65535, 0, 0, 0), withCounts(1, 1, 0, 0), withCounts(1, 0, 1, 0), withCounts(1, 256, 0, 0), withCounts(1, 0, 0, 2),
		cat(header(flagsQuery, 2, 0, 0, 0), question(a, 1), question(a, 28)),

		// Questions.
		ask(flagsQuery, labels("A")), ask(flagsQuery, labels()), ask(flagsQuery, labels("\x00.\\A\xc1\xff\xdd[@Z")),
		ask(flagsQuery, labels(strings.Repeat("A", 63))), ask(flagsQuery, labels(strings.Repeat("a", 64))), ask(flagsQuery, cat([]byte{0x80}, a)),
		ask(flagsQuery, longName(255)), ask(flagsQuery, cat(labels("b")[:2], longName(254))),
		ask(flagsQuery, labels(strings.Split(strings.Repeat("X", 127), "")...)), ask(flagsQuery, labels(strings.Split(strings.Repeat("x", 128), "")...)),
		cat(header(flagsQuery, 1, 0, 0, 0), a, u16(wire.TypeTXT, wire.ClassCH)), cat(header(flagsQuery, 1, 0, 0, 0), question(a, 65280)),
		cat(header(flagsQuery, 1, 0, 0, 0), question(pointer(12), 1)), cat(header(flagsQuery, 1, 0, 0, 0), []byte{1, 'a'}, question(pointer(4), 1)),

		// IXFR and the client's version.
		ixfr(0, 0), ixfr(0, 1, record(pointer(12), wire.TypeSOA, soa(7))),
		cat(header(flagsQuery, 1, 0, 1, 1), question(a, wire.TypeIXFR),
			record(a, wire.TypeSOA, cat(pointer(12), labels("h")[:2], pointer(12), soa(1 << 31)[2:])), opt(1232, 0, 0x8000)),

		// Additional records.
		ask(flagsQuery, a, record(labels("key"), 250, make([]byte, 30))), ask(flagsQuery, a, record(pointer(12), 250, nil), opt(1232, 0, 0)),
		ask(flagsQuery, a, opt(1232, 0, 0), record(labels("key"), 250, make([]byte, 30))), ask(flagsQuery, a, opt(512, 0, 0), record(a, 250, nil), record(a, 250, nil)),
		cat(header(flagsQuery, 1, 0, 0, 1), question(a, 1), []byte{0xc0}), cat(header(flagsQuery, 1, 0, 0, 1), question(a, 1), record(a, 250, make([]byte, 9))[:20]),
		ask(flagsQuery, a, record(labels(strings.Repeat("a", 64)), 250, nil)), ask(flagsQuery, a, record(cat(labels("b")[:2], longName(254)), 250, nil)),
		ask(flagsQuery, a, opt(512, 0, 0), opt(512, 0, 0)), ask(flagsQuery, a, opt(512, 1, 0), opt(512, 0, 0)),
		ask(flagsQuery, a, cat(a, opt(512, 0, 0)[1:])), ask(flagsQuery, a, cat(pointer(14), opt(512, 0, 0)[1:])), ask(flagsQuery, a, cat(a, opt(1232, 1, 0)[1:])),
		ask(flagsQuery, a, opt(1232, 1, 0)), ask(flagsQuery, a, opt(1232, 1, 0, []byte{0, 8, 0, 99})), ask(flagsQuery, a, opt(1232, 255, 0x8000)),
		ask(flagsQuery, a, opt(0, 0, 0)), ask(flagsQuery, a, opt(511, 0, 0)), ask(flagsQuery, a, opt(65535, 0, 0)), ask(flagsQuery, a, opt(1232, 0, 0x8000)), ask(flagsQuery, a, opt(1232, 0, 0x7fff)),
	}
	list = append(list, badVersions()...)
	subnet := func(data ...byte) []byte { return option(8, data...) }
	cookie := func(n int) []byte { return option(10, bytes.Repeat([]byte{7}, n)...) }
	for _, options := range [][]byte{
		cat(option(65001, 1, 2, 3), option(3)), bytes.Repeat(option(65001), 64), bytes.Repeat(option(65001), 65),
		{0, 3, 0},
		{0, 3, 0, 1},
		{0, 3, 0xff, 0xff},
		cat(option(3), []byte{0}),
		cookie(0), cookie(7), cookie(8), cookie(9), cookie(15), cookie(16), cookie(40), cookie(41), cat(cookie(8), cookie(24)), cat(cookie(8), cookie(7)),
		subnet(0, 1, 0, 0), subnet(append([]byte{0, 2, 128, 0}, make([]byte, 16)...)...), subnet(0, 0, 0, 0), cat(subnet(0, 1, 0, 0), subnet(0, 2, 0, 0)),
		subnet(0, 1, 0), subnet(0, 3, 0, 0), subnet(0, 1, 33, 0, 1, 2, 3, 4, 5), subnet(0, 1, 8, 8, 10), subnet(0, 1, 24, 0, 10, 0), subnet(0, 1, 8, 0, 10, 0), subnet(make([]byte, 21)...),
		option(11), option(11, 0, 9), option(65305), cat(option(65305), option(65305, 1)), option(65305, 1),
	} {
		list = append(list, ask(flagsQuery, a, opt(1232, 0, 0, options)))
	}
	whole := ask(flagsQuery, labels("www", "example"), opt(1232, 0, 0x8000, option(10, 1, 2, 3, 4, 5, 6, 7, 8), option(8, 0, 1, 24, 0, 10, 1, 2)))
	for n := range len(whole) {
		list = append(list, whole[:n:n])
	}
	return list
}

// ixfr is a query for what is newer than the version in the records before the additional section.
func ixfr(an, ns uint16, before ...[]byte) []byte {
	return cat(header(flagsQuery, 1, an, ns, 0), question(labels("a"), wire.TypeIXFR), cat(before...))
}

// badVersions are queries of type IXFR with anything but one whole SOA record.
func badVersions() [][]byte {
	version := func(data []byte) []byte { return ixfr(0, 1, record(pointer(12), wire.TypeSOA, data)) }
	one := record(pointer(12), wire.TypeSOA, soa(1))
	return [][]byte{
		ixfr(0, 1), ixfr(1, 0, one), ixfr(0, 2, one, one), ixfr(0, 1, one[:20]), ixfr(0, 1, record(pointer(12), wire.TypeNS, soa(1))),
		version(soa(1)[:21]), version(cat(soa(1), []byte{0})), version([]byte{0, 63}), version(nil),
	}
}

// TestBadVersions refuses them. The oracle refuses some too, so that FuzzQuery cannot tell.
func TestBadVersions(t *testing.T) {
	t.Parallel()
	for _, pkt := range badVersions() {
		if fault := new(wire.Query).Parse(pkt); fault != wire.RcodeFormErr {
			t.Errorf("fault %d, want FORMERR: %x", fault, pkt)
		}
	}
}
