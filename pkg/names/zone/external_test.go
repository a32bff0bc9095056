// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// externalZones returns the cluster's zone and two external ones over the store, which is fresh.
func externalZones(t *testing.T, s *zone.Store, change func(cfg *zone.Config)) zone.Zones {
	t.Helper()
	freshen(s, epoch())
	var zs zone.Zones
	for _, domain := range []string{"cluster.local.", "example.org.", "example.net."} {
		cfg := zone.Config{Store: s, Domain: domain, TTL: 5 * time.Second, AllSlices: true, Nameservers: addrs("192.0.2.53", "2001:db8::53")}
		if cfg.External = domain != "cluster.local."; cfg.External {
			change(&cfg)
		}
		z, err := zone.New(cfg)
		assert.NoError(t, err)
		zs = append(zs, z)
	}
	return zs
}

// coreDNSObjects are those of the tests of CoreDNS's k8s_external, and some more.
func coreDNSObjects() *zone.Store {
	s, now := zone.NewStore(), epoch()
	http := []zone.Port{{Name: "http", Number: 80}}
	put := func(svc zone.Service) {
		svc.Namespace, svc.TTL = "testns", -1
		s.PutService(svc, now)
	}
	put(zone.Service{Name: "svc1", Addrs: addrs("10.0.0.1"), ExternalAddrs: addrs("1.2.3.4"), Ports: http})
	put(zone.Service{Name: "svc6", Addrs: addrs("10.0.0.3"), ExternalAddrs: addrs("1:2::5"), Ports: http})
	put(zone.Service{Name: "svc12", Addrs: addrs("10.0.0.5"), ExternalHost: "dummy.hostname", Ports: http})
	put(zone.Service{Name: "svc-headless", Type: zone.Headless, Ports: http})
	put(zone.Service{Name: "headless-external", Type: zone.Headless, ExternalAddrs: addrs("5.6.7.8"), Ports: http})
	put(zone.Service{Name: "inside", Addrs: addrs("10.0.0.6", "9.9.9.9"), Ports: http})
	put(zone.Service{Name: "both", ExternalAddrs: addrs("1.2.3.4", "9.9.9.9"), ExternalHost: "ignored.example"})
	put(zone.Service{Name: "here", ExternalHost: "svc1.testns.example.org"})
	put(zone.Service{Name: "cluster", ExternalHost: "inside.testns.svc.cluster.local"})
	put(zone.Service{Name: "out", Type: zone.ExternalName, ExternalName: "here.testns.example.org"})
	put(zone.Service{Name: "ring", Type: zone.ExternalName, ExternalName: "ring.testns.example.net", ExternalHost: "ring.testns.svc.cluster.local"})
	for _, name := range []string{"svc-headless", "headless-external", "svc1", "inside"} {
		s.PutSlice(zone.Slice{Namespace: "testns", Name: name, Service: name, Ports: http, Endpoints: []zone.Endpoint{
			{Addrs: addrs("10.1.0.4"), Hostname: "endpoint-svc-0", Ready: true}, {Addrs: addrs("10.1.0.5"), Hostname: "endpoint-svc-1", Ready: true},
		}}, now)
	}
	return s
}

