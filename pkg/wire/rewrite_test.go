// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A below renames what is, or is below, one name to be below another.
type below struct{ from, to []byte }

// rename appends the new name of name.
func (b below) rename(dst, name []byte) ([]byte, bool) {
	for off := 0; ; off += 1 + int(name[off]) {
		if string(name[off:]) == string(b.from) && off+len(b.to) <= wire.MaxName {
			return append(append(dst, name[:off]...), b.to...), true
		}
		if name[off] == 0 {
			return dst, false
		}
	}
}

// text is b for names in text.
func (b below) text(name string) string {
	lower := dns.CanonicalName(name)
	var buf [256]byte
	n, err := dns.PackDomainName(lower, buf[:], 0, nil, false)
	if err != nil {
		return name
	}
	if out, ok := b.rename(nil, buf[:n]); ok {
		text, _, _ := dns.UnpackDomainName(out, 0)
		return text
	}
	return name
}

// renamed is m with every name that is renamed replaced: what Rewriter.Rename makes of it, on objects.
func renamed(m *dns.Msg, b below, question string) *dns.Msg {
	out := m.Copy()
	out.AuthenticatedData = false
	out.Question[0].Name = question
	for _, section := range []*[]dns.RR{&out.Answer, &out.Ns, &out.Extra} {
		for _, rr := range *section {
			h := rr.Header()
			h.Name = b.text(h.Name)
			for _, name := range namesOf(rr) {
				*name = b.text(*name)
			}
			h.Rdlength = 0
		}
		*section = slices.DeleteFunc(*section, func(rr dns.RR) bool {
			alias, ok := rr.(*dns.CNAME)
			return ok && dns.CanonicalName(alias.Hdr.Name) == dns.CanonicalName(alias.Target)
		})
	}
	return out
}

// namesOf are the names in the data of a record that lead on.
func namesOf(rr dns.RR) []*string {
	switch rr := rr.(type) {
	case *dns.NS:
		return []*string{&rr.Ns}
	case *dns.MD:
		return []*string{&rr.Md}
	case *dns.MF:
		return []*string{&rr.Mf}
	case *dns.MB:
		return []*string{&rr.Mb}
	case *dns.MG:
		return []*string{&rr.Mg}
	case *dns.MR:
		return []*string{&rr.Mr}
	case *dns.CNAME:
		return []*string{&rr.Target}
	case *dns.DNAME:
		return []*string{&rr.Target}
	case *dns.PTR:
		return []*string{&rr.Ptr}
	case *dns.SOA:
		return []*string{&rr.Ns, &rr.Mbox}
	case *dns.MINFO:
		return []*string{&rr.Rmail, &rr.Email}
	case *dns.RP:
		return []*string{&rr.Mbox, &rr.Txt}
	case *dns.MX:
		return []*string{&rr.Mx}
	case *dns.AFSDB:
		return []*string{&rr.Hostname}
	case *dns.RT:
		return []*string{&rr.Host}
	case *dns.KX:
		return []*string{&rr.Exchanger}
	case *dns.PX:
		return []*string{&rr.Map822, &rr.Mapx400}
	case *dns.SRV:
		return []*string{&rr.Target}
	case *dns.NAPTR:
		return []*string{&rr.Replacement}
	case *dns.SVCB:
		return svcbTarget(rr)
	case *dns.HTTPS:
		return svcbTarget(&rr.SVCB)
	}
	return nil
}

// svcbTarget is the target, unless it stands for the owner.
func svcbTarget(rr *dns.SVCB) []*string {
	if rr.Target == "." {
		return nil
	}
	return []*string{&rr.Target}
}

// normal is a message as text in which only what it says counts: letter case does not.
func normal(m *dns.Msg) string {
	m = m.Copy()
	m.Compress = false
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			rr.Header().Rdlength = 0
		}
	}
	return strings.ToLower(m.String())
}

// compareTexts compares what was made of m with what was to be made of it. The oracle follows pointers in the data of
// types where there may be none, and what stands there is copied as it is: nothing is to be learned from such.
func compareTexts(tb testing.TB, m *wire.Message, want *dns.Msg, out []byte) {
	tb.Helper()
	for _, r := range m.Records {
		if !isWalked(r.Type) && bytes.ContainsFunc(m.Raw[r.Data():r.Data()+int(r.Size)], func(c rune) bool { return c >= 0x80 }) {
			return
		}
	}
	got := new(dns.Msg)
	if err := got.Unpack(out); err != nil {
		tb.Fatalf("the oracle refuses %x: %v", out, err)
	}
	if want, got := normal(want), normal(got); want != got {
		tb.Fatalf("want:\n%s\ngot:\n%s", want, got)
	}
}

