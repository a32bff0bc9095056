// SPDX-License-Identifier: Apache-2.0

package localdata_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/wire"
)

// query returns the answer of s in one line, or its verdict.
func query(tb testing.TB, s *localdata.Data, name string, rrtype uint16) string {
	tb.Helper()
	pkt, err := new(dns.Msg).SetQuestion(name, rrtype).Pack()
	assert.NoError(tb, err)
	var q wire.Query
	if q.Parse(pkt) != wire.RcodeSuccess {
		tb.Fatal("Parse failed")
	}
	out, verdict, target := s.Answer(&q, []byte("before"))
	if string(out[:6]) != "before" {
		tb.Fatal("Answer changed the bytes before dst")
	}
	if rule := s.Rule(&q); (rule != "") != (verdict != localdata.None || s.Leaves(&q)) {
		tb.Errorf("%s %d: rule %q, verdict %d", name, rrtype, rule, verdict)
	}
	msg := out[6:]
	switch verdict {
	case localdata.None:
		return checkEmpty(tb, msg, "none")
	case localdata.Failed:
		return checkEmpty(tb, msg, "failed")
	case localdata.Answered, localdata.Alias:
	}
	var w wire.Message
	if err := w.Parse(msg); err != nil || len(w.Raw) != len(msg) || w.HasOPT() {
		tb.Fatalf("%v: %x", err, msg)
	}
	if string(w.AppendName(nil, wire.QuestionNameOffset)) != string(q.Name()) {
		tb.Fatal("the question differs")
	}
	m := new(dns.Msg)
	assert.NoError(tb, m.Unpack(msg))
	if !m.Authoritative || !m.Response || m.Question[0].Qtype != rrtype {
		tb.Errorf("%v", m)
	}
	var b strings.Builder
	b.WriteString(dns.RcodeToString[m.Rcode])
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			words := strings.Fields(rr.String())
			fmt.Fprintf(&b, "%c %s %s %s", " |/+"[i+1], words[0], words[1], strings.Join(words[3:], " "))
		}
	}
	if verdict == localdata.Alias {
		to, end, err := dns.UnpackDomainName(msg, len(msg)-len(target))
		if err != nil || end != len(msg) || string(msg[len(msg)-len(target):]) != string(target) {
			tb.Errorf("target %x: %v", target, err)
		}
		b.WriteString(" -> " + to)
	}
	return b.String()
}

func checkEmpty(tb testing.TB, msg []byte, verdict string) string {
	tb.Helper()
	if len(msg) > 0 {
		tb.Errorf("%s with %x", verdict, msg)
	}
	return verdict
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	assert.NoError(tb, os.WriteFile(path, []byte(text), 0o600))
}

func newLocalData(tb testing.TB, cfg localdata.Config) *localdata.Data {
	tb.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = 30 * time.Second
	}
	s, err := localdata.New(cfg)
	assert.NoError(tb, err)
	return s
}

const hostsText = `# a comment
127.0.0.1	localhost loop.example
::1 localhost ip6-localhost # another
192.0.2.1 DB.example. db

192.0.2.2 db.example
192.0.2.2 db.example
fe80::1%eth0 link.example
::ffff:192.0.2.3 mapped.example
0.0.0.0 ads.example
:: ads.example
192.0.2.9 *.apps.example
nonsense
192.0.2.10
1.2.3 short.example
192.0.2.12 two.example Two.Example
192.0.2.13 two.example.
192.0.2.12 two.example
192.0.2.11 bad..name good.example under_score.example
`

