// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// shop is a store with a service web, a headless db, and aliases that lead inside
// and out.
func shop(now time.Time) *zone.Store {
	s := zone.NewStore()
	s.Expect(zone.Services, zone.Slices, zone.Namespaces)
	s.PutNamespace("shop", now)
	s.PutService(zone.Service{Namespace: "shop", Name: "web", TTL: -1, Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}}, now)
	for name, target := range map[string]string{
		"mail": "mail.example.com", "other": "Mail.Example.COM.", "inner": "web.shop.svc.cluster.local",
		"twice": "mail.shop.svc.cluster.local", "gone": "gone.example.com", "dead": "dead.example.com",
		"stub": "a.stub.cluster.local",
	} {
		s.PutService(zone.Service{Namespace: "shop", Name: name, TTL: -1, Type: zone.ExternalName, ExternalName: target}, now)
	}
	return s
}

func inSync(s *zone.Store) {
	for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
		s.SetSynced(kind)
		s.SetAlwaysFresh(kind)
	}
}

func view(tb testing.TB, s *zone.Store, elsewhere bool) *zone.Zone {
	tb.Helper()
	z, err := zone.New(zone.Config{
		Store: s, Domain: "cluster.local.", TTL: 5 * time.Second, Excluded: []string{"stub.cluster.local."},
		HasFallback: func() bool { return elsewhere },
	})
	if err != nil {
		tb.Fatal(err)
	}
	return z
}

// wireName is the wire form of a name.
func wireName(tb testing.TB, name string) []byte {
	tb.Helper()
	buf := make([]byte, 255)
	n, err := dns.PackDomainName(name, buf, 0, nil, false)
	if err != nil {
		tb.Fatal(err)
	}
	return buf[:n]
}

// clusterPlan has the shop's zone, a central resolver, a stub zone and a root route.
func clusterPlan(tb testing.TB, s *zone.Store, elsewhere bool) (p *resolve.Plan, root *upstream) {
	tb.Helper()
	root = newUpstream(tb, "mail.example.com. 300 IN A 192.0.2.25", "mail.example.com. 300 IN A 192.0.2.26", "db.example. 60 IN A 192.0.2.3")
	central := newUpstream(tb, "new.shop.svc.cluster.local. 3 IN A 10.96.0.8", "x.cluster.local. 3 IN A 10.96.0.9")
	stub := newUpstream(tb, "a.stub.cluster.local. 300 IN A 192.0.2.77")
	root.mangle = func(m *dns.Msg) {
		m.Authoritative = true
		if strings.HasPrefix(m.Question[0].Name, "gone.") {
			m.Rcode = dns.RcodeNameError
			soa, _ := dns.NewRR("example.com. 60 IN SOA ns.example.com. host.example.com. 1 2 3 4 60")
			m.Ns = []dns.RR{soa}
		}
	}
	p = plan(tb, root)
	p.Zone = view(tb, s, elsewhere)
	p.Routes = append(p.Routes,
		resolve.Route{Suffix: wireName(tb, "cluster.local."), Upstream: central, TTL: bounds(), Exact: true},
		resolve.Route{Suffix: wireName(tb, "stub.cluster.local."), Upstream: stub, TTL: bounds()})
	return p, root
}

// say is a reply in one line.
func say(m *dns.Msg) string {
	var b strings.Builder
	b.WriteString(dns.RcodeToString[m.Rcode])
	if m.Authoritative {
		b.WriteString(" aa")
	}
	for _, rr := range m.Answer {
		fmt.Fprintf(&b, " | %s %d %s", rr.Header().Name, rr.Header().Ttl, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	if len(m.Ns) > 0 {
		fmt.Fprintf(&b, " / %s", m.Ns[0].Header().Name)
	}
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if ede, ok := o.(*dns.EDNS0_EDE); ok {
				fmt.Fprintf(&b, " ede=%d", ede.InfoCode)
			}
		}
	}
	return b.String()
}

