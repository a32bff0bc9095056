// SPDX-License-Identifier: Apache-2.0

package blocklist

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

func parseText(tb testing.TB, text string) *parser {
	tb.Helper()
	p, err := parse(strings.NewReader(text), maxBytes)
	assert.NoError(tb, err)
	return p
}

// text returns the rules in the order of their names: "+" begins an exception.
func (r *rules) text() string {
	var list []string
	for _, slot := range r.slots {
		if slot == 0 {
			continue
		}
		name := r.at(slot)
		text := string(wire.AppendText(nil, name[:nameLen(name)]))
		for kind, format := range map[kinds]string{blocksName: "%s", blocksBelow: "*.%s", exceptsName: "+%s", exceptsBelow: "+*.%s"} {
			if kinds(slot>>placeBits)&kind != 0 {
				list = append(list, fmt.Sprintf(format, text))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestParse reads the forms of lines that lists have, and lines that must not be misread.
func TestParse(t *testing.T) {
	t.Parallel()
	const soa = "@ 300 IN SOA localhost. root.localhost. 1 2 3 4 5\n"
	for _, tt := range []struct {
		name, text, want                        string
		skipped, unsupported, first, exceptions int
	}{
		{name: "hosts", text: "0.0.0.0 a.example B.Example.\n127.0.0.1 c.example\n::\td.example\n::1 e.example\n127.8.0.1 f.example", want: "a.example. b.example. c.example. d.example. e.example. f.example."},
		{name: "hosts of every machine", text: "127.0.0.1 localhost localhost.localdomain local\n255.255.255.255 broadcasthost\n::1 ip6-localhost\nfe80::1%lo0 localhost\n0.0.0.0 0.0.0.0\n0.0.0.0 a.example", want: "a.example."},
		{name: "hosts with addresses that serve", text: "192.0.2.1 db.example\n0.0.0.0 a.example\n2001:db8::1 db.example", want: "a.example.", skipped: 2, first: 1},
		{name: "hosts with a bad name", text: "0.0.0.0 a.example b..example c.example\n0.0.0.0", want: "a.example. c.example.", skipped: 2, first: 1},
		{name: "names", text: "a.example\n  b.example\t\r\n*.c.example.\nA.EXAMPLE\n_dmarc.d.example\nxn--bcher-kva.example", want: "*.c.example. _dmarc.d.example. a.example. b.example. xn--bcher-kva.example."},
		{name: "comments", text: "# a.example\n! b.example\n; c.example\n\n \t\nd.example # x\n0.0.0.0 e.example ; x", want: "d.example. e.example."},
		{name: "byte order mark, no newline at the end", text: "\ufeffa.example", want: "a.example."},
		{name: "not names", text: "ok.example\nbücher.example\na..example\n.a.example\n" + strings.Repeat("x", 64) + ".example\n" + strings.Repeat("abcdefgh.", 29) + "example\na b\n*\n*.\n.\n*.*.example\nx*.example\n192.0.2.1\n1.2.3\nzip\n$INCLUDE x", want: "ok.example.", skipped: 15, first: 2},
		{name: "below a top-level domain", text: "*.zip", want: "*.zip."},
		{
			name: "lists for browsers and other programs", want: "ok.example.", skipped: 11, first: 1,
			text: "[Adblock Plus 2.0]\n||ads.example^\n@@||ok.example^\nsite.example##.banner\nsite.example#@#.ad\n/banner/*\nsite.example$third-party\naddress=/ads.example/0.0.0.0\nlocal-zone: \"ads.example\" always_nxdomain\nhttps://ads.example/\nads.example;malware\nok.example",
		},
		{name: "response policy zone", text: "$TTL 2h\n" + soa + " NS localhost.\n@ IN NS localhost.\na.example CNAME .\n*.a.example 60 IN CNAME .\nb.example IN 60 cname . ; why\nc.example CNAME .;why\ngood.a.example CNAME rpz-passthru.\n*.good.a.example CNAME RPZ-PASSTHRU.", want: "*.a.example. +*.good.a.example. +good.a.example. a.example. b.example. c.example.", exceptions: 2},
		{name: "other actions", text: "a.example CNAME .\nb.example CNAME *.\nc.example CNAME rpz-drop.\nd.example CNAME rpz-tcp-only.\ne.example CNAME garden.example.\nf.example A 192.0.2.1\ng.example 60 IN AAAA ::1\nh.example CNAME h.example.\ni.example CNAME . .\nj.example TXT x\na.example CNAME .\n CNAME .", want: "a.example.", unsupported: 10, first: 2},
		{name: "other triggers", text: "a.example CNAME .\n32.1.2.0.192.rpz-ip CNAME .\n24.0.2.0.192.rpz-client-ip CNAME rpz-passthru.\nns.example.rpz-nsdname CNAME .\n*.ns.example.rpz-nsdname CNAME .\n32.1.2.0.192.rpz-nsip CNAME .", want: "a.example.", unsupported: 5, first: 2},
		{name: "an invalid line after an unsupported one", text: "a.example CNAME .\nb.example CNAME *.\nb..example CNAME .", want: "a.example.", skipped: 1, unsupported: 1, first: 3},
		{name: "all names", text: "a.example CNAME .\n* CNAME .\n@ CNAME .\n. CNAME .\n*. CNAME .", want: "a.example.", skipped: 4, first: 2},
		{
			name: "start of authority over several lines", want: "a.example.",
			text: "@ IN SOA localhost. root.localhost. (\n 1 ; serial\n 2 3 4\n 5 )\na.example CNAME .",
		},
		{name: "parenthesis without an end", text: "@ SOA a. b. (\n" + strings.Repeat("x.example CNAME .\n", 16) + "a.example CNAME .", want: "a.example.", skipped: 1, first: 17},
		{name: "zone transferred by dig", text: "rpz.test. 60 IN SOA a. b. 1 2 3 4 5\nrpz.test. 60 IN NS a.\na.example.rpz.test. 60 IN CNAME .\n*.a.example.rpz.test. 60 IN CNAME .\nb.example. 60 IN CNAME .\n*.rpz.test. 60 IN CNAME .\nrpz.test. 60 IN SOA a. b. 1 2 3 4 5", want: "*.a.example. a.example.", skipped: 2, first: 5},
		{name: "origin", text: "$ORIGIN rpz.test.\n" + soa + "a.example CNAME .\nb.example.rpz.test. CNAME .\n$ORIGIN org.rpz.test.\nc CNAME .\nd.e CNAME .\n$ORIGIN x.\nf.example CNAME .\n$ORIGIN x", want: "a.example. b.example. c.org. d.e.org.", skipped: 2, first: 9},
		{name: "origin of a dumped zone", text: "$ORIGIN .\n$TTL 60\nrpz.test IN SOA a. b. 1 2 3 4 5\n$ORIGIN rpz.test.\na.example CNAME .", want: "a.example."},
		{name: "absolute names of a zone without a name", text: soa + "a.example CNAME .\nb.example.rpz.test. CNAME .", want: "a.example.", skipped: 1, first: 3},
		{name: "absolute names without a zone", text: "a.example. CNAME .\n", want: "a.example."},
		{name: "long line", text: "0.0.0.0" + strings.Repeat(" a.example", 7000) + "\nb.example\n0.0.0.0" + strings.Repeat(" c.example", 6000), want: "b.example. c.example.", skipped: 1, first: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := parseText(t, tt.text)
			assert.Same(t, "rules", tt.want, p.text())
			got := [...]int{p.skipped, p.unsupported, p.firstBad, p.exceptions}
			if want := [...]int{tt.skipped, tt.unsupported, tt.first, tt.exceptions}; got != want {
				t.Errorf("skipped, unsupported, first, exceptions: %v, want %v", got, want)
			}
		})
	}
}

// TestUnusable refuses content that cannot be a list, and lists without bound.
func TestUnusable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"page of a web server", "<!DOCTYPE html>\n<title>404 Not Found</title>\n", "no line can be used, the first of 2 is line 1"},
		{"compressed", "\x1f\x8b\x08\x00\x01\x02\n\x00\xff", "no line can be used, the first of 2 is line 1"},
		{"list for browsers", "||ads.example^\n", "no line can be used, the first of 1 is line 1"},
	} {
		_, err := parse(strings.NewReader(tt.text), maxBytes)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	if p := parseText(t, "# none\n"); p.names != 0 {
		t.Errorf("%d names", p.names)
	}
	const limit = 256 << 10
	_, err := parse(bytes.NewReader(million(20_000)), limit)
	if err == nil || !strings.HasSuffix(err.Error(), errRoom.Error()) {
		t.Errorf("over the limit: %v", err)
	}
	p, err := parse(bytes.NewReader(million(5_000)), limit)
	assert.NoError(t, err)
	if p.bytes() > limit || p.names != 5000 {
		t.Errorf("%d names in %d bytes", p.names, p.bytes())
	}
}

func listsOf(tb testing.TB, cfg Config, texts ...string) *Lists {
	tb.Helper()
	l := &Lists{cfg: cfg}
	var list []List
	for i, text := range texts {
		list = append(list, List{Name: fmt.Sprint("list", i), rules: parseText(tb, text).rules, replies: nil})
	}
	l.current.Store(&list)
	return l
}

func wireName(tb testing.TB, text string) []byte {
	tb.Helper()
	name, err := wire.AppendName(nil, text)
	assert.NoError(tb, err)
	return name
}

// TestFind finds the rule for a name: exceptions of any list first, then the first list, then the longest name.
func TestFind(t *testing.T) {
	t.Parallel()
	l := listsOf(t, Config{},
		"*.ads.example\nads.example\nx.y.ads.example\n0.0.0.0 host.example\n*.cdn.example",
		"*.ads.example\nother.example CNAME .\n*.example.org CNAME .\ngood.ads.example CNAME rpz-passthru.\n*.cdn.ads.example CNAME rpz-passthru.\nb.good.example.org CNAME .\n*.good.example.org CNAME rpz-passthru.")
	for name, want := range map[string]string{
		"ads.example.":         "list0 ads.example.",
		"a.ads.example.":       "list0 *.ads.example.",
		"a.y.ads.example.":     "list0 *.ads.example.",
		"x.y.ads.example.":     "list0 x.y.ads.example.",
		"host.example.":        "list0 host.example.",
		"a.host.example.":      "none",
		"example.":             "none",
		".":                    "none",
		"xads.example.":        "none",
		"other.example.":       "list1 other.example.",
		"good.ads.example.":    "none",
		"a.good.ads.example.":  "list0 *.ads.example.",
		"cdn.ads.example.":     "list0 *.ads.example.",
		"a.b.cdn.ads.example.": "none",
		"a.example.org.":       "list1 *.example.org.",
		"good.example.org.":    "list1 *.example.org.",
		"b.good.example.org.":  "none", // exceptions win over longer names
		"cdn.example.":         "none",
		strings.Repeat("a.", 120) + "ads.example.": "list0 *.ads.example.",
	} {
		got := "none"
		if r := l.Find(wireName(t, name)); r.Blocks() {
			got = r.List.Name + " " + string(r.AppendText(nil))
		}
		assert.Same(t, name, want, got)
	}
}

func TestAppendAnswer(t *testing.T) {
	t.Parallel()
	both := []netip.Addr{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("::"), netip.MustParseAddr("192.0.2.1")}
	for _, tt := range []struct {
		name   string
		cfg    Config
		rrtype uint16
		want   string
	}{
		{"default", Config{}, dns.TypeA, "NXDOMAIN"},
		{"default for another type", Config{}, dns.TypeTXT, "NXDOMAIN"},
		{"no data", Config{NoData: true}, dns.TypeA, "NOERROR"},
		{"addresses", Config{Addresses: both}, dns.TypeA, "NOERROR| ads.example. 10 A 0.0.0.0| ads.example. 10 A 192.0.2.1"},
		{"addresses of the other family", Config{Addresses: both}, dns.TypeAAAA, "NOERROR| ads.example. 10 AAAA ::"},
		{"addresses and another type", Config{Addresses: both}, dns.TypeHTTPS, "NOERROR"},
		{"addresses of one family", Config{Addresses: both[:1]}, dns.TypeAAAA, "NOERROR"},
	} {
		var m dns.Msg
		assert.NoError(t, m.Unpack(listsOf(t, tt.cfg).AppendAnswer([]byte("x"), wireName(t, "ads.example"), tt.rrtype)[1:]))
		got := dns.RcodeToString[m.Rcode]
		for _, rr := range m.Answer {
			got += "| " + strings.Join(slices.DeleteFunc(strings.Fields(rr.String()), func(s string) bool { return s == "IN" }), " ")
		}
		assert.Same(t, tt.name, tt.want, got)
	}
}

func TestFindAllocates(t *testing.T) {
	l := listsOf(t, Config{}, "*.ads.example", "other.example")
	names := [][]byte{wireName(t, "a.ads.example"), wireName(t, "www.shop.example.org"), wireName(t, "other.example")}
	assert.Equal(t, "allocations", 0, testing.AllocsPerRun(1000, func() {
		for _, name := range names {
			l.Find(name)
		}
	}))
}

// million returns a list of n names like those of large public lists, 20 characters on average.
func million(n int) []byte {
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "0.0.0.0 %s.%s%d.example\n", [...]string{"ads", "metrics", "track", "x"}[i%4], [...]string{"shop", "a", "media"}[i%3], i)
	}
	return text.Bytes()
}