func TestHosts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, hostsText)
	s := newLocalData(t, localdata.Config{
		Files: []string{path},
		Names: map[string][]netip.Addr{"db.example.": addrs("10.0.0.1", "fd00::1"), "own.example": addrs("192.0.2.2")},
	})
	for _, tt := range []struct {
		ask    string
		rrtype uint16
		want   string
	}{
		{"localhost.", dns.TypeA, "NOERROR| localhost. 30 A 127.0.0.1"},
		{"LOCALHOST.", dns.TypeAAAA, "NOERROR| localhost. 30 AAAA ::1"},
		{"localhost.", dns.TypeMX, "none"},
		{"localhost.", dns.TypePTR, "none"},
		{"localhost.", dns.TypeCNAME, "NOERROR"},
		{"localhost.", dns.TypeHTTPS, "NOERROR"},
		{"x.apps.example.", dns.TypeSVCB, "NOERROR"},
		{"x.apps.example.", dns.TypeTXT, "none"},
		{"2.2.0.192.in-addr.arpa.", dns.TypeTXT, "none"},
		{"2.2.0.192.in-addr.arpa.", dns.TypeDNAME, "NOERROR"},
		{"ip6-localhost.", dns.TypeA, "NOERROR"},
		{"db.example.", dns.TypeA, "NOERROR| db.example. 30 A 10.0.0.1"},
		{"db.example.", dns.TypeAAAA, "NOERROR| db.example. 30 AAAA fd00::1"},
		{"two.example.", dns.TypeA, "NOERROR| two.example. 30 A 192.0.2.12| two.example. 30 A 192.0.2.13"},
		{"db.", dns.TypeA, "NOERROR| db. 30 A 192.0.2.1"},
		{"own.example.", dns.TypeA, "NOERROR| own.example. 30 A 192.0.2.2"},
		{"link.example.", dns.TypeAAAA, "NOERROR| link.example. 30 AAAA fe80::1"},
		{"mapped.example.", dns.TypeA, "NOERROR| mapped.example. 30 A 192.0.2.3"},
		{"ads.example.", dns.TypeA, "NOERROR| ads.example. 30 A 0.0.0.0"},
		{"ads.example.", dns.TypeAAAA, "NOERROR| ads.example. 30 AAAA ::"},
		{"x.apps.example.", dns.TypeA, "NOERROR| x.apps.example. 30 A 192.0.2.9"},
		{"y.x.apps.example.", dns.TypeA, "none"},
		{"apps.example.", dns.TypeA, "none"},
		{"short.example.", dns.TypeA, "none"},
		{"good.example.", dns.TypeA, "NOERROR| good.example. 30 A 192.0.2.11"},
		{"under_score.example.", dns.TypeA, "NOERROR| under_score.example. 30 A 192.0.2.11"},
		{"example.", dns.TypeA, "none"},
		{".", dns.TypeNS, "none"},
		{"1.0.0.127.in-addr.arpa.", dns.TypePTR, "NOERROR| 1.0.0.127.in-addr.arpa. 30 PTR localhost.| 1.0.0.127.in-addr.arpa. 30 PTR loop.example."},
		{"2.2.0.192.in-addr.arpa.", dns.TypePTR, "NOERROR| 2.2.0.192.in-addr.arpa. 30 PTR own.example."},
		{"2.2.0.192.in-addr.arpa.", dns.TypeA, "NOERROR"},
		{"0.0.0.0.in-addr.arpa.", dns.TypePTR, "none"},
		{"9.2.0.192.in-addr.arpa.", dns.TypePTR, "none"},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "NOERROR| 1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. 30 PTR db.example."},
	} {
		assert.Same(t, fmt.Sprintf("%s %s", tt.ask, dns.TypeToString[tt.rrtype]), tt.want, query(t, s, tt.ask, tt.rrtype))
	}
	st := s.Stats()
	if st.Names != 13 || st.Addresses != 17 || st.Files[0].Skipped != 4 || st.Files[0].Names != 19 || st.Files[0].LastError != "" || st.Files[0].Reads != 1 {
		t.Errorf("%+v", st)
	}
	s = newLocalData(t, localdata.Config{Files: []string{path}, NoReverse: true})
	if got := query(t, s, "1.0.0.127.in-addr.arpa.", dns.TypePTR); got != "none" {
		t.Errorf("with NoReverse: %s", got)
	}
}