// isWalked reports types in whose data pointers are followed, or that have none.
func isWalked(rrtype uint16) bool {
	switch rrtype {
	case 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 17, 18, 21, 26, 28, 33, 36, 39:
		return true
	}
	return false
}

func packed(tb testing.TB, name string) []byte {
	tb.Helper()
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(name, buf, 0, nil, false)
	assert.NoError(tb, err)
	return buf[:n]
}

// answerOf is a message of records, compressed.
func answerOf(tb testing.TB, name string, rrtype uint16, answer, ns, extra []string) []byte {
	tb.Helper()
	m := new(dns.Msg).SetQuestion(name, rrtype)
	m.Response, m.Compress, m.AuthenticatedData = true, true, true
	for _, section := range []struct {
		to   *[]dns.RR
		from []string
	}{{&m.Answer, answer}, {&m.Ns, ns}, {&m.Extra, extra}} {
		for _, text := range section.from {
			rr, err := dns.NewRR(text)
			assert.NoError(tb, err)
			*section.to = append(*section.to, rr)
		}
	}
	out, err := m.Pack()
	assert.NoError(tb, err)
	return out
}

// recastSeeds are answers with names of every kind in them.
func recastSeeds(tb testing.TB) [][]byte {
	tb.Helper()
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".new.test."
	return [][]byte{
		answerOf(tb, "web.new.test.", dns.TypeA, []string{"web.new.test. 30 IN A 192.0.2.1", "web.new.test. 30 IN A 192.0.2.2"}, nil, nil),
		answerOf(tb, "web.new.test.", dns.TypeA, []string{
			"web.new.test. 30 IN CNAME a.web.new.test.", "a.web.new.test. 30 IN CNAME cdn.example.",
			"cdn.example. 30 IN A 192.0.2.1", "cdn.example. 30 IN A 192.0.2.2",
		}, nil, nil),
		answerOf(tb, "web.new.test.", dns.TypeA, []string{
			"web.new.test. 30 IN CNAME O.Test.", "o.test. 30 IN CNAME cdn.example.", "cdn.example. 30 IN A 192.0.2.1",
		}, nil, nil),
		answerOf(tb, "_x._tcp.web.new.test.", dns.TypeSRV, []string{
			"_x._tcp.web.new.test. 30 IN SRV 0 1 80 p1.web.new.test.", "_x._tcp.web.new.test. 30 IN SRV 0 1 80 p2.web.new.test.",
		}, []string{"new.test. 30 IN NS ns.new.test."}, []string{"p1.web.new.test. 30 IN A 192.0.2.1", "p2.web.new.test. 30 IN AAAA fd00::1"}),
		answerOf(tb, "web.new.test.", dns.TypeAAAA, nil, []string{"new.test. 30 IN SOA ns.new.test. host.new.test. 1 2 3 4 5"}, nil),
		answerOf(tb, "web.new.test.", dns.TypeHTTPS, []string{
			"web.new.test. 30 IN HTTPS 1 . alpn=h2", "web.new.test. 30 IN HTTPS 0 svc.web.new.test.",
			`web.new.test. 30 IN NAPTR 1 1 "u" "x" "" r.web.new.test.`, "web.new.test. 30 IN TXT \"web.new.test\"",
		}, nil, nil),
		answerOf(tb, long, dns.TypeA, []string{long + " 30 IN A 192.0.2.1", long + " 30 IN MX 1 x." + long}, nil, nil),
		answerOf(tb, "web.new.test.", dns.TypeA, []string{
			"web.new.test. 30 IN A 192.0.2.1", "web.new.test. 30 IN A 0.0.0.0", "web.new.test. 30 IN RRSIG A 8 3 30 20300101000000 20200101000000 1 new.test. AAAA",
			"web.new.test. 30 IN RRSIG CNAME 8 3 30 20300101000000 20200101000000 1 new.test. AAAA",
		}, nil, nil),
	}
}