// TestDecisionOrder asks each question twice: from nothing, and from what the
// first left in memory.
func TestDecisionOrder(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		qtyp uint16
		want string
		// sources of the two replies
		first, second resolve.Source
	}{
		{"web.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7", resolve.SourceZone, resolve.SourceZone},
		{"WEB.shop.svc.cluster.LOCAL.", dns.TypeA, "NOERROR aa | WEB.shop.svc.cluster.LOCAL. 5 10.96.0.7", resolve.SourceZone, resolve.SourceZone},
		{"none.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa / cluster.local.", resolve.SourceZone, resolve.SourceZone},
		{
			"inner.shop.svc.cluster.local.", dns.TypeA,
			"NOERROR aa | inner.shop.svc.cluster.local. 5 web.shop.svc.cluster.local. | web.shop.svc.cluster.local. 5 10.96.0.7",
			resolve.SourceZone, resolve.SourceZone,
		},
		{
			"mail.shop.svc.cluster.local.", dns.TypeA,
			"NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 300 192.0.2.25 | mail.example.com. 300 192.0.2.26",
			resolve.SourceUpstream, resolve.SourceCache,
		},
		{
			"twice.shop.svc.cluster.local.", dns.TypeA,
			"NOERROR aa | twice.shop.svc.cluster.local. 5 mail.shop.svc.cluster.local. | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 300 192.0.2.25 | mail.example.com. 300 192.0.2.26",
			resolve.SourceUpstream, resolve.SourceCache,
		},
		{"mail.shop.svc.cluster.local.", dns.TypeCNAME, "NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com.", resolve.SourceZone, resolve.SourceZone},
		{"gone.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa | gone.shop.svc.cluster.local. 5 gone.example.com. / example.com.", resolve.SourceUpstream, resolve.SourceCache},
		{
			"stub.shop.svc.cluster.local.", dns.TypeA,
			"NOERROR aa | stub.shop.svc.cluster.local. 5 a.stub.cluster.local. | a.stub.cluster.local. 300 192.0.2.77", resolve.SourceUpstream, resolve.SourceCache,
		},
		{"a.stub.cluster.local.", dns.TypeA, "NOERROR | a.stub.cluster.local. 300 192.0.2.77", resolve.SourceUpstream, resolve.SourceCache},
		{"x.cluster.local.", dns.TypeA, "NOERROR | x.cluster.local. 3 10.96.0.9", resolve.SourceUpstream, resolve.SourceCache},
		{"db.example.", dns.TypeA, "NOERROR | db.example. 60 192.0.2.3", resolve.SourceUpstream, resolve.SourceCache},
	}
	for _, tt := range tests {
		t.Run(tt.name+dns.TypeToString[tt.qtyp], func(t *testing.T) {
			t.Parallel()
			s := shop(time.Now())
			inSync(s)
			p, _ := clusterPlan(t, s, true)
			r := newResolver(t, p)
			c := newClient(r, true)
			for i, source := range []resolve.Source{tt.first, tt.second} {
				got := unpack(t, c.exchange(t, pack(t, question(tt.name, tt.qtyp))))
				want := sorted(tt.want)
				if diff := cmp.Diff(want, sorted(say(got))); diff != "" {
					t.Errorf("reply %d (-want +got)\n%s", i, diff)
				}
				if got := r.Stats().Responses[source]; sum(got[:]) == 0 {
					t.Errorf("reply %d is not from %s", i, resolve.Sources()[source])
				}
			}
		})
	}
}

// sorted leaves the order of a reply's records aside: address sets rotate.
func sorted(line string) string {
	parts := strings.Split(line, " | 192.0.2") // the addresses' owners come before
	return fmt.Sprint(len(line), parts[0])
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}