// TestHostsBounds exceeds the bounds of names per address and addresses per name.
// TestRule names what decides: a file with its line, a key, or a template.
func TestRule(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, hostsText)
	second := path + "2"
	write(t, second, "192.0.2.7 second.example db.example # db.example is of the first file\n")
	s := newLocalData(t, localdata.Config{
		Files: []string{path, second},
		Names: map[string][]netip.Addr{"own.example": addrs("192.0.2.2")},
		Templates: []localdata.Template{
			{Zone: "example.", Types: []uint16{dns.TypeMX}, Match: []string{"^db[.]"}},
			{Zone: "blocked.test.", Rcode: dns.RcodeNameError},
			{Zone: "fails.test.", Answer: parse(t, "{{ .Group.none }} 60 IN A x")},
			{Zone: "test.", Rcode: dns.RcodeRefused},
		},
	})
	for _, tt := range []struct {
		ask    string
		rrtype uint16
		want   string
	}{
		{"own.example.", dns.TypeA, "hosts.names"},
		{"own.example.", dns.TypeAAAA, "hosts.names"},
		{"own.example.", dns.TypeMX, "hosts.names"}, // without a route, it has no such type
		{"DB.example.", dns.TypeA, path + ":4"},
		{"db.example.", dns.TypeMX, "templates[0]"},
		{"second.example.", dns.TypeA, second + ":1"},
		{"x.apps.example.", dns.TypeA, path + ":12"},
		{"7.2.0.192.in-addr.arpa.", dns.TypePTR, second + ":1"},
		{"www.blocked.test.", dns.TypeA, "templates[1]"},
		{"fails.test.", dns.TypeA, "templates[2]"},
		{"other.test.", dns.TypeA, "templates[3]"},
		{"other.example.", dns.TypeMX, ""},
	} {
		for range 2 { // evaluated, then from the cache
			var q wire.Query
			pkt, err := new(dns.Msg).SetQuestion(tt.ask, tt.rrtype).Pack()
			assert.NoError(t, err)
			q.Parse(pkt)
			assert.Equal(t, fmt.Sprintf("%s %s", tt.ask, dns.TypeToString[tt.rrtype]), tt.want, s.Rule(&q))
		}
	}
}

func TestHostsBounds(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "127.0.0.1 n%d.example\n", i)
	}
	for i := range 2000 {
		fmt.Fprintf(&text, "10.0.%d.%d many.example\n", i/256, i%256)
		fmt.Fprintf(&text, "fd00::%x many.example\n", i)
	}
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, text.String())
	s := newLocalData(t, localdata.Config{Files: []string{path}})
	for _, tt := range []struct {
		ask    string
		rrtype uint16
		want   int
	}{{"1.0.0.127.in-addr.arpa.", dns.TypePTR, 64}, {"many.example.", dns.TypeA, 1024}, {"many.example.", dns.TypeAAAA, 1024}} {
		assert.Equal(t, tt.ask+": records", tt.want, strings.Count(query(t, s, tt.ask, tt.rrtype), "|"))
	}
}

