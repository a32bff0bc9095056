// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/zone"
)

// TestTenant has somebody put every kind of odd Service and EndpointSlice into one namespace, whether the API server lets it pass or
// not. The names of other namespaces, of the zone itself and of Services' addresses are answered as before. What the tenant can do is
// to add PTR records for the addresses of others' endpoints, and for addresses outside of the cluster.
func TestNamespaceLimit(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	small(s)
	s.PutNamespace("default", now)
	s.PutNamespace("tenant", now)
	s.PutService(zone.Service{Namespace: "default", Name: "kubernetes", Addrs: []netip.Addr{a("10.0.0.254")}, Ports: []zone.Port{{Name: "https", Number: 443}}, TTL: -1}, now)
	z, err := zone.New(zone.Config{
		Store: s, Domain: "cluster.local.", Pods: zone.PodsVerified, AllSlices: true, Nameservers: []netip.Addr{a("169.254.20.10")},
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{
		"", "svc.", "pod.", "dns.", "ns.dns.", "dns-version.", "cluster.", "shop.svc.", "none.svc.", "web.shop.svc.", "_http._tcp.web.shop.svc.",
		"db.shop.svc.", "db-0.db.shop.svc.", "db-1.db.shop.svc.", "_sql._tcp.db.shop.svc.", "out.shop.svc.", "none.shop.svc.", "evil.shop.svc.",
		"kubernetes.default.svc.", "_https._tcp.kubernetes.default.svc.", "10-2-0-1.shop.pod.", "10-2-0-9.shop.pod.",
	}
	answers := func() map[string]got {
		all := make(map[string]got)
		add := func(name string, rrtype uint16) {
			g := ask(t, z, name, rrtype, 0, now)
			g.Ns, g.Extra = nil, nil // the serial moves, and is in no answer but the apex's
			if rrtype != dns.TypeSOA {
				all[name+" "+dns.TypeToString[rrtype]] = g
			}
		}
		for _, name := range names {
			for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeNS, dns.TypeCNAME} {
				add(name+"cluster.local.", rrtype)
			}
		}
		for _, addr := range []string{"1.0.0.10", "254.0.0.10"} { // of web, of kubernetes
			add(addr+".in-addr.arpa.", dns.TypePTR)
		}
		return all
	}
	before := answers()

	odd := []netip.Addr{
		{},
		a("0.0.0.0"), a("127.0.0.1"), a("169.254.20.10"), a("224.0.0.1"), a("255.255.255.255"), a("10.0.0.1"), a("10.0.0.254"),
		a("10.1.0.1"), a("192.0.2.53"), a("::"), a("::1"), a("fe80::1"), a("ff02::1"), a("::ffff:10.0.0.1"), a("2001:db8::1"),
	}
	put := func(svc zone.Service) {
		svc.Namespace, svc.TTL = "tenant", 0
		s.PutService(svc, now)
	}
	for _, name := range []string{
		"svc", "pod", "dns", "ns", "cluster", "local", "default", "kubernetes", "shop", "web", "db", "_tcp", "_zone", "arpa", "evil",
		"WEB", "a.b", "web.shop", "", strings.Repeat("x", 64),
	} {
		put(zone.Service{Name: name, Type: zone.Headless, PublishNotReady: true})
		s.PutSlice(zone.Slice{
			Namespace: "tenant", Name: "slice of " + name, Service: name,
			Ports: []zone.Port{{Name: "sql", Number: 5432}, {Name: "a.b", Number: 1}, {Name: "_http", Number: 2}, {Name: strings.Repeat("x", 64), Number: 3}, {Number: 0}},
			Endpoints: []zone.Endpoint{
				{Addrs: odd, Hostname: "db-0"},
				{Addrs: odd, Hostname: "db-0.db.shop.svc.cluster.local", Pod: "a.b", Zone: "east.svc.cluster.local"},
				{Addrs: odd, Hostname: "10-0-0-1", Zone: strings.Repeat("x.", 200)},
				{Addrs: odd, Hostname: "_tcp", Pod: "\x00\xff"},
			},
		}, now)
	}
	// A slice is of the service of its own namespace, whatever it is called.
	s.PutSlice(zone.Slice{Namespace: "tenant", Name: "shop/db-1", Service: "db", Endpoints: []zone.Endpoint{{Addrs: odd, Ready: true}}}, now)
	for _, target := range []string{
		"kubernetes.default.svc.cluster.local", "loop.tenant.svc.cluster.local", "self.tenant.svc.cluster.local", "cluster.local", ".", "", "..",
		"127.0.0.1", "fe80::1", strings.Repeat("a.", 150), strings.Repeat("x", 64) + ".example", "a\\.b.example", "a b.example", "\x00.example",
	} {
		put(zone.Service{Name: "self", Type: zone.ExternalName, ExternalName: target})
		put(zone.Service{Name: "loop", Type: zone.ExternalName, ExternalName: "self.tenant.svc.cluster.local"})
		ask(t, z, "self.tenant.svc.cluster.local.", dns.TypeA, 0, now) // which checks the answer's form
		ask(t, z, "loop.tenant.svc.cluster.local.", dns.TypeSRV, 0, now)
	}
	if diff := cmp.Diff(before, answers()); diff != "" {
		t.Errorf("names of others (-before +after):\n%s", diff)
	}

	for addr, want := range map[string]string{
		"1.0.1.10":      "db-0.db.shop.svc.cluster.local.", // an endpoint of shop/db keeps its name beside the tenant's
		"53.2.0.192":    ".tenant.svc.cluster.local.",      // of nothing in the cluster
		"10.20.254.169": ".tenant.svc.cluster.local.",      // the agent's own
	} {
		var all []string // records rotate where they do not fit
		for turn := range uint32(256) {
			all = append(all, ask(t, z, addr+".in-addr.arpa.", dns.TypePTR, turn, now).Answer...)
		}
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("PTR of %s: %q, want %s among it", addr, all, want)
		}
	}
}
