// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/zone"
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

// TestRewrite asks for names that rules are for, of the cluster and outside, from every place an answer comes from.
func TestRewrite(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	putDB(s, "10.1.0.1")
	inSync(s)
	p, _ := clusterPlan(t, s, true)
	rewriting(t, p,
		"exact db.example db.shop.svc.cluster.local", "exact outer.example www.test", "exact chain.example alias.test",
		"exact mail.example mail.shop.svc.cluster.local", "exact gone.example gone.test",
		"exact apex.test www.apex.test", "exact bad.example failing.test", "exact hosted.example one.hosts",
		"prefix old- new-", "suffix .shop.example .shop.svc.cluster.local", "suffix .short ", "suffix -x.test -y.test",
		"exact www.test db.shop.svc.cluster.local",
	)
	var err error
	p.Static, err = static.New(static.Config{TTL: 30 * time.Second, Names: []static.Host{{Name: "one.hosts", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}}})
	if err != nil {
		t.Fatal(err)
	}
	u := newUpstream(t,
		"www.test. 300 IN A 192.0.2.1", "alias.test. 300 IN A 192.0.2.2", "new-web.test. 300 IN A 192.0.2.3",
		"a.test. 300 IN A 192.0.2.4", "name-y.test. 300 IN A 192.0.2.5", "mail.example.com. 300 IN A 192.0.2.6",
	)
	soa, _ := dns.NewRR("test. 600 IN SOA ns.test. host.test. 1 3600 600 86400 30")
	u.mangle = func(m *dns.Msg) {
		switch name := m.Question[0].Name; {
		case name == "alias.test.":
			cname, _ := dns.NewRR("alias.test. 300 IN CNAME x.alias.test.")
			a, _ := dns.NewRR("x.alias.test. 300 IN A 192.0.2.2")
			m.Answer = []dns.RR{cname, a}
		case name == "www.apex.test.":
			cname, _ := dns.NewRR("www.apex.test. 300 IN CNAME apex.test.")
			a, _ := dns.NewRR("apex.test. 300 IN A 192.0.2.8")
			m.Answer = []dns.RR{cname, a}
		case name == "failing.test.":
			m.Rcode = dns.RcodeServerFailure
		case len(m.Answer) == 0:
			m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa}
		}
	}
	p.Routes = []resolve.Route{{Suffix: []byte{0}, Upstream: u, TTL: bounds()}}
	r := newResolver(t, p)
	for _, tt := range []struct {
		name, ask string
		rrtype    uint16
		want      string
	}{
		{"to the cluster", "DB.Example.", dns.TypeA, "NOERROR DB.Example.; DB.Example. A 10.1.0.1"},
		{"to another name", "Outer.example.", dns.TypeA, "NOERROR Outer.example.; Outer.example. A 192.0.2.1"},
		{"with an alias below", "chain.Example.", dns.TypeA, "NOERROR chain.Example.; chain.Example. CNAME x.chain.Example.; x.chain.Example. A 192.0.2.2"},
		{"to an alias of its own name", "Apex.test.", dns.TypeA, "NOERROR Apex.test.; apex.test. A 192.0.2.8"},
		{"a prefix", "old-web.test.", dns.TypeA, "NOERROR old-web.test.; old-web.test. A 192.0.2.3"},
		{"a suffix that ends within a label", "name-x.test.", dns.TypeA, "NOERROR name-x.test.; name-x.test. A 192.0.2.5"},
		{"denied", "gone.example.", dns.TypeA, "NXDOMAIN gone.example.; test. SOA ns.test. host.test. 1 3600 600 86400 30"},
		{"failing", "bad.example.", dns.TypeA, "SERVFAIL bad.example."},
		{"to a host of the configuration", "hosted.example.", dns.TypeA, "NOERROR hosted.example.; hosted.example. A 192.0.2.77"},
		{"to a host, another type", "hosted.example.", dns.TypeMX, "NOERROR hosted.example."},
		{"a rule that makes no name", "short.", dns.TypeA, "NXDOMAIN short."},
		{"no rule", "a.test.", dns.TypeA, "NOERROR a.test.; a.test. A 192.0.2.4"},
		{"what a rule made is for no other rule", "outer.example.", dns.TypeA, "NOERROR outer.example.; outer.example. A 192.0.2.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // asked for, and held
				got := unpack(t, newClient(r, false).exchange(t, pack(t, question(tt.ask, tt.rrtype))))
				if diff := cmp.Diff(tt.want, gist(got)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestRewriteCluster asks by other names for what the cluster has, and compares with the answers to its own names.
func TestRewriteCluster(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	putDB(s, "10.1.0.1", "10.1.0.2")
	inSync(s)
	p, _ := clusterPlan(t, s, true)
	rewriting(t, p, "exact db.example db.shop.svc.cluster.local", "suffix .shop.example .shop.svc.cluster.local", "exact mail.example mail.shop.svc.cluster.local")
	r := newResolver(t, p)
	const own, other = ".shop.svc.cluster.local.", ".shop.example."
	for _, tt := range []struct {
		ask, instead string // by what name, and for which
		rrtype       uint16
		from, to     string // names that are led back
	}{
		{"web.shop.example.", "web" + own, dns.TypeA, own, other},
		{"db.shop.example.", "db" + own, dns.TypeA, own, other},
		{"_x._tcp.db.shop.example.", "_x._tcp.db" + own, dns.TypeSRV, own, other},
		{"db.shop.example.", "db" + own, dns.TypeSRV, own, other},
		{"none.shop.example.", "none" + own, dns.TypeA, own, other},
		{"web.shop.example.", "web" + own, dns.TypeTXT, own, other},
		{"db.example.", "db" + own, dns.TypeSRV, "db" + own, "db.example."},
		{"mail.example.", "mail" + own, dns.TypeA, "mail" + own, "mail.example."},
		{"mail.shop.example.", "mail" + own, dns.TypeA, own, other},
	} {
		for range 2 {
			want := unpack(t, newClient(r, true).exchange(t, pack(t, question(tt.instead, tt.rrtype))))
			got := unpack(t, newClient(r, true).exchange(t, pack(t, question(tt.ask, tt.rrtype))))
			if diff := cmp.Diff(sortedGist(strings.ReplaceAll(gist(want), tt.from, tt.to)), sortedGist(gist(got))); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", tt.ask, dns.TypeToString[tt.rrtype], diff)
			}
			if want.Authoritative != got.Authoritative || len(want.Answer) == 0 && tt.rrtype != dns.TypeTXT && want.Rcode == 0 {
				t.Errorf("%s: AA %t, want %t; %d records", tt.ask, got.Authoritative, want.Authoritative, len(want.Answer))
			}
		}
	}
	if got := r.Stats().Rewritten; got != 18 {
		t.Errorf("%d counted as rewritten, want 18", got)
	}
}

// sortedGist is a gist whose records are in order: the zone rotates them.
func sortedGist(text string) []string {
	parts := strings.Split(text, "; ")
	slices.Sort(parts[1:])
	return parts
}

// TestRewriteSharesQueries has clients of a name and of its rewritten name wait for one query.
func TestRewriteSharesQueries(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
	u.gate = make(chan struct{})
	p := plan(t, u)
	p.PerClient = 2
	rewriting(t, p, "exact a.example www.test", "prefix p- ")
	r := newResolver(t, p)
	names := []string{"www.test.", "A.example.", "p-www.test."}
	clients := make([]*client, len(names))
	for i, name := range names {
		clients[i] = newClient(r, false)
		clients[i].send(pack(t, question(name, dns.TypeA)))
	}
	if got := unpack(t, <-clients[2].got); got.Rcode != dns.RcodeServerFailure || got.Question[0].Name != names[2] {
		t.Errorf("the third of one client: %s", gist(got))
	}
	close(u.gate)
	for i, name := range names[:2] {
		if got := gist(unpack(t, <-clients[i].got)); got != "NOERROR "+name+"; "+name+" A 192.0.2.1" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if u.count() != 1 || r.Stats().Joined != 1 {
		t.Errorf("%d asked upstream, %d joined; want 1 each", u.count(), r.Stats().Joined)
	}
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
		if _, good := dns.IsDomainName(to); ok && good && to != "" && !strings.HasSuffix(to, ".") {
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
		if _, ok := dns.IsDomainName(name); err != nil || !ok || name == "" || name == "." || strings.HasSuffix(name, ".") {
			return
		}
		wire := wireName(t, name+".")
		got := rs.Find(wire)
		want := slowRewrite(rules, name)
		if text, _, err := dns.UnpackDomainName(got, 0); err != nil || text != strings.TrimSuffix(want, ".")+"." {
			t.Fatalf("%q (%v), want %q", text, err, want)
		}
	})
}