// parse compiles record templates.
func parse(tb testing.TB, texts ...string) (list []func(*localdata.Question) (dns.RR, error)) {
	tb.Helper()
	for _, text := range texts {
		r, err := config.ParseRecord(text)
		assert.NoError(tb, err)
		list = append(list, func(q *localdata.Question) (dns.RR, error) { return r((*config.TemplateData)(q)) })
	}
	return list
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	s := newLocalData(t, localdata.Config{
		Names: map[string][]netip.Addr{"host.ip.example": addrs("192.0.2.1")},
		Templates: []localdata.Template{
			{
				Zone: "ip.example.", Types: []uint16{dns.TypeA}, Match: []string{`^ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)[.]ip[.]example[.]$`},
				Answer: parse(t, "{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}"),
			},
			{Zone: "ip.example.", Types: []uint16{dns.TypeA, dns.TypeAAAA}, Match: []string{"^none[.]", "^nothing[.]"}, Rcode: dns.RcodeNameError, Authority: parse(t, "{{ .Zone }} 60 IN SOA ns.{{ .Zone }} host.{{ .Zone }} 1 2 3 4 5")},
			{Zone: "mx.example.", Answer: parse(t, `{{ if eq .Type "MX" }}{{ .Name }} IN MX 10 mail.{{ .Name }}{{ end }}`), Additional: parse(t, `mail.{{ .Name }} 60 IN A 192.0.2.5`)},
			{Zone: "alias.example.", Answer: parse(t, "{{ .Name }} 60 IN CNAME {{ index .Match 0 }}Target.test.")},
			{Zone: "chain.example.", Answer: parse(t, "{{ .Name }} 60 IN CNAME a.b.", "a.b. 60 IN CNAME c.b.")},
			{Zone: "whole.example.", Answer: parse(t, "{{ .Name }} 60 IN CNAME a.b.", "a.b. 60 IN A 192.0.2.6")},
			{Zone: "refused.example.", Rcode: dns.RcodeRefused},
			{Zone: "fails.example.", Answer: parse(t, "{{ .Group.none }} 60 IN A x")},
			{Zone: "index.example.", Answer: parse(t, "{{ index .Match 7 }} 60 IN A 192.0.2.1")},
			{Zone: "class.example.", Answer: parse(t, "{{ .Name }} 60 CH TXT x")},
			{Zone: "opt.example.", Answer: parse(t, "{{ .Name }} 60 IN TYPE41 \\# 0")},
			{Zone: "long.example.", Answer: parse(t, "{{ .Name }} 60 IN TXT"+strings.Repeat(" "+strings.Repeat("0", 255), 5))},
			{Zone: "max.example.", Answer: tooManyTXT(t)},
			{Zone: "info.example.", Types: []uint16{dns.TypeTXT}, Answer: parse(t, `{{ .Name }} 60 IN TXT "{{ .Name }}" "{{ .Zone }}" "{{ .Type }}" "{{ .Class }}" "{{ index .Match 0 }}" "{{ index .Group "0" }}" "{{ parseInt "ff" 16 8 }}"`)},
			{Zone: ".", Types: []uint16{dns.TypeHTTPS}, Answer: parse(t, " ")},
		},
	})
	for _, tt := range []struct {
		ask    string
		rrtype uint16
		want   string
	}{
		{"IP-3-4.ip.example.", dns.TypeA, "NOERROR| ip-3-4.ip.example. 60 A 10.0.3.4"},
		{"ip-3-4.ip.example.", dns.TypeAAAA, "none"},
		{"ip-3-400.ip.example.", dns.TypeA, "failed"},
		{"other.ip.example.", dns.TypeA, "none"},
		{"host.ip.example.", dns.TypeA, "NOERROR| host.ip.example. 30 A 192.0.2.1"},
		{"none.ip.example.", dns.TypeA, "NXDOMAIN/ ip.example. 60 SOA ns.ip.example. host.ip.example. 1 2 3 4 5"},
		{"nothing.ip.example.", dns.TypeAAAA, "NXDOMAIN/ ip.example. 60 SOA ns.ip.example. host.ip.example. 1 2 3 4 5"},
		{"x.mx.example.", dns.TypeMX, "NOERROR| x.mx.example. 3600 MX 10 mail.x.mx.example.+ mail.x.mx.example. 60 A 192.0.2.5"},
		{"x.mx.example.", dns.TypeA, "NOERROR+ mail.x.mx.example. 60 A 192.0.2.5"},
		{"x.alias.example.", dns.TypeA, "NOERROR| x.alias.example. 60 CNAME x.alias.example.target.test. -> x.alias.example.target.test."},
		{"x.alias.example.", dns.TypeCNAME, "NOERROR| x.alias.example. 60 CNAME x.alias.example.Target.test."},
		{"x.chain.example.", dns.TypeTXT, "NOERROR| x.chain.example. 60 CNAME a.b.| a.b. 60 CNAME c.b. -> c.b."},
		{"x.whole.example.", dns.TypeA, "NOERROR| x.whole.example. 60 CNAME a.b.| a.b. 60 A 192.0.2.6"},
		{"x.refused.example.", dns.TypeA, "REFUSED"},
		{"fails.example.", dns.TypeA, "failed"},
		{"index.example.", dns.TypeA, "failed"},
		{"class.example.", dns.TypeA, "failed"},
		{"opt.example.", dns.TypeA, "failed"},
		{"max.example.", dns.TypeTXT, "failed"},
		{`we\.i\007rd.info.example.`, dns.TypeTXT, `NOERROR| we\.i\007rd.info.example. 60 TXT "we.i\007rd.info.example." "info.example." "TXT" "IN" "we.i\007rd.info.example." "we.i\007rd.info.example." "255"`},
		{"x.test.", dns.TypeHTTPS, "NOERROR"},
		{"x.test.", dns.TypeA, "none"},
		{"xip.example.", dns.TypeA, "none"},
	} {
		for range 2 { // evaluated, then from the cache
			assert.Same(t, fmt.Sprintf("%s %s", tt.ask, dns.TypeToString[tt.rrtype]), tt.want, query(t, s, tt.ask, tt.rrtype))
		}
	}
	if got := strings.Count(query(t, s, "long.example.", dns.TypeTXT), "0"); got < 1000 {
		t.Errorf("the long answer has %d zeros", got)
	}
	if st := s.Stats(); st.Failures != 12 || st.Templates != 15 {
		t.Errorf("%+v", st)
	}
}