// TestExternalNames has the answers of CoreDNS 1.14.7's plugin k8s_external, or says where ours differ.
func TestExternalNames(t *testing.T) {
	t.Parallel()
	const soa = "example.org. 5 SOA ns1.dns.example.org. hostmaster.dns.example.org."
	const svc1 = "svc1.testns.example.org."
	headless := func(owner string) (answer, extra []string) {
		for i := range 2 {
			target := fmt.Sprintf("endpoint-svc-%d.svc-headless.testns.example.org.", i)
			answer = append(answer, fmt.Sprintf("%s 5 SRV 0 50 80 %s", owner, target))
			extra = append(extra, fmt.Sprintf("%s 5 A 10.1.0.%d", target, 4+i))
		}
		return answer, extra
	}
	bare, targets := headless("svc-headless.testns.example.org.")
	byPort, _ := headless("_http._tcp.svc-headless.testns.example.org.")
	nodata := got{Rcode: "NOERROR", Ns: []string{soa}}
	nxdomain := got{Rcode: "NXDOMAIN", Ns: []string{soa}}
	yes := func(answer ...string) got { return got{Rcode: "NOERROR", Answer: answer} }
	tests := []struct {
		name, question string
		rrtype         uint16
		want           got
	}{
		{"address", svc1, dns.TypeA, yes(svc1 + " 5 A 1.2.3.4")},
		{"no address of that family", svc1, dns.TypeAAAA, nodata},
		{"IPv6 address", "svc6.testns.example.org.", dns.TypeAAAA, yes("svc6.testns.example.org. 5 AAAA 1:2::5")},
		{"another zone", "svc1.testns.example.net.", dns.TypeA, yes("svc1.testns.example.net. 5 A 1.2.3.4")},
		{"ports", svc1, dns.TypeSRV, got{Rcode: "NOERROR", Answer: []string{svc1 + " 5 SRV 0 100 80 " + svc1}, Extra: []string{svc1 + " 5 A 1.2.3.4"}}},
		{"port by name", "_http._tcp." + svc1, dns.TypeSRV, got{Rcode: "NOERROR", Answer: []string{"_http._tcp." + svc1 + " 5 SRV 0 100 80 " + svc1}, Extra: []string{svc1 + " 5 A 1.2.3.4"}}},
		{"address by port", "_http._tcp." + svc1, dns.TypeA, yes("_http._tcp." + svc1 + " 5 A 1.2.3.4")},
		{"no such port", "_ftp._tcp." + svc1, dns.TypeSRV, nxdomain},
		{"no protocol", "_http._not-udp-or-tcp." + svc1, dns.TypeSRV, nxdomain},
		{"other type", svc1, dns.TypePTR, nodata},
		{"service with cluster addresses only", "inside.testns.example.org.", dns.TypeA, nxdomain},
		{"endpoint of one", "endpoint-svc-0.inside.testns.example.org.", dns.TypeA, nxdomain}, // CoreDNS has it, though not the name above it
		{"no such service", "svc0.testns.example.org.", dns.TypeA, nxdomain},
		{"of a namespace that does not exist", "svc0.svc-nons.example.org.", dns.TypeA, nxdomain},
		{"namespace", "testns.example.org.", dns.TypeA, nodata},
		{"namespace that does not exist", "svc-nons.example.org.", dns.TypeA, nxdomain},
		{"three labels left of a service", "a.b.c." + svc1, dns.TypeA, nxdomain},
		{"any name below a service", "x." + svc1, dns.TypeA, nxdomain}, // CoreDNS gives the service's addresses
		{"protocol of a port", "_tcp." + svc1, dns.TypeA, nodata},      // likewise
		{"host name", "svc12.testns.example.org.", dns.TypeA, got{Verdict: zone.Alias, Rcode: "NOERROR", Target: "dummy.hostname.", Answer: []string{"svc12.testns.example.org. 5 CNAME dummy.hostname."}}},
		// CoreDNS has an SRV record beside the alias.
		{"host name, any type", "svc12.testns.example.org.", dns.TypeSRV, got{Verdict: zone.Alias, Rcode: "NOERROR", Target: "dummy.hostname.", Answer: []string{"svc12.testns.example.org. 5 CNAME dummy.hostname."}}},
		{"port of a host", "_http._tcp.svc12.testns.example.org.", dns.TypeSRV, yes("_http._tcp.svc12.testns.example.org. 5 SRV 0 100 80 dummy.hostname.")},
		{"address by port of a host", "_http._tcp.svc12.testns.example.org.", dns.TypeA, nodata}, // CoreDNS has an alias beside the SRV record
		{"addresses before a host name", "both.testns.example.org.", dns.TypeA, yes("both.testns.example.org. 5 A 1.2.3.4", "both.testns.example.org. 5 A 9.9.9.9")},
		{"host name in the zone", "here.testns.example.org.", dns.TypeA, yes("here.testns.example.org. 5 CNAME "+svc1, svc1+" 5 A 1.2.3.4")},
		{"host name in the cluster", "cluster.testns.example.org.", dns.TypeA, yes("cluster.testns.example.org. 5 CNAME inside.testns.svc.cluster.local.", "inside.testns.svc.cluster.local. 5 A 10.0.0.6", "inside.testns.svc.cluster.local. 5 A 9.9.9.9")},
		{"alias from the cluster", "out.testns.svc.cluster.local.", dns.TypeA, yes("here.testns.example.org. 5 CNAME "+svc1, "out.testns.svc.cluster.local. 5 CNAME here.testns.example.org.", svc1+" 5 A 1.2.3.4")},
		{"endless chain over two zones", "ring.testns.example.net.", dns.TypeA, got{Rcode: "NOERROR", Ns: []string{strings.ReplaceAll(soa, "example.org", "example.net")}}},
		{"endpoints", "svc-headless.testns.example.org.", dns.TypeA, yes("svc-headless.testns.example.org. 5 A 10.1.0.4", "svc-headless.testns.example.org. 5 A 10.1.0.5")},
		{"ports of endpoints", "svc-headless.testns.example.org.", dns.TypeSRV, got{Rcode: "NOERROR", Answer: bare, Extra: targets}},
		{"port of endpoints by name", "_http._tcp.svc-headless.testns.example.org.", dns.TypeSRV, got{Rcode: "NOERROR", Answer: byPort, Extra: targets}},
		{"endpoint", "endpoint-svc-1.svc-headless.testns.example.org.", dns.TypeA, yes("endpoint-svc-1.svc-headless.testns.example.org. 5 A 10.1.0.5")},
		{"external address of a headless service", "headless-external.testns.example.org.", dns.TypeA, yes("headless-external.testns.example.org. 5 A 5.6.7.8")},
		{"its endpoint", "endpoint-svc-0.headless-external.testns.example.org.", dns.TypeA, nxdomain},
		{"no zonal names", "_zone.svc-headless.testns.example.org.", dns.TypeA, nxdomain},
		{"apex", "example.org.", dns.TypeSOA, yes(soa)},
		{"apex, other type", "example.org.", dns.TypeA, nodata},
		{"name server", "example.org.", dns.TypeNS, got{Rcode: "NOERROR", Answer: []string{"example.org. 5 NS ns1.dns.example.org."}, Extra: []string{"ns1.dns.example.org. 5 A 192.0.2.53", "ns1.dns.example.org. 5 AAAA 2001:db8::53"}}},
		{"its address", "ns1.dns.example.org.", dns.TypeA, yes("ns1.dns.example.org. 5 A 192.0.2.53")},
		{"above the name server", "dns.example.org.", dns.TypeA, nodata},
		{"beside the name server", "ns.dns.example.org.", dns.TypeA, nxdomain},
		{"below the name server", "x.ns1.dns.example.org.", dns.TypeA, nxdomain},
		{"reverse name, in the first zone", "8.7.6.5.in-addr.arpa.", dns.TypePTR, yes("8.7.6.5.in-addr.arpa. 5 PTR headless-external.testns.example.org.")},
		{"reverse name of two", "4.3.2.1.in-addr.arpa.", dns.TypePTR, yes("4.3.2.1.in-addr.arpa. 5 PTR both.testns.example.org.", "4.3.2.1.in-addr.arpa. 5 PTR "+svc1)},
		{"reverse name of a cluster address", "9.9.9.9.in-addr.arpa.", dns.TypePTR, yes("9.9.9.9.in-addr.arpa. 5 PTR inside.testns.svc.cluster.local.")},
		{"reverse name, other type", "8.7.6.5.in-addr.arpa.", dns.TypeA, got{Rcode: "NOERROR", Ns: []string{strings.Replace(soa, "example.org.", "in-addr.arpa.", 1)}}},
		{"reverse name of no service", "1.1.1.1.in-addr.arpa.", dns.TypePTR, got{Verdict: zone.NotInZone}},
	}
	zs := externalZones(t, coreDNSObjects(), func(cfg *zone.Config) { cfg.Headless = true })
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.want.EDE = wire.EDENone; tt.want.Verdict == zone.NotInZone && tt.want.Rcode != "" {
				tt.want.Verdict = zone.Answered
			}
			assert.Same(t, tt.question, normal(tt.want), normal(askZones(t, zs, packet(t, tt.question, tt.rrtype), 0, epoch())))
		})
	}
}

func TestExternalAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	zs, buf := externalZones(t, coreDNSObjects(), func(cfg *zone.Config) { cfg.Headless = true }), make([]byte, 0, wire.MaxMessage)
	for name, rrtype := range map[string]uint16{
		"svc1.testns.example.org.": dns.TypeA, "_http._tcp.svc12.testns.example.org.": dns.TypeSRV, "cluster.testns.example.org.": dns.TypeA,
		"svc-headless.testns.example.org.": dns.TypeSRV, "none.testns.example.org.": dns.TypeA, "4.3.2.1.in-addr.arpa.": dns.TypePTR,
	} {
		var q wire.Query
		q.Parse(packet(t, name, rrtype))
		if n := testing.AllocsPerRun(100, func() { zs.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 1}, epoch(), buf) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// TestFallthrough has names that the external zone does not have, in each state of its data.
func TestFallthrough(t *testing.T) {
	t.Parallel()
	s, now := coreDNSObjects(), epoch()
	zs := externalZones(t, s, func(cfg *zone.Config) { cfg.Fallthrough = []string{cfg.Domain} })
	s.PutService(zone.Service{Namespace: "testns", Name: "gone", ExternalHost: "none.testns.example.org", TTL: -1}, now)
	unsynced := zone.NewStore()
	unsynced.Expect(zone.Services, zone.Slices, zone.Namespaces)
	lost, err := zone.New(zone.Config{Store: unsynced, Domain: "example.org.", External: true, Fallthrough: []string{"example.org."}})
	assert.NoError(t, err)
	elsewhere := got{Verdict: zone.NotInZone, EDE: wire.EDENone}
	for _, tt := range []struct {
		name, question string
		zones          zone.Zones
		late           time.Duration
		want           got
	}{
		{"no such service", "none.testns", zs, 0, elsewhere},
		{"no such service, stale", "none.testns", zs, 2 * time.Minute, elsewhere},
		{"no such service, not synced", "none.testns", zone.Zones{lost}, 0, got{Verdict: zone.NotReady, EDE: wire.EDENotReady}},
		{"impossible name, not synced", "a.b.c.d.e", zone.Zones{lost}, 0, elsewhere},
		{"no such namespace", "none", zs, 0, elsewhere},
		{"headless service", "svc-headless.testns", zs, 0, elsewhere},
		{"below the name server", "x.dns", zs, 0, got{Verdict: zone.Answered, EDE: wire.EDENone, Rcode: "NXDOMAIN", Ns: []string{"example.org. 5 SOA ns1.dns.example.org. hostmaster.dns.example.org."}}},
		{"namespace", "testns", zs, 0, got{Verdict: zone.Answered, EDE: wire.EDENone, Rcode: "NOERROR", Ns: []string{"example.org. 5 SOA ns1.dns.example.org. hostmaster.dns.example.org."}}},
		{"target of a host name", "gone.testns", zs, 0, got{
			Verdict: zone.Alias, EDE: wire.EDENone, Rcode: "NOERROR", Target: "none.testns.example.org.", Answer: []string{"gone.testns.example.org. 5 CNAME none.testns.example.org."},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Same(t, tt.question, normal(tt.want), normal(askZones(t, tt.zones, packet(t, tt.question+".example.org.", dns.TypeA), 0, now.Add(tt.late))))
		})
	}
}

// TestHostileExternals has a tenant write what the API server accepts for the Services of one namespace: its objects take no
// more than the limit, and the names and addresses of others are answered as before.
func TestHostileExternals(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	s, now := coreDNSObjects(), epoch()
	s.Limit(limit)
	zs := externalZones(t, s, func(cfg *zone.Config) { cfg.Headless = true })
	before := s.Stats()
	others := func() (all []got) {
		for _, question := range []string{"svc1.testns.example.org.", "svc12.testns.example.org.", "none.testns.example.org.", "testns.example.org.", "inside.testns.svc.cluster.local."} {
			all = append(all, askZones(t, zs, packet(t, question, dns.TypeA), 0, now))
		}
		return append(all, askZones(t, zs, packet(t, "9.9.9.9.in-addr.arpa.", dns.TypePTR), 0, now)) // of a cluster address
	}
	want := others()

	many := addrs("1.2.3.4", "9.9.9.9", "10.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "fe80::1", "::ffff:1.2.3.4")
	for i := range 10_000 {
		many = append(many, netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}))
	}
	put := func(svc zone.Service) (problem string) {
		svc.Namespace, svc.TTL = "tenant", -1
		s.PutService(svc, now)
		if err := svc.CheckExternal(); err != nil {
			return err.Error()
		}
		return ""
	}
	for _, host := range []string{"..", "a b", "\x00", "1.2.3.4", strings.Repeat("x", 64), strings.Repeat("a.", 150), "self.tenant.example.org", "example.org", "."} {
		problem := put(zone.Service{Name: "self", ExternalHost: host})
		if served := strings.HasSuffix(host, "example.org"); served != (problem == "") || len(problem) > 200 {
			t.Errorf("host name %q: problem %q", host, problem)
		}
		askZones(t, zs, packet(t, "self.tenant.example.org.", dns.TypeA), 0, now) // this checks the answer's form
	}
	for i := range 200 {
		problem := put(zone.Service{Name: fmt.Sprint("s", i), ExternalAddrs: many, Ports: []zone.Port{{Name: "http", Number: 80}}})
		assert.Same(t, "problem", "external addresses: 10006 of a family, at most 1024 are served", problem)
	}
	for i := range 500 {
		put(zone.Service{Name: fmt.Sprint("claim", i), ExternalAddrs: addrs("1.2.3.4")})
	}
	full := s.Stats()
	if took := bytesOf(&full) - bytesOf(&before); took > limit {
		t.Errorf("%d bytes taken, the limit is %d", took, limit)
	}
	if k := full.Kinds[zone.Services]; k.Refused == 0 || !strings.HasPrefix(k.LastRefused, "tenant/") {
		t.Errorf("%d services refused, the last %q, want some of tenant", k.Refused, k.LastRefused)
	}
	assert.Same(t, "answers of others", want, others())
	if _, m := order(t, zs[1], "s0.tenant.example.org.", dns.TypeA, 0); len(m.Answer) != 1024 {
		t.Errorf("%d of 10,000 addresses given, want 1,024", len(m.Answer))
	}
	// The tenant's names are among those of another's address, and do not displace them.
	seen := map[string]bool{}
	for turn := range uint32(2000) {
		g := askZones(t, zs, packet(t, "4.3.2.1.in-addr.arpa.", dns.TypePTR), turn, now)
		if len(g.Answer) == 0 || len(g.Answer) > 32 {
			t.Fatalf("turn %d: %d PTR records, want 1 to 32", turn, len(g.Answer))
		}
		for _, record := range g.Answer {
			seen[record] = true
		}
	}
	if !seen["4.3.2.1.in-addr.arpa. 5 PTR svc1.testns.example.org."] {
		t.Errorf("%d names of the address seen, and not that of its owner", len(seen))
	}
}

// TestExternalChangesNotify checks that only a change inside of the cluster is reported.
func TestExternalChangesNotify(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	svc := zone.Service{Namespace: "shop", Name: "web", Addrs: addrs("10.0.0.1"), Ports: []zone.Port{{Name: "http", Number: 80}}, TTL: -1}
	s.PutService(svc, now)
	l := listen(t, s)
	for _, change := range []func(){
		func() { svc.ExternalHost = "lb.example" },
		func() { svc.ExternalAddrs = addrs("1.2.3.4") },
		func() { svc.ExternalAddrs = addrs("1.2.3.5") },
		func() { svc.ExternalAddrs, svc.ExternalHost = nil, "" },
	} {
		change()
		if !s.PutService(svc, now) {
			t.Fatalf("%+v is no change", svc)
		}
		assert.Same(t, "after an external change", []string(nil), l.take())
	}
	svc.Addrs, svc.ExternalAddrs = addrs("10.0.0.2"), addrs("1.2.3.4")
	s.PutService(svc, now)
	assert.Same(t, "after both", []string{"1.0.0.10.in-addr.arpa.", "2.0.0.10.in-addr.arpa.", "web.shop.svc"}, l.take())
}