// checkRename renames what is below the message's question to be below another.
func checkRename(tb testing.TB, msg []byte, question string) {
	tb.Helper()
	var m wire.Message
	original := new(dns.Msg)
	if m.Parse(msg) != nil || m.HasOPT() || original.Unpack(m.Raw) != nil {
		return
	}
	b := below{from: m.AppendName(nil, wire.QuestionNameOffset), to: packed(tb, question)}
	before := string(m.Raw)
	var c wire.Rewriter
	for range 2 { // what is left of the first time must not matter
		out := c.Rename([]byte("before"), &m, b.to, b.rename)
		if string(m.Raw) != before || string(out[:6]) != "before" {
			tb.Fatal("written to what was to stay")
		}
		var back wire.Message
		if err := back.Parse(out[6:]); err != nil || len(back.Raw) != len(out)-6 {
			tb.Fatalf("not to be parsed: %v\n%x", err, out[6:])
		}
		want := renamed(original, b, question)
		if len(back.Records) < len(want.Answer)+len(want.Ns)+len(want.Extra) { // what a message has no room for is gone
			checkCut(tb, &m, &back)
			return
		}
		compareTexts(tb, &m, want, out[6:])
	}
}

// checkCut checks what was made of a long message, of which records are gone.
func checkCut(tb testing.TB, m, cut *wire.Message) {
	tb.Helper()
	lost := slices.ContainsFunc(m.Records[:len(m.Records)-1], func(r wire.Record) bool { return r.Section == wire.Additional })
	if len(m.Raw) < 16<<10 || !cut.Truncated() && !lost {
		tb.Fatalf("%d of %d records in %d bytes, TC %t", len(cut.Records), len(m.Records), len(cut.Raw), cut.Truncated())
	}
}

// FuzzRename renames in any message that is taken.
func FuzzRename(f *testing.F) {
	for _, msg := range append(seedAnswers(f), recastSeeds(f)...) {
		f.Add(msg, "o.test.")
		f.Add(msg, strings.Repeat("o", 63)+"."+strings.Repeat("p", 63)+".test.")
		f.Add(msg, "x.new.test.")
	}
	f.Fuzz(func(t *testing.T, msg []byte, question string) {
		if _, ok := dns.IsDomainName(question); !ok || len(question) > 250 {
			return
		}
		question = dns.CanonicalName(question)
		var buf [256]byte
		n, err := dns.PackDomainName(question, buf[:], 0, nil, false)
		if err != nil || n < 2 {
			return
		}
		question, _, _ = dns.UnpackDomainName(buf[:n], 0)
		checkRename(t, msg, question)
	})
}

// embedding is 64:ff9b::/96, but for addresses that begin with 0.
func embedding(to *[16]byte, from *[4]byte) bool {
	*to = [16]byte{0, 0x64, 0xff, 0x9b}
	copy(to[12:], from[:])
	return from[0] != 0
}

// embedded is m with its IPv4 addresses made into others: what Rewriter.Embed makes of it, on objects.
func embedded(m *dns.Msg) *dns.Msg {
	out := m.Copy()
	out.AuthenticatedData = false
	out.Question[0].Qtype = dns.TypeAAAA
	out.Answer = nil
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			if rr.Hdr.Class != dns.ClassINET {
				break
			}
			if rr.A[0] == 0 {
				continue
			}
			h := rr.Hdr
			if h.Ttl > 1<<31-1 {
				h.Ttl = 0
			}
			h.Rrtype, h.Ttl = dns.TypeAAAA, min(h.Ttl, 100)
			out.Answer = append(out.Answer, &dns.AAAA{Hdr: h, AAAA: append(net.ParseIP("64:ff9b::")[:12:12], rr.A.To4()...)})
			continue
		case *dns.RRSIG:
			if rr.TypeCovered == dns.TypeA {
				continue
			}
		}
		out.Answer = append(out.Answer, dns.Copy(rr))
	}
	return out
}

// checkEmbed makes addresses and compares with the same done to objects.
func checkEmbed(tb testing.TB, msg []byte) {
	tb.Helper()
	var m wire.Message
	original := new(dns.Msg)
	if m.Parse(msg) != nil || m.HasOPT() || original.Unpack(m.Raw) != nil {
		return
	}
	var c wire.Rewriter
	out := c.SynthesizeAAAA(nil, &m, embedding, 100)
	var back wire.Message
	if err := back.Parse(out); err != nil || len(back.Raw) != len(out) {
		tb.Fatalf("not to be parsed: %v\n%x", err, out)
	}
	want := embedded(original)
	if len(back.Records) < len(want.Answer)+len(want.Ns)+len(want.Extra) {
		checkCut(tb, &m, &back)
		return
	}
	compareTexts(tb, &m, want, out)
}