// tooManyTXT returns more records than fit a message.
func tooManyTXT(tb testing.TB) (list []func(*localdata.Question) (dns.RR, error)) {
	tb.Helper()
	for i := range 300 {
		list = append(list, parse(tb, fmt.Sprintf(`{{ .Name }} 60 IN TXT "%d%s"`, i, strings.Repeat("x", 240)))...)
	}
	return list
}

// TestNew rejects invalid configurations.
func TestNew(t *testing.T) {
	t.Parallel()
	for _, cfg := range []localdata.Config{
		{Names: map[string][]netip.Addr{"a..b": nil}},
		{Names: map[string][]netip.Addr{"a b": nil}},
		{Templates: []localdata.Template{{Zone: "a..b"}}},
		{Templates: []localdata.Template{{Zone: ".", Match: []string{"("}}}},
		{Templates: []localdata.Template{{Zone: ".", Rcode: 16}}},
	} {
		if _, err := localdata.New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// TestMissingFile logs unreadable files and shows them in Stats.
func TestMissingFile(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "hosts")
	s := newLocalData(t, localdata.Config{Files: []string{path, t.TempDir()}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if st := s.Stats(); st.Files[0].LastError == "" || st.Files[1].LastError == "" || strings.Count(log.String(), "hosts file unreadable") != 2 {
		t.Errorf("%+v, log %s", st, log.String())
	}
	if got := query(t, s, "localhost.", dns.TypeA); got != "none" {
		t.Error(got)
	}
}

// TestAllocations requires that hosts, misses and cached template answers do not allocate.
func TestAllocations(t *testing.T) {
	s, queries := allocationQueries(t)
	dst := make([]byte, 0, 4096)
	for name, q := range queries {
		assert.Equal(t, name+": allocations", 0, testing.AllocsPerRun(1000, func() { s.Answer(q, dst) }))
	}
}

func allocationQueries(tb testing.TB) (*localdata.Data, map[string]*wire.Query) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "hosts")
	write(tb, path, hostsText)
	s := newLocalData(tb, localdata.Config{Files: []string{path}, Templates: []localdata.Template{
		{Zone: ".", Types: []uint16{dns.TypeA}, Match: []string{`^made[.]`}, Answer: parse(tb, "{{ .Name }} 60 IN A 192.0.2.1")},
	}})
	queries := map[string]*wire.Query{}
	for name, m := range map[string]*dns.Msg{
		"host":     new(dns.Msg).SetQuestion("DB.example.", dns.TypeA),
		"denied":   new(dns.Msg).SetQuestion("db.example.", dns.TypeMX),
		"wild":     new(dns.Msg).SetQuestion("x.apps.example.", dns.TypeA),
		"pointer":  new(dns.Msg).SetQuestion("1.0.0.127.in-addr.arpa.", dns.TypePTR),
		"template": new(dns.Msg).SetQuestion("made.example.", dns.TypeA),
		"none":     new(dns.Msg).SetQuestion("www.example.", dns.TypeA),
	} {
		pkt, err := m.Pack()
		assert.NoError(tb, err)
		q := new(wire.Query)
		q.Parse(pkt)
		queries[name] = q
		s.Answer(q, nil)
	}
	return s, queries
}

func BenchmarkAnswer(b *testing.B) {
	s, queries := allocationQueries(b)
	dst := make([]byte, 0, 4096)
	for _, name := range []string{"host", "denied", "wild", "pointer", "template", "none"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Answer(queries[name], dst)
			}
		})
	}
	b.Run("template, not cached", func(b *testing.B) {
		b.ReportAllocs()
		var q wire.Query
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			pkt, _ := new(dns.Msg).SetQuestion(fmt.Sprintf("made.%d.example.", i), dns.TypeA).Pack()
			q.Parse(pkt)
			b.StartTimer()
			s.Answer(&q, dst)
		}
	})
}

