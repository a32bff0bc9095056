// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
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
	assert.NoError(tb, err)
	return z
}

// wireName is the wire form of a name.
func wireName(tb testing.TB, name string) []byte {
	tb.Helper()
	buf := make([]byte, 255)
	n, err := dns.PackDomainName(name, buf, 0, nil, false)
	assert.NoError(tb, err)
	return buf[:n]
}

// clusterPlan has the shop's zone, a central resolver, a stub zone and a root route.
func clusterPlan(tb testing.TB, s *zone.Store, elsewhere bool) *resolve.Plan {
	tb.Helper()
	root := newUpstream(tb, "mail.example.com. 300 IN A 192.0.2.25", "mail.example.com. 300 IN A 192.0.2.26", "db.example. 60 IN A 192.0.2.3")
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
	p := plan(tb, root)
	p.Zones = zone.Zones{view(tb, s, elsewhere)}
	p.Routes = append(p.Routes,
		resolve.Route{Suffix: wireName(tb, "cluster.local."), Upstream: central, TTL: bounds(), Exact: true},
		resolve.Route{Suffix: wireName(tb, "stub.cluster.local."), Upstream: stub, TTL: bounds()})
	return p
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
		{"rewritten.example.", false, "SERVFAIL ede=14"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, tt.elsewhere), func(t *testing.T) {
			t.Parallel()
			p := clusterPlan(t, shop(time.Now()), tt.elsewhere)
			rewriting(t, p, "exact rewritten.example none.shop.svc.cluster.local")
			got := unpack(t, newClient(newResolver(t, p), false).exchange(t, pack(t, query(tt.name, dns.TypeA))))
			if diff := cmp.Diff(tt.want, say(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestClusterAllocations are the budgets of what the zone answers, an alias of a
// cached name included.
func TestClusterAllocations(t *testing.T) {
	s := shop(time.Now())
	inSync(s)
	p := clusterPlan(t, s, false)
	r := newResolver(t, p)
	c := newClient(r, false)
	c.exchange(t, pack(t, question("mail.example.com.", dns.TypeA)))
	for _, name := range []string{
		"web.shop.svc.cluster.local.", "none.shop.svc.cluster.local.", "www.example.com.shop.svc.cluster.local.",
		"inner.shop.svc.cluster.local.", "mail.shop.svc.cluster.local.", "7.0.96.10.in-addr.arpa.",
	} {
		q := question(name, dns.TypeA)
		if strings.HasSuffix(name, "arpa.") {
			q.Question[0].Qtype = dns.TypePTR
		}
		q.SetEdns0(1232, false)
		t.Run(name, func(t *testing.T) { wantNoAllocations(t, c.worker, &c.from, pack(t, q), time.Now()) })
	}
}