// FuzzEmbed makes addresses of those in any message that is taken.
func FuzzEmbed(f *testing.F) {
	for _, msg := range append(seedAnswers(f), recastSeeds(f)...) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) { checkEmbed(t, msg) })
}

// TestRecastTooLong has messages that other names, or addresses, make longer than there are any: they end before, and
// say so unless only additional records had to go.
func TestRecastTooLong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		counts int // offset of the count of the section that is long
		want   bool
	}{{"answer", 6, true}, {"authority", 8, true}, {"additional", 10, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			msg := answerOf(t, "w.", dns.TypeA, []string{"w. 30 IN A 192.0.2.1"}, nil, nil)
			owner := packed(t, "w.w.") // of its own, so that it gets longer by another name
			record := cat(owner[:2], []byte{0xc0, 12}, msg[len(msg)-14:])
			count := (wire.MaxMessage - len(msg)) / len(record)
			for range count {
				msg = append(msg, record...)
			}
			before := binary.BigEndian.Uint16(msg[tt.counts:])
			binary.BigEndian.PutUint16(msg[tt.counts:], before+uint16(count))
			m := parseMessage(t, msg)
			var c wire.Rewriter
			b := below{from: packed(t, "w."), to: packed(t, strings.Repeat("o", 63)+".")}
			for name, out := range map[string][]byte{
				"names":     c.Rename([]byte("x"), m, b.to, b.rename),
				"addresses": c.SynthesizeAAAA([]byte("x"), m, embedding, 100),
			} {
				if name == "addresses" && tt.name != "answer" { // what is not an answer stays what it is
					continue
				}
				back := parseMessage(t, out[1:])
				if out[0] != 'x' || back.Truncated() != tt.want || len(back.Raw) != len(out)-1 {
					t.Errorf("%s: %d of %d bytes, TC %t, want %t", name, len(back.Raw), len(out), back.Truncated(), tt.want)
				}
				if left := wire.MaxMessage - len(back.Raw); left < 0 || left > 100 || len(back.Records) < 500 {
					t.Errorf("%s: %d records and room for %d bytes", name, len(back.Records), left)
				}
			}
		})
	}
}

// TestRecastSize holds renamed answers to a size: a name that comes again is not spelled out.
func TestRecastSize(t *testing.T) {
	t.Parallel()
	var answer []string
	for i := range 40 {
		answer = append(answer, "a.web.new.test. 30 IN A 192.0.2."+string(rune('0'+i%10)))
	}
	var m wire.Message
	assert.NoError(t, m.Parse(answerOf(t, "web.new.test.", dns.TypeA, append([]string{"web.new.test. 30 IN CNAME a.web.new.test."}, answer...), nil, nil)))
	var c wire.Rewriter
	out := c.Rename(nil, &m, packed(t, "web.old.example."), below{from: packed(t, "web.new.test."), to: packed(t, "web.old.example.")}.rename)
	if most := len(m.Raw) + 8; len(out) > most || len(out) < len(m.Raw) {
		t.Errorf("%d bytes of %d, want at most %d", len(out), len(m.Raw), most)
	}
}

// BenchmarkRename leads names of an answer back: of a common one, and of the largest.
func BenchmarkRename(b *testing.B) {
	largest := answerOf(b, "web.new.test.", dns.TypeSRV, nil, nil, nil)
	for i := 0; len(largest) < wire.MaxMessage-64; i++ {
		target := packed(b, fmt.Sprintf("p%d.web.new.test.", i))
		target = append(target[:len(target)-len("\x03web\x03new\x04test\x00")], 0xc0, 12)
		largest = append(largest, 0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 30, 0, byte(6+len(target)), 0, 0, 0, 0, 0, 80)
		largest = append(largest, target...)
		binary.BigEndian.PutUint16(largest[6:], uint16(i+1))
	}
	for name, msg := range map[string][]byte{"common": recastSeeds(b)[1], "largest": largest} {
		b.Run(name, func(b *testing.B) {
			var m wire.Message
			var c wire.Rewriter
			to := below{from: packed(b, "web.new.test."), to: packed(b, "web.old.example.")}
			dst := make([]byte, 0, wire.MaxMessage)
			b.ReportAllocs()
			for b.Loop() {
				if m.Parse(msg) != nil {
					b.Fatal("malformed")
				}
				c.Rename(dst, &m, to.to, to.rename)
			}
		})
	}
}