// BenchmarkMillion loads a list of a million names, and finds names in it. It reports the memory that the list keeps.
func BenchmarkMillion(b *testing.B) {
	text := million(1_000_000)
	b.Run("load", func(b *testing.B) {
		b.ReportAllocs()
		var p *parser
		for b.Loop() {
			p = parseText(b, string(text))
		}
		b.ReportMetric(float64(p.bytes())/1e6, "MB")
	})
	l := listsOf(b, Config{}, string(text)+"*.below.example\n")
	text = nil
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	for _, tt := range []struct{ name, of string }{{"blocked", "ads.shop1200.example"}, {"absent", "www.service.team.example.org"}} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportMetric(float64(mem.HeapAlloc)/1e6, "heap-MB")
			name := wireName(b, tt.of)
			for b.Loop() {
				l.Find(name)
			}
		})
	}
}

// FuzzParse compares the rules of arbitrary files with those of a parser that splits and compares text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"0.0.0.0 a.example b.example\n*.c.example\n", "$ORIGIN rpz.test.\n@ SOA a. b. (\n1\n)\na CNAME .\n*.a.b CNAME rpz-passthru.\n",
		"a.example. 60 IN CNAME .\n1.2.0.192.rpz-ip CNAME .\n", "\ufeffx.y#z\n!a.b\n[x]\n", "rpz.test. SOA a. b. 1\na.b.rpz.test. CNAME .\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(strings.NewReader(text), maxBytes)
		want, bad := parseSlowly(text)
		if err != nil {
			if len(want) > 0 || bad == 0 {
				t.Fatalf("%v, want %d rules", err, len(want))
			}
			return
		}
		if got := strings.Join(slices.Sorted(maps.Keys(want)), " "); p.text() != got {
			t.Fatalf("got  %s\nwant %s", p.text(), got)
		}
		if p.skipped+p.unsupported != bad {
			t.Fatalf("%d lines skipped, want %d", p.skipped+p.unsupported, bad)
		}
	})
}