// BenchmarkRead loads a file like a large block list.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&text, "0.0.0.0 ad-%d.tracker-%d.example\n", i, i%97)
	}
	path := filepath.Join(b.TempDir(), "hosts")
	write(b, path, text.String())
	b.ReportAllocs()
	for b.Loop() {
		newLocalData(b, localdata.Config{Files: []string{path}})
	}
}

// checkLine checks that the line that the rule of a name gives is the first one with the name.
func checkLine(tb testing.TB, s *localdata.Data, name, path, text string) {
	tb.Helper()
	var q wire.Query
	pkt, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	assert.NoError(tb, err)
	q.Parse(pkt)
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		if _, ok := parseHostsSlowly(line)[name]; ok {
			break
		}
	}
	assert.Equal(tb, "rule of "+name, fmt.Sprintf("%s:%d", path, number), s.Rule(&q))
}

// FuzzHosts compares arbitrary files with a simple parser.
func FuzzHosts(f *testing.F) {
	f.Add(hostsText)
	f.Add("1.2.3.4 a.b A.B. c#d\r\n::1\ta")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "hosts")
		write(t, path, text)
		s := newLocalData(t, localdata.Config{Files: []string{path}})
		for name, want := range parseHostsSlowly(text) {
			for rrtype, want := range want {
				got := query(t, s, name, rrtype)
				checkLine(t, s, name, path, text)
				if n := strings.Count(got, "|"); n != min(len(want), 1024) {
					t.Fatalf("%s %d: %s, want %v", name, rrtype, got, want)
				}
				for i, addr := range want[:min(len(want), 1024)] {
					if !strings.Contains(strings.Split(got, "|")[i+1], " "+addr) {
						t.Fatalf("%s: %s, want %s at %d", name, got, addr, i)
					}
				}
			}
		}
	})
}

// parseHostsSlowly returns the addresses of a hosts file by name and type.
func parseHostsSlowly(text string) map[string]map[uint16][]string {
	out := map[string]map[uint16][]string{}
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(words[0])
		if err != nil {
			continue
		}
		addr = addr.Unmap().WithZone("")
		rrtype := dns.TypeAAAA
		shown := fmt.Sprint(addr)
		if addr.Is4() {
			rrtype = dns.TypeA
		} else {
			aaaa := &dns.AAAA{AAAA: addr.AsSlice()}
			shown = strings.Fields(aaaa.String())[len(strings.Fields(aaaa.String()))-1]
		}
		for _, name := range words[1:] {
			name = strings.ToLower(strings.TrimSuffix(name, "."))
			if !isName(name) {
				continue
			}
			if out[name+"."] == nil {
				out[name+"."] = map[uint16][]string{}
			}
			list := out[name+"."][rrtype]
			if !strings.Contains(" "+strings.Join(list, " ")+" ", " "+shown+" ") {
				out[name+"."][rrtype] = append(list, shown)
			}
		}
	}
	return out
}

// isName reports whether the name is valid and needs no escapes.
func isName(name string) bool {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return false
	}
	_, ok := dns.IsDomainName(name)
	return ok && name != "" && !strings.HasSuffix(name, ".") && len(name) < 254
}
