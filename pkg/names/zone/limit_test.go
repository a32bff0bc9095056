// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// huge returns a slice that takes 80 bytes per address: the API server accepts one with 1,000 endpoints of 100 addresses.
func huge(name, service string, endpoints int) zone.Slice {
	sl := zone.Slice{Namespace: "tenant", Name: name, Service: service}
	for i := range endpoints {
		ep := zone.Endpoint{Hostname: fmt.Sprintf("%s%d", strings.Repeat("h", 59), i), Ready: true}
		for j := range 100 {
			ep.Addrs = append(ep.Addrs, netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), byte(j)}))
		}
		sl.Endpoints = append(sl.Endpoints, ep)
	}
	return sl
}

// TestLimit has a tenant put endless objects into one namespace: they take no more than the limit, and the names of other
// namespaces are answered as before.
func TestLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	s, now := zone.NewStore(), epoch()
	s.Limit(limit)
	freshen(s, now)
	small(s)
	shop := s.Stats()
	others := false
	cfg := zone.Config{Store: s, AllSlices: true, HasFallback: func() bool { return others }}
	want := func(name string, rrtype uint16, alone, elsewhere summary) {
		t.Helper()
		for i, want := range []summary{alone, elsewhere} {
			others = i == 1
			assert.Same(t, fmt.Sprintf("%s, another resolver %t", name, others), want, summaryOf(t, cfg, name+".cluster.local.", rrtype, now))
		}
	}
	same := func(name string, rrtype uint16, is summary) { t.Helper(); want(name, rrtype, is, is) }
	yes := func(n int) summary { return summary{zone.Answered, "NOERROR", wire.EDENone, n} }
	denied := summary{zone.Answered, "NXDOMAIN", wire.EDENone, 0}
	refused := func(name string, rrtype uint16) {
		t.Helper()
		want(name, rrtype, summary{zone.NotReady, "", wire.EDENotReady, 0}, summary{zone.UseFallback, "", wire.EDENone, 0})
	}

	ports := zone.Service{Namespace: "tenant", Name: "ports", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, TTL: -1}
	for i := range 60_000 {
		ports.Ports = append(ports.Ports, zone.Port{Name: fmt.Sprintf("p%062d", i), Number: uint16(i + 1)})
	}
	s.PutService(zone.Service{Namespace: "tenant", Name: "fits", Type: zone.Headless, TTL: -1}, now)
	one := zone.Slice{Namespace: "tenant", Name: "fits-1", Service: "fits", Endpoints: []zone.Endpoint{
		{Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")}, Ready: true},
	}}
	s.PutSlice(one, now)
	for i := range 40 {
		name := fmt.Sprintf("s%d", i)
		s.PutService(zone.Service{Namespace: "tenant", Name: name, Type: zone.Headless, TTL: -1}, now)
		s.PutSlice(huge(name+"-1", name, 30), now)
	}
	s.PutService(ports, now)
	full := s.Stats()
	if took := bytesOf(&full) - bytesOf(&shop); took > limit {
		t.Errorf("%d bytes taken, the limit is %d", took, limit)
	}
	if k := full.Kinds[zone.Services]; k.Refused != 1 || k.LastRefused != "tenant/ports" {
		t.Errorf("%d services refused, the last %q, want tenant/ports alone", k.Refused, k.LastRefused)
	}
	if k := full.Kinds[zone.Slices]; k.Refused == 0 || k.Refused == 40 || k.LastRefused != "tenant/s39-1" {
		t.Errorf("%d slices refused, the last %q, want some of 40", k.Refused, k.LastRefused)
	}
	refused("ports.tenant.svc", dns.TypeA)
	refused("s39.tenant.svc", dns.TypeA)
	refused("x.s39.tenant.svc", dns.TypeA)
	same("none.tenant.svc", dns.TypeA, denied)
	same("fits.tenant.svc", dns.TypeA, yes(1))
	same("web.shop.svc", dns.TypeA, yes(1))
	same("db.shop.svc", dns.TypeA, yes(1))
	same("none.shop.svc", dns.TypeA, denied)

	s.Delete(zone.Slices, "tenant", "s39-1", now)
	same("s39.tenant.svc", dns.TypeA, denied)
	for i := range 38 {
		s.Delete(zone.Slices, "tenant", fmt.Sprintf("s%d-1", i), now)
	}
	refused("s38.tenant.svc", dns.TypeA)
	one.Name, one.Service = "s38-1", "s38"
	s.PutSlice(one, now)
	same("s38.tenant.svc", dns.TypeA, yes(1))
	ports.Ports = ports.Ports[:1]
	s.PutService(ports, now)
	same("ports.tenant.svc", dns.TypeA, yes(1))
	if k := s.Stats().Kinds; k[zone.Services].Refused != 0 || k[zone.Slices].Refused != 0 || k[zone.Slices].LastRefused != "" {
		t.Errorf("refused still: %+v", k)
	}
}

