// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// rewriting gives a plan rules, each like "exact a.test b.test".
func rewriting(tb testing.TB, p *resolve.Plan, rules ...string) {
	tb.Helper()
	kinds := map[string]resolve.RewriteKind{"exact": resolve.RewriteExact, "prefix": resolve.RewritePrefix, "suffix": resolve.RewriteSuffix}
	var list []resolve.Rewrite
	for _, rule := range rules {
		words := strings.Split(rule, " ")
		list = append(list, resolve.Rewrite{Kind: kinds[words[0]], From: words[1], To: words[2]})
	}
	var err error
	if p.Rewrites, err = resolve.NewRewrites(list); err != nil {
		tb.Fatal(err)
	}
}

// gist is what a reply says: code, question, and the records of its sections without their TTLs.
func gist(m *dns.Msg) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", dns.RcodeToString[m.Rcode], m.Question[0].Name)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			words := strings.Fields(rr.String())
			fmt.Fprintf(&b, "; %s %s", words[0], strings.Join(words[3:], " "))
		}
	}
	return b.String()
}

// putDB puts a headless service db with pods into the shop.
func putDB(s *zone.Store, addrs ...string) {
	now := time.Now()
	port := []zone.Port{{Name: "x", Protocol: zone.TCP, Number: 80}}
	s.PutService(zone.Service{Namespace: "shop", Name: "db", TTL: -1, Type: zone.Headless, Ports: port}, now)
	slice := zone.Slice{Namespace: "shop", Name: "db-1", Service: "db", Ports: port}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.MustParseAddr(a)}, Ready: true})
	}
	s.PutSlice(slice, now)
}

// sortedGist is a gist whose records are in order: the zone rotates them.
func sortedGist(text string) []string {
	parts := strings.Split(text, "; ")
	slices.Sort(parts[1:])
	return parts
}

// TestRewriteFits restores names in answers that fit before and do not fit afterwards.
func TestRewriteFits(t *testing.T) {
	t.Parallel()
	var records []string
	for i := range 20 {
		records = append(records, fmt.Sprintf("m.test. 60 IN SRV 0 0 %d m.test.", i))
	}
	for i := range 40 {
		records = append(records, fmt.Sprintf("m.test. 60 IN A 192.0.2.%d", i))
	}
	p := plan(t, newUpstream(t, records...))
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".example"
	rewriting(t, p, "exact "+long+" m.test")
	r := newResolver(t, p)
	for _, rrtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		for range 2 {
			for _, stream := range []bool{false, true} {
				m := question(long+".", rrtype)
				m.SetEdns0(512, false)
				m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: 10, Cookie: "0011223344556677"}}
				reply := newClient(r, stream).exchange(t, pack(t, m))
				got := unpack(t, reply)
				whole := len(got.Answer) == map[uint16]int{dns.TypeA: 40, dns.TypeSRV: 20}[rrtype]
				if got.Truncated == stream || whole != stream || !stream && len(reply) > 512 || len(got.IsEdns0().Option) != 1 {
					t.Errorf("%s, TCP %t: TC %t, %d records, %d bytes, %v", dns.TypeToString[rrtype], stream, got.Truncated, len(got.Answer), len(reply), got.IsEdns0())
				}
			}
		}
	}
}

// TestNewRewrites makes rules that cannot be.
func TestNewRewrites(t *testing.T) {
	t.Parallel()
	for _, r := range []resolve.Rewrite{
		{Kind: resolve.RewriteExact, From: "a..b", To: "c"},
		{Kind: resolve.RewriteExact, From: "a", To: ""},
		{Kind: resolve.RewritePrefix, To: "c"},
		{Kind: resolve.RewriteExact, From: "a", To: strings.Repeat("a", 64)},
	} {
		if _, err := resolve.NewRewrites([]resolve.Rewrite{r}); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
}

// slowRewrite is what rules make of a name in text, without its last dot; the name itself if none fits.
func slowRewrite(rules []resolve.Rewrite, name string) string {
	for _, r := range rules {
		to, ok := "", false
		switch r.Kind {
		case resolve.RewriteExact:
			to, ok = r.To, name == r.From
		case resolve.RewritePrefix:
			if to, ok = strings.CutPrefix(name, r.From); ok {
				to = r.To + to
			}
		case resolve.RewriteSuffix:
			if to, ok = strings.CutSuffix(name, r.From); ok {
				to += r.To
			}
		}
		if _, err := dns.PackDomainName(to+".", make([]byte, 255), 0, nil, false); ok && err == nil && to != "" && !strings.HasSuffix(to, ".") {
			return to
		}
	}
	return name
}

// FuzzRewrites compares what rules make of names with what they make of text.
func FuzzRewrites(f *testing.F) {
	f.Add("www.old.test", uint8(2), ".old.test", ".new.test", uint8(1), "www.", "w")
	f.Add("p-a", uint8(1), "p-", "", uint8(0), "p-a", "b.c")
	f.Add("a", uint8(2), "a", "", uint8(2), "a", ".b")
	longest := strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 55) + ".up.test" // 255 bytes
	f.Add(longest, uint8(2), ".up.test", ".else.test", uint8(2), ".up.test", ".no.test")
	f.Add(longest+"a", uint8(2), ".up.test", ".else.test", uint8(2), ".up.test", ".no.test")
	f.Add(longest[2:], uint8(2), ".up.test", ".else.test", uint8(1), "a", "")
	f.Fuzz(func(t *testing.T, name string, kind1 uint8, from1, to1 string, kind2 uint8, from2, to2 string) {
		rules := []resolve.Rewrite{
			{Kind: resolve.RewriteKind(kind1 % 3), From: from1, To: to1}, {Kind: resolve.RewriteKind(kind2 % 3), From: from2, To: to2},
		}
		for _, text := range []string{name, from1, to1, from2, to2} {
			if len(text) > 260 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
				return
			}
		}
		rs, err := resolve.NewRewrites(rules)
		wire := make([]byte, 255)
		end, invalid := dns.PackDomainName(name+".", wire, 0, nil, false)
		if err != nil || invalid != nil || name == "" || strings.HasSuffix(name, ".") {
			return
		}
		got := rs.Find(wire[:end])
		want := slowRewrite(rules, name)
		if text, _, err := dns.UnpackDomainName(got, 0); err != nil || text != strings.TrimSuffix(want, ".")+"." {
			t.Fatalf("%q (%v), want %q", text, err, want)
		}
	})
}
