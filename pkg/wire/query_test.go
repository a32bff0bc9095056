// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/wire"
)

// asked is what a Query says, in a form that compares.
type asked struct {
	ID, Type, Class, UDPSize uint16
	RD, AD, CD, EDNS, DO     bool
	Keepalive, Explain       bool
	Serial                   uint32
	HasSerial                bool
	Name, Cookie, Subnet     string
}

func askedBy(q *wire.Query) asked {
	return asked{
		ID: q.ID, Type: q.Type, Class: q.Class, UDPSize: q.UDPSize,
		RD: q.RD, AD: q.AD, CD: q.CD, EDNS: q.EDNS, DO: q.DO, Keepalive: q.Keepalive, Explain: q.Explain,
		Serial: q.Serial, HasSerial: q.HasSerial,
		Name: string(q.Name()), Cookie: string(q.Cookie), Subnet: string(q.Subnet),
	}
}

// ask is a query of flags for name A with additional records.
func ask(flags uint16, name []byte, additional ...[]byte) []byte {
	return cat(header(flags, 1, 0, 0, uint16(len(additional))), question(name, wire.TypeA), cat(additional...))
}

func TestQueryParse(t *testing.T) {
	t.Parallel()
	plain := asked{ID: 0x1234, Type: wire.TypeA, Class: wire.ClassIN, UDPSize: 512, RD: true, Name: "\x01a\x00"}
	with := func(change func(*asked)) asked {
		a := plain
		change(&a)
		return a
	}
	edns := func(size uint16, change func(*asked)) asked {
		return with(func(a *asked) {
			a.EDNS, a.UDPSize = true, size
			change(a)
		})
	}
	none := func(*asked) {}
	a := labels("a")
	cookie := func(n int) []byte { return option(10, bytes.Repeat([]byte{7}, n)...) }
	cookied := func(n int) asked {
		return edns(1232, func(a *asked) { a.Cookie = strings.Repeat("\x07", n) })
	}
	tests := []struct {
		name string
		pkt  []byte
		want asked
	}{
		{"plain", ask(flagsQuery, a), plain},
		{"without RD", ask(0, a), with(func(a *asked) { a.RD = false })},
		{"AD and CD", ask(flagsQuery|0x30, a), with(func(a *asked) { a.AD, a.CD = true, true })},
		{"AA, TC, RA, Z and an rcode mean nothing", ask(flagsQuery|0x06cf, a), plain},
		{"trailing bytes", cat(ask(flagsQuery, a), []byte("rubbish")), plain},
		{"upper case", ask(flagsQuery, labels("A")), plain},
		{"root", ask(flagsQuery, labels()), with(func(a *asked) { a.Name = "\x00" })},
		{"label of 63", ask(flagsQuery, labels(strings.Repeat("A", 63))), with(func(q *asked) {
			q.Name = string(labels(strings.Repeat("a", 63)))
		})},
		{"name of 255", ask(flagsQuery, longName(255)), with(func(q *asked) { q.Name = string(longName(255)) })},
		{"127 labels", ask(flagsQuery, labels(strings.Split(strings.Repeat("X", 127), "")...)), with(func(q *asked) {
			q.Name = string(labels(strings.Split(strings.Repeat("x", 127), "")...))
		})},
		{"any byte in a label", ask(flagsQuery, labels("\x00.\\A\xc1\xff\xdd[@Z")), with(func(a *asked) {
			a.Name = string(labels("\x00.\\a\xc1\xff\xdd[@z"))
		})},
		{"class CH", cat(header(flagsQuery, 1, 0, 0, 0), a, u16(wire.TypeTXT, wire.ClassCH)), with(func(a *asked) {
			a.Type, a.Class = wire.TypeTXT, wire.ClassCH
		})},
		{"unknown type", cat(header(flagsQuery, 1, 0, 0, 0), question(a, 65280)), with(func(a *asked) { a.Type = 65280 })},
		{"IXFR", cat(header(flagsQuery, 1, 0, 0, 0), question(a, wire.TypeIXFR)), with(func(a *asked) { a.Type = wire.TypeIXFR })},
		{"IXFR with the client's version", cat(
			header(flagsQuery, 1, 0, 1, 0), question(a, wire.TypeIXFR), record(pointer(12), wire.TypeSOA, soa(7)),
		), with(func(a *asked) { a.Type, a.Serial, a.HasSerial = wire.TypeIXFR, 7, true })},
		{"IXFR with the client's version, names compressed, and OPT", cat(
			header(flagsQuery, 1, 0, 1, 1), question(a, wire.TypeIXFR),
			record(a, wire.TypeSOA, cat(pointer(12), labels("h")[:2], pointer(12), soa(1 << 31)[2:])), opt(1232, 0, 0x8000),
		), edns(1232, func(a *asked) { a.Type, a.Serial, a.HasSerial, a.DO = wire.TypeIXFR, 1<<31, true, true })},
		{"OPT", ask(flagsQuery, a, opt(1232, 0, 0)), edns(1232, none)},
		{"OPT of size 0", ask(flagsQuery, a, opt(0, 0, 0)), edns(512, none)},
		{"OPT of size 511", ask(flagsQuery, a, opt(511, 0, 0)), edns(512, none)},
		{"OPT of size 65535", ask(flagsQuery, a, opt(65535, 0, 0)), edns(65535, none)},
		{"DO", ask(flagsQuery, a, opt(1232, 0, 0x8000)), edns(1232, func(a *asked) { a.DO = true })},
		{"unknown EDNS flags", ask(flagsQuery, a, opt(1232, 0, 0x7fff)), edns(1232, none)},
		{"unknown option", ask(flagsQuery, a, opt(1232, 0, 0, option(65001, 1, 2, 3), option(3))), edns(1232, none)},
		{"64 options", ask(flagsQuery, a, opt(1232, 0, 0, bytes.Repeat(option(65001), 64))), edns(1232, none)},
		{"cookie of 8", ask(flagsQuery, a, opt(1232, 0, 0, cookie(8))), cookied(8)},
		{"cookie of 16", ask(flagsQuery, a, opt(1232, 0, 0, cookie(16))), cookied(16)},
		{"cookie of 40", ask(flagsQuery, a, opt(1232, 0, 0, cookie(40))), cookied(40)},
		{"the first cookie counts", ask(flagsQuery, a, opt(1232, 0, 0, cookie(8), cookie(24))), cookied(8)},
		{"subnet of 4", ask(flagsQuery, a, opt(1232, 0, 0, option(8, 0, 1, 0, 0))), edns(1232, func(a *asked) {
			a.Subnet = "\x00\x01\x00\x00"
		})},
		{"subnet of 20", ask(flagsQuery, a, opt(1232, 0, 0, option(8, append([]byte{0, 2, 128, 0}, make([]byte, 16)...)...))), edns(1232, func(a *asked) {
			a.Subnet = "\x00\x02\x80\x00" + strings.Repeat("\x00", 16)
		})},
		{"subnet of nothing", ask(flagsQuery, a, opt(1232, 0, 0, option(8, 0, 0, 0, 0))), edns(1232, func(a *asked) {
			a.Subnet = "\x00\x00\x00\x00"
		})},
		{"the first subnet counts", ask(flagsQuery, a, opt(1232, 0, 0, option(8, 0, 1, 0, 0), option(8, 0, 2, 0, 0))), edns(1232, func(a *asked) {
			a.Subnet = "\x00\x01\x00\x00"
		})},
		{"keepalive", ask(flagsQuery, a, opt(1232, 0, 0, option(11))), edns(1232, func(a *asked) { a.Keepalive = true })},
		{"keepalive with a time", ask(flagsQuery, a, opt(1232, 0, 0, option(11, 0, 9))), edns(1232, func(a *asked) { a.Keepalive = true })},
		{"a query for an explanation", ask(flagsQuery, a, opt(1232, 0, 0, option(65305))), edns(1232, func(a *asked) { a.Explain = true })},
		{"a query for two explanations", ask(flagsQuery, a, opt(1232, 0, 0, option(65305), option(65305, 1))), edns(1232, func(a *asked) { a.Explain = true })},
		{"another's use of that option", ask(flagsQuery, a, opt(1232, 0, 0, option(65305, 1))), edns(1232, none)},
		{"TSIG behind OPT", ask(flagsQuery, a, opt(1232, 0, 0), record(labels("key"), 250, make([]byte, 30))), edns(1232, none)},
		{"TSIG before OPT", ask(flagsQuery, a, record(pointer(12), 250, nil), opt(1232, 0, 0)), edns(1232, none)},
		{"TSIG alone", ask(flagsQuery, a, record(labels("key"), 250, make([]byte, 30))), plain},
	}
	q := new(wire.Query) // reused on purpose: nothing may be left of the query before
	for _, tt := range tests {
		if fault := q.Parse(tt.pkt); fault != wire.FaultNone {
			t.Errorf("%s: fault %d", tt.name, fault)
			continue
		}
		if diff := cmp.Diff(tt.want, askedBy(q)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		end := 12 + len(q.Name()) + 4
		if diff := cmp.Diff(tt.pkt[12:end], q.QuestionSection()); diff != "" {
			t.Errorf("%s: question (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestQueryParseFault(t *testing.T) {
	t.Parallel()
	a := labels("a")
	good := ask(flagsQuery, a)
	withCounts := func(qd, an, ns, ar uint16) []byte {
		return cat(header(flagsQuery, qd, an, ns, ar), question(a, wire.TypeA), record(pointer(12), wire.TypeA, make([]byte, 4)))
	}
	withOPT := func(options ...[]byte) []byte { return ask(flagsQuery, a, opt(1232, 0, 0, options...)) }
	ixfr := func(an, ns uint16, before ...[]byte) []byte {
		return cat(header(flagsQuery, 1, an, ns, 0), question(a, wire.TypeIXFR), cat(before...))
	}
	version1 := ask(flagsQuery, a, opt(1232, 1, 0, []byte{0, 8, 0, 99}))
	tests := []struct {
		name string
		pkt  []byte
		want wire.Fault
	}{
		{"nothing", nil, wire.FaultDrop},
		{"eleven bytes", good[:11], wire.FaultDrop},
		{"a response", ask(flagsAnswer, a), wire.FaultDrop},
		{"a response of another opcode", ask(0xa800, a), wire.FaultDrop},
		{"opcode IQUERY", ask(1<<11, a), wire.FaultNotImp},
		{"opcode STATUS", ask(2<<11, a), wire.FaultNotImp},
		{"opcode 3, unassigned", ask(3<<11, a), wire.FaultNotImp},
		{"opcode NOTIFY", ask(4<<11, a), wire.FaultNotImp},
		{"opcode UPDATE", ask(5<<11, a), wire.FaultNotImp},
		{"opcode 15 and nothing more", header(15<<11, 0, 0, 0, 0), wire.FaultNotImp},
		{"header only", header(flagsQuery, 0, 0, 0, 0), wire.FaultFormErr},
		{"header that promises a question", good[:12], wire.FaultFormErr},
		{"no question but one is there", withCounts(0, 0, 0, 0), wire.FaultFormErr},
		{"two questions", cat(header(flagsQuery, 2, 0, 0, 0), question(a, 1), question(a, 28)), wire.FaultFormErr},
		{"65535 questions", withCounts(65535, 0, 0, 0), wire.FaultFormErr},
		{"an answer", withCounts(1, 1, 0, 0), wire.FaultFormErr},
		{"an authority", withCounts(1, 0, 1, 0), wire.FaultFormErr},
		{"256 answers", withCounts(1, 256, 0, 0), wire.FaultFormErr},
		{"IXFR with an answer", ixfr(1, 0, record(pointer(12), wire.TypeSOA, soa(1))), wire.FaultFormErr},
		{"IXFR with two versions", ixfr(0, 2, record(pointer(12), wire.TypeSOA, soa(1)), record(pointer(12), wire.TypeSOA, soa(2))), wire.FaultFormErr},
		{"IXFR with a version promised", ixfr(0, 1), wire.FaultFormErr},
		{"IXFR with a version that is no SOA", ixfr(0, 1, record(pointer(12), wire.TypeNS, soa(1))), wire.FaultFormErr},
		{"IXFR with a version too short", ixfr(0, 1, record(pointer(12), wire.TypeSOA, soa(1)[:21])), wire.FaultFormErr},
		{"IXFR with a version too long", ixfr(0, 1, record(pointer(12), wire.TypeSOA, cat(soa(1), []byte{0}))), wire.FaultFormErr},
		{"IXFR with a version cut", ixfr(0, 1, record(pointer(12), wire.TypeSOA, soa(1))[:20]), wire.FaultFormErr},
		{"IXFR with a version of one name", ixfr(0, 1, record(pointer(12), wire.TypeSOA, []byte{0, 63})), wire.FaultFormErr},
		{"IXFR with a version of no data", ixfr(0, 1, record(pointer(12), wire.TypeSOA, nil)), wire.FaultFormErr},
		{"name cut in a label", good[:13], wire.FaultFormErr},
		{"name without root", good[:14], wire.FaultFormErr},
		{"no type", good[:15], wire.FaultFormErr},
		{"class cut", good[:18], wire.FaultFormErr},
		{"pointer in the question", cat(header(flagsQuery, 1, 0, 0, 0), question(pointer(12), 1)), wire.FaultFormErr},
		{"pointer behind a label", cat(header(flagsQuery, 1, 0, 0, 0), []byte{1, 'a'}, question(pointer(4), 1)), wire.FaultFormErr},
		{"label of 64", ask(flagsQuery, labels(strings.Repeat("a", 64))), wire.FaultFormErr},
		{"label type 0x80", ask(flagsQuery, cat([]byte{0x80}, a)), wire.FaultFormErr},
		{"name of 256", ask(flagsQuery, cat(labels("b")[:2], longName(254))), wire.FaultFormErr},
		{"128 labels", ask(flagsQuery, labels(strings.Split(strings.Repeat("x", 128), "")...)), wire.FaultFormErr},
		{"additional promised", withCounts(1, 0, 0, 2), wire.FaultFormErr},
		{"three additional", ask(flagsQuery, a, opt(512, 0, 0), record(a, 250, nil), record(a, 250, nil)), wire.FaultFormErr},
		{"additional owner cut", cat(header(flagsQuery, 1, 0, 0, 1), question(a, 1), []byte{0xc0}), wire.FaultFormErr},
		{"additional label of 64", ask(flagsQuery, a, record(labels(strings.Repeat("a", 64)), 250, nil)), wire.FaultFormErr},
		{"additional owner of 256", ask(flagsQuery, a, record(cat(labels("b")[:2], longName(254)), 250, nil)), wire.FaultFormErr},
		{"additional RDATA beyond the end", cat(header(flagsQuery, 1, 0, 0, 1), question(a, 1), record(a, 250, make([]byte, 9))[:20]), wire.FaultFormErr},
		{"OPT header cut", withOPT()[:len(withOPT())-1], wire.FaultFormErr},
		{"two OPT", ask(flagsQuery, a, opt(512, 0, 0), opt(512, 0, 0)), wire.FaultFormErr},
		{"two OPT, the first of a later version", ask(flagsQuery, a, opt(512, 1, 0), opt(512, 0, 0)), wire.FaultFormErr},
		{"OPT with a name", ask(flagsQuery, a, cat(a, opt(512, 0, 0)[1:])), wire.FaultFormErr},
		{"OPT with a pointer to the root", ask(flagsQuery, a, cat(pointer(14), opt(512, 0, 0)[1:])), wire.FaultFormErr},
		{"option header cut", withOPT([]byte{0, 3, 0}), wire.FaultFormErr},
		{"option longer than the OPT", withOPT([]byte{0, 3, 0, 1}), wire.FaultFormErr},
		{"option of 65535", withOPT([]byte{0, 3, 0xff, 0xff}), wire.FaultFormErr},
		{"second option cut", withOPT(option(3), []byte{0}), wire.FaultFormErr},
		{"65 options", withOPT(bytes.Repeat(option(65001), 65)), wire.FaultFormErr},
		{"cookie of 0", withOPT(option(10)), wire.FaultFormErr},
		{"cookie of 7", withOPT(option(10, make([]byte, 7)...)), wire.FaultFormErr},
		{"cookie of 9", withOPT(option(10, make([]byte, 9)...)), wire.FaultFormErr},
		{"cookie of 15", withOPT(option(10, make([]byte, 15)...)), wire.FaultFormErr},
		{"cookie of 41", withOPT(option(10, make([]byte, 41)...)), wire.FaultFormErr},
		{"second cookie of 7", withOPT(option(10, make([]byte, 8)...), option(10, make([]byte, 7)...)), wire.FaultFormErr},
		{"subnet of 3", withOPT(option(8, 0, 1, 0)), wire.FaultFormErr},
		{"subnet of no family", withOPT(option(8, 0, 3, 0, 0)), wire.FaultFormErr},
		{"subnet with a prefix too long", withOPT(option(8, 0, 1, 33, 0, 1, 2, 3, 4, 5)), wire.FaultFormErr},
		{"subnet with a scope", withOPT(option(8, 0, 1, 8, 8, 10)), wire.FaultFormErr},
		{"subnet with less address than its prefix", withOPT(option(8, 0, 1, 24, 0, 10, 0)), wire.FaultFormErr},
		{"subnet with more address than its prefix", withOPT(option(8, 0, 1, 8, 0, 10, 0)), wire.FaultFormErr},
		{"subnet of 21", withOPT(option(8, make([]byte, 21)...)), wire.FaultFormErr},
		{"version 1", ask(flagsQuery, a, opt(1232, 1, 0)), wire.FaultBadVers},
		{"version 1 with broken options", version1, wire.FaultBadVers},
		{"version 255 with DO", ask(flagsQuery, a, opt(1232, 255, 0x8000)), wire.FaultBadVers},
		{"version 1 with a name", ask(flagsQuery, a, cat(a, opt(1232, 1, 0)[1:])), wire.FaultFormErr},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var q wire.Query
			if got := q.Parse(tt.pkt); got != tt.want {
				t.Errorf("fault %d, want %d", got, tt.want)
			}
		})
	}
}

// TestQueryParseEveryCut reads every prefix of a query: none may be taken for
// the whole, and none may be read beyond its end.
func TestQueryParseEveryCut(t *testing.T) {
	t.Parallel()
	whole := ask(flagsQuery, labels("www", "example"), opt(1232, 0, 0x8000, option(10, 1, 2, 3, 4, 5, 6, 7, 8), option(8, 0, 1, 24, 0, 10, 1, 2)))
	for n := range len(whole) {
		var q wire.Query
		want := wire.FaultFormErr
		if n < 12 {
			want = wire.FaultDrop
		}
		if got := q.Parse(whole[:n:n]); got != want {
			t.Errorf("the first %d bytes: fault %d, want %d", n, got, want)
		}
	}
}

// TestQueryParseKeepsWhatCameBefore pins what an error reply is made of.
func TestQueryParseKeepsWhatCameBefore(t *testing.T) {
	t.Parallel()
	var q wire.Query
	if got := q.Parse(ask(flagsQuery|0x10, labels("A"), opt(4096, 1, 0x8000, []byte{1}))); got != wire.FaultBadVers {
		t.Fatalf("fault %d, want %d", got, wire.FaultBadVers)
	}
	want := asked{
		ID: 0x1234, Type: wire.TypeA, Class: wire.ClassIN, UDPSize: 4096,
		RD: true, CD: true, EDNS: true, DO: true, Name: "\x01a\x00",
	}
	if diff := cmp.Diff(want, askedBy(&q)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(question(labels("A"), 1), q.QuestionSection()); diff != "" {
		t.Errorf("question (-want +got)\n%s", diff)
	}
}