// bytesOf returns the bytes that a store takes.
func bytesOf(s *zone.Stats) int64 {
	n := s.Index
	for _, k := range s.Kinds {
		n += k.Bytes
	}
	return n
}

// TestRefusedIsNotDumped checks that the next process does not take a refused object for an empty one.
func TestRefusedIsNotDumped(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	s.Limit(4 << 10)
	s.PutService(zone.Service{Namespace: "tenant", Name: "web", Type: zone.Headless, TTL: -1}, now)
	s.PutSlice(huge("web-1", "web", 1), now)
	if n := len(sorted(dump(t, s, now))); n != 1 || s.Stats().Kinds[zone.Slices].Refused != 1 {
		t.Errorf("%d objects in the dump, want the service alone", n)
	}
}

// TestNamespaceLimit has a tenant put odd Services and EndpointSlices of every kind into one namespace, valid or not. The names of
// other namespaces, of the zone itself and of Services' addresses are answered as before. The tenant can only add PTR
// records for the addresses of others' endpoints, and for addresses outside of the cluster.
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
		ReverseZones: []string{"10.in-addr.arpa."},
	})
	assert.NoError(t, err)
	names := []string{
		"", "svc.", "pod.", "dns.", "ns.dns.", "dns-version.", "cluster.", "shop.svc.", "none.svc.", "web.shop.svc.", "_http._tcp.web.shop.svc.",
		"db.shop.svc.", "db-0.db.shop.svc.", "db-1.db.shop.svc.", "_sql._tcp.db.shop.svc.", "out.shop.svc.", "none.shop.svc.", "evil.shop.svc.",
		"kubernetes.default.svc.", "_https._tcp.kubernetes.default.svc.", "10-2-0-1.shop.pod.", "10-2-0-9.shop.pod.",
	}
	answers := func() map[string]got {
		all := make(map[string]got)
		add := func(name string, rrtype uint16) {
			g := ask(t, z, name, rrtype, 0, now)
			g.Ns, g.Extra = nil, nil // the serial changes, and only the apex's answer contains it
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
	// A slice belongs to a service in its own namespace, whatever its name.
	s.PutSlice(zone.Slice{Namespace: "tenant", Name: "shop/db-1", Service: "db", Endpoints: []zone.Endpoint{{Addrs: odd, Ready: true}}}, now)
	for _, target := range []string{
		"kubernetes.default.svc.cluster.local", "loop.tenant.svc.cluster.local", "self.tenant.svc.cluster.local", "cluster.local", ".", "", "..",
		"127.0.0.1", "fe80::1", strings.Repeat("a.", 150), strings.Repeat("x", 64) + ".example", "a\\.b.example", "a b.example", "\x00.example",
	} {
		put(zone.Service{Name: "self", Type: zone.ExternalName, ExternalName: target})
		put(zone.Service{Name: "loop", Type: zone.ExternalName, ExternalName: "self.tenant.svc.cluster.local"})
		ask(t, z, "self.tenant.svc.cluster.local.", dns.TypeA, 0, now) // this checks the answer's form
		ask(t, z, "loop.tenant.svc.cluster.local.", dns.TypeSRV, 0, now)
	}
	if diff := cmp.Diff(before, answers()); diff != "" {
		t.Errorf("names of others (-before +after):\n%s", diff)
	}

	for addr, want := range map[string]string{
		"1.0.1.10":      "db-0.db.shop.svc.cluster.local.", // an endpoint of shop/db keeps its name beside the tenant's
		"53.2.0.192":    ".tenant.svc.cluster.local.",      // of no object in the cluster
		"10.20.254.169": ".tenant.svc.cluster.local.",      // the agent's own address
	} {
		var all []string // records rotate if they do not fit
		for turn := range uint32(256) {
			all = append(all, ask(t, z, addr+".in-addr.arpa.", dns.TypePTR, turn, now).Answer...)
		}
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("PTR of %s: %q, want %s among it", addr, all, want)
		}
	}
}