// TestUnsyncedZone denies nothing: it asks the central resolver, or says that it
// is not ready.
func TestUnsyncedZone(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		elsewhere bool
		want      string
	}{
		{"web.shop.svc.cluster.local.", false, "NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7"}, // what is held is right
		{"new.shop.svc.cluster.local.", true, "NOERROR | new.shop.svc.cluster.local. 3 10.96.0.8"},
		{"new.shop.svc.cluster.local.", false, "SERVFAIL ede=14"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, tt.elsewhere), func(t *testing.T) {
			t.Parallel()
			p, _ := clusterPlan(t, shop(time.Now()), tt.elsewhere)
			q := question(tt.name, dns.TypeA)
			q.SetEdns0(1232, false)
			got := unpack(t, newClient(newResolver(t, p), false).exchange(t, pack(t, q)))
			if diff := cmp.Diff(tt.want, say(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAliasFailures is an alias whose target cannot be had: at once, and from
// memory.
func TestAliasFailures(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	p, root := clusterPlan(t, s, false)
	root.err = errors.New("refused")
	c := newClient(newResolver(t, p), false)
	q := question("dead.shop.svc.cluster.local.", dns.TypeA)
	q.SetEdns0(1232, false)
	for i, want := range []string{"SERVFAIL ede=22", "SERVFAIL ede=13"} {
		got := unpack(t, c.exchange(t, pack(t, q)))
		if diff := cmp.Diff(want, say(got)); diff != "" {
			t.Errorf("reply %d (-want +got)\n%s", i, diff)
		}
		if got.Question[0] != q.Question[0] {
			t.Errorf("question %v", got.Question[0])
		}
	}
	if n := root.count(); n != 1 {
		t.Errorf("asked upstream %d times, want 1", n)
	}
}

// TestAliasesShareTheirTarget has clients of two aliases and of their target wait
// for one in-flight query, each for an answer to the own question.
func TestAliasesShareTheirTarget(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	p, root := clusterPlan(t, s, false)
	root.gate = make(chan struct{})
	r := newResolver(t, p)
	names := []string{"mail.shop.svc.cluster.local.", "OTHER.shop.svc.cluster.local.", "twice.shop.svc.cluster.local.", "mail.example.com.", "Mail.shop.svc.cluster.local."}
	var clients []*client
	for i, name := range names {
		c := newClient(r, false)
		c.send(pack(t, question(name, dns.TypeA)))
		clients = append(clients, c)
		if i == 0 {
			c.send(pack(t, question("none.shop.svc.cluster.local.", dns.TypeA))) // the worker goes on to other queries
			<-c.got
		}
	}
	close(root.gate)
	for i, c := range clients {
		got := unpack(t, <-c.got)
		if got.Question[0].Name != names[i] || got.Answer[0].Header().Name != names[i] {
			t.Errorf("%s got\n%v", names[i], got)
		}
		last := got.Answer[len(got.Answer)-1]
		if got.Rcode != 0 || last.Header().Name != "mail.example.com." || last.Header().Rrtype != dns.TypeA {
			t.Errorf("%s got\n%v", names[i], got)
		}
	}
	if n := root.count(); n != 1 {
		t.Errorf("asked upstream %d times, want 1", n)
	}
}

// TestExactTTL keeps the central resolver's TTLs that are below the plan's minimum.
func TestExactTTL(t *testing.T) {
	t.Parallel()
	root := newUpstream(t, "a.example. 1 IN A 192.0.2.1")
	central := newUpstream(t, "a.cluster.local. 1 IN A 192.0.2.2")
	p := plan(t, root)
	p.Routes = append(p.Routes, resolve.Route{Suffix: wireName(t, "cluster.local."), Upstream: central, TTL: bounds(), Exact: true})
	c := newClient(newResolver(t, p), false)
	for name, want := range map[string]uint32{"a.example.": 5, "a.cluster.local.": 1} {
		got := unpack(t, c.exchange(t, pack(t, question(name, dns.TypeA))))
		if ttl := got.Answer[0].Header().Ttl; ttl != want || got.Authoritative {
			t.Errorf("%s: TTL %d, want %d; AA %t", name, ttl, want, got.Authoritative)
		}
	}
}

// TestClusterAllocations are the budgets of what the zone answers, an alias of a
// cached name included.
func TestClusterAllocations(t *testing.T) {
	s := shop(time.Now())
	inSync(s)
	p, _ := clusterPlan(t, s, false)
	r := newResolver(t, p)
	c := newClient(r, false)
	c.exchange(t, pack(t, question("mail.example.com.", dns.TypeA)))
	dst := make([]byte, 0, 4096)
	for _, name := range []string{
		"web.shop.svc.cluster.local.", "none.shop.svc.cluster.local.", "www.example.com.shop.svc.cluster.local.",
		"inner.shop.svc.cluster.local.", "mail.shop.svc.cluster.local.", "7.0.96.10.in-addr.arpa.",
	} {
		q := question(name, dns.TypeA)
		if strings.HasSuffix(name, "arpa.") {
			q.Question[0].Qtype = dns.TypePTR
		}
		q.SetEdns0(1232, false)
		pkt, now := pack(t, q), time.Now()
		if got := testing.AllocsPerRun(200, func() {
			if _, v := c.worker.AnswerFromMemory(pkt, &c.from, now, dst); v != wire.Answered {
				t.Fatalf("%s: verdict %d", name, v)
			}
		}); got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}
