// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// order queries the zone and returns the addresses in the order of the message.
func order(t *testing.T, z *zone.Zone, name string, rrtype uint16, turn uint32) (list []string, m *dns.Msg) {
	t.Helper()
	var q wire.Query
	q.Parse(packet(t, name, rrtype))
	dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: turn}, epoch(), nil)
	m = parse(t, dst)
	for _, record := range m.Answer {
		switch record := record.(type) {
		case *dns.A:
			list = append(list, record.A.String())
		case *dns.AAAA:
			list = append(list, record.AAAA.String())
		}
	}
	return list, m
}

// zoneOf returns a zone over a store with fresh data.
func zoneOf(t *testing.T, s *zone.Store, cfg zone.Config) *zone.Zone {
	t.Helper()
	freshen(s, epoch())
	cfg.Store, cfg.Domain = s, "cluster.local."
	z, err := zone.New(cfg)
	assert.NoError(t, err)
	return z
}

func TestEveryAddressIsFirstInTurn(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 10} {
		s := zone.NewStore()
		svc := zone.Service{Namespace: "shop", Name: "web", TTL: -1}
		s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, epoch())
		for i := range n {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))} {
				svc.Addrs = append(svc.Addrs, a)
				s.PutSlice(zone.Slice{Namespace: "shop", Name: fmt.Sprint("db-", i%3, a.Is4()), Service: "db"}, epoch())
			}
		}
		for part := range 3 {
			for _, four := range []bool{true, false} {
				sl := zone.Slice{Namespace: "shop", Name: fmt.Sprint("db-", part, four), Service: "db"}
				for i := part; i < n; i += 3 {
					for _, a := range svc.Addrs[2*i : 2*i+2] {
						if a.Is4() == four {
							sl.Endpoints = append(sl.Endpoints, zone.Endpoint{Addrs: []netip.Addr{a}, Ready: true})
						}
					}
				}
				s.PutSlice(sl, epoch())
			}
		}
		s.PutService(svc, epoch())
		z := zoneOf(t, s, zone.Config{})
		for _, name := range []string{"web.shop.svc.cluster.local.", "db.shop.svc.cluster.local."} {
			for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				firsts := map[string]int{}
				for turn := range 3 * uint32(n) {
					list, _ := order(t, z, name, rrtype, turn)
					firsts[list[0]]++
					slices.Sort(list)
					if len(slices.Compact(list)) != n {
						t.Fatalf("%s: %d addresses, want %d", name, len(list), n)
					}
				}
				for a, times := range firsts {
					assert.Equal(t, fmt.Sprintf("%s: times that %s is first, of %d", name, a, 3*n), 3, times)
				}
			}
		}
	}
}

func TestEndpointsOfTheNodesZoneComeFirst(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, epoch())
	near := map[string]bool{}
	for part := range 3 {
		sl := zone.Slice{Namespace: "shop", Name: fmt.Sprint("db-", part), Service: "db"}
		for i := range 6 {
			e := zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(part), byte(i)})}, Zone: []string{"east", "West", ""}[i%3], Ready: true}
			near[e.Addrs[0].String()] = e.Zone == "West"
			sl.Endpoints = append(sl.Endpoints, e)
		}
		s.PutSlice(sl, epoch())
	}
	z := zoneOf(t, s, zone.Config{NodeZone: "west"})
	nearFirst, farFirst := map[string]int{}, map[string]int{}
	for turn := range uint32(12 * 6) {
		list, _ := order(t, z, "db.shop.svc.cluster.local.", dns.TypeA, turn)
		if len(list) != 18 {
			t.Fatalf("%d addresses, want 18", len(list))
		}
		for i, a := range list {
			if near[a] != (i < 6) {
				t.Fatalf("turn %d: %s at place %d of %v", turn, a, i, list)
			}
		}
		nearFirst[list[0]]++
		farFirst[list[6]]++
	}
	if len(nearFirst) != 6 || len(farFirst) != 12 {
		t.Errorf("%d near and %d far addresses led their group, want 6 and 12", len(nearFirst), len(farFirst))
	}
}

func TestSetsThatNoMessageHolds(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	s.PutService(zone.Service{Namespace: "shop", Name: "huge", Type: zone.Headless, TTL: -1}, epoch())
	for part := range 60 {
		sl := zone.Slice{Namespace: "shop", Name: fmt.Sprint("huge-", part), Service: "huge", Ports: []zone.Port{{Name: "p", Number: 1}}}
		for i := range 100 {
			sl.Endpoints = append(sl.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(part), byte(i)})}, Ready: true})
		}
		s.PutSlice(sl, epoch())
	}
	wide := zone.Service{Namespace: "shop", Name: "wide", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, TTL: -1}
	for i := range 2000 {
		wide.Ports = append(wide.Ports, zone.Port{Name: fmt.Sprint("p", i), Number: uint16(i + 1)})
	}
	s.PutService(wide, epoch())
	z := zoneOf(t, s, zone.Config{})
	tests := []struct {
		question     string
		rrtype       uint16
		least, most  int
		whole, turns int // total records, and rotations after which each was in some answer
	}{
		{"huge.shop.svc.cluster.local.", dns.TypeA, 4000, 5999, 6000, 60},
		{"huge.shop.svc.cluster.local.", dns.TypeSRV, 500, 5999, 0, 1},
		{"wide.shop.svc.cluster.local.", dns.TypeSRV, 500, 1999, 0, 1},
	}
	for _, tt := range tests {
		seen := map[string]bool{}
		for turn := range uint32(tt.turns) {
			list, m := order(t, z, tt.question, tt.rrtype, turn)
			for _, a := range list {
				seen[a] = true
			}
			if n := len(m.Answer); n < tt.least || n > tt.most || !m.Truncated {
				t.Fatalf("%s %s: %d records, TC %t; want %d to %d with TC", tt.question, dns.TypeToString[tt.rrtype], n, m.Truncated, tt.least, tt.most)
			}
		}
		assert.Equal(t, fmt.Sprintf("%s: addresses seen in %d turns", tt.question, tt.turns), tt.whole, len(seen))
	}
}

// TestDuplicateNeedsNoRoom has an endpoint in two slices and a message that holds its records once.
func TestDuplicateNeedsNoRoom(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, epoch())
	for _, name := range []string{"db-1", "db-2"} {
		s.PutSlice(zone.Slice{Namespace: "shop", Name: name, Service: "db", Ports: []zone.Port{{Name: "p", Number: 1}}, Endpoints: []zone.Endpoint{
			{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ready: true}, {Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Ready: true},
		}}, epoch())
	}
	z := zoneOf(t, s, zone.Config{})
	for _, rrtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		var q wire.Query
		q.Parse(packet(t, "db.shop.svc.cluster.local.", rrtype))
		whole, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, epoch(), nil)
		for size := len(whole); size > 0; size-- {
			dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: size}, epoch(), nil)
			m := parse(t, dst)
			if len(dst) > max(size, 12+len(q.Name())+4) || m.Truncated != (len(m.Answer) < 2) {
				t.Fatalf("%s in %d bytes: %d records in %d bytes, TC %t", dns.TypeToString[rrtype], size, len(m.Answer), len(dst), m.Truncated)
			}
		}
	}
}

func TestNamesTooLongForATarget(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	domain := strings.Repeat(strings.Repeat("d", 61)+".", 3) // 187 bytes in wire form
	ns, name := strings.Repeat("n", 20), "db"
	s.PutService(zone.Service{Namespace: ns, Name: name, Type: zone.Headless, TTL: -1}, epoch())
	s.PutSlice(zone.Slice{Namespace: ns, Name: "s", Service: name, Ports: []zone.Port{{Name: "p", Number: 7}}, Endpoints: []zone.Endpoint{
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Hostname: strings.Repeat("h", 63), Ready: true},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Hostname: "h", Ready: true},
	}}, epoch())
	freshen(s, epoch())
	z, err := zone.New(zone.Config{Store: s, Domain: domain})
	assert.NoError(t, err)
	base := name + "." + ns + ".svc." + domain
	g := ask(t, z, base, dns.TypeSRV, 0, epoch())
	want := []string{base + " 0 SRV 0 50 7 h." + base}
	assert.Same(t, "SRV", want, g.Answer)
	if g := ask(t, z, "1.0.0.10.in-addr.arpa.", dns.TypePTR, 0, epoch()); g.Verdict != zone.NotInZone {
		t.Errorf("PTR to a name that is too long: %+v, want NotInZone", g)
	}
	if err := z.Transfer(epoch(), func(dns.RR) error { return nil }); err != nil {
		t.Errorf("transfer: %v", err)
	}
}

func TestAliases(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	alias := func(name, target string) {
		s.PutService(zone.Service{Namespace: "chain", Name: name, Type: zone.ExternalName, ExternalName: target, TTL: 9 * time.Second}, now)
	}
	for i := 1; i <= 10; i++ {
		alias(fmt.Sprint("a", i), fmt.Sprintf("a%d.chain.svc.cluster.local", i-1))
	}
	alias("a0", "web.shop.svc.cluster.local")
	alias("self", "self.chain.svc.cluster.local")
	alias("ping", "pong.chain.svc.cluster.local")
	alias("pong", "ping.chain.svc.cluster.local")
	alias("address", "10.0.0.1")
	alias("bad", "a..b")
	alias("root", ".")
	alias("server", "ns.dns.cluster.local")
	z := zoneOf(t, s, zone.Config{AllSlices: true, Nameservers: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}})
	type result struct {
		Verdict zone.Verdict
		Rcode   string
		Target  string
		Answers int
		SOA     bool
	}
	tests := []struct {
		name, question string
		rrtype         uint16
		want           result
	}{
		{"eight aliases", "a7.chain", dns.TypeA, result{zone.Answered, "NOERROR", "", 9, false}},
		{"nine aliases are endless", "a8.chain", dns.TypeA, result{zone.Answered, "NOERROR", "", 0, true}},
		{"an alias of itself", "self.chain", dns.TypeA, result{zone.Answered, "NOERROR", "", 0, true}},
		{"a loop", "ping.chain", dns.TypeAAAA, result{zone.Answered, "NOERROR", "", 0, true}},
		{"the record of a loop", "ping.chain", dns.TypeCNAME, result{zone.Answered, "NOERROR", "", 1, false}},
		{"the addresses of the name server", "server.chain", dns.TypeA, result{zone.Answered, "NOERROR", "", 3, false}},
		{"no address of the name server", "server.chain", dns.TypeAAAA, result{zone.Answered, "NOERROR", "", 1, true}},
		{"no data at the end", "a0.chain", dns.TypeAAAA, result{zone.Answered, "NOERROR", "", 1, true}},
		{"no name at the end", "gone.shop", dns.TypeA, result{zone.Answered, "NXDOMAIN", "", 1, true}},
		{"out of the zone", "out.shop", dns.TypeA, result{zone.Alias, "NOERROR", "example.com.", 1, false}},
		{"out of the zone, by any type", "out.shop", dns.TypeHTTPS, result{zone.Alias, "NOERROR", "example.com.", 1, false}},
		{"below an alias", "x.out.shop", dns.TypeA, result{zone.Answered, "NXDOMAIN", "", 0, true}},
		{"a port of an alias", "_http._tcp.out.shop", dns.TypeSRV, result{zone.Answered, "NXDOMAIN", "", 0, true}},
		{"SRV through an alias", "a0.chain", dns.TypeSRV, result{zone.Answered, "NOERROR", "", 2, false}},
		{"an address for a target", "address.chain", dns.TypeA, result{zone.Answered, "NXDOMAIN", "", 0, true}},
		{"a malformed target", "bad.chain", dns.TypeA, result{zone.Answered, "NXDOMAIN", "", 0, true}},
		{"the root for a target", "root.chain", dns.TypeA, result{zone.Answered, "NXDOMAIN", "", 0, true}},
	}
	for _, tt := range tests {
		g := ask(t, z, tt.question+".svc.cluster.local.", tt.rrtype, 1, now)
		assert.Same(t, tt.name, tt.want, result{g.Verdict, g.Rcode, g.Target, len(g.Answer), len(g.Ns) == 1})
	}
}

func TestExcludedNames(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	small(s)
	s.PutService(zone.Service{Namespace: "shop", Name: "stub", Type: zone.ExternalName, ExternalName: "web.stub.cluster.local", TTL: -1}, epoch())
	z := zoneOf(t, s, zone.Config{AllSlices: true, Excluded: []string{"Stub.cluster.local", "db.shop.svc.cluster.local."}})
	tests := []struct {
		question string
		want     zone.Verdict
	}{
		{"stub.cluster.local.", zone.NotInZone},
		{"web.stub.cluster.local.", zone.NotInZone},
		{"xstub.cluster.local.", zone.Answered},
		{"db.shop.svc.cluster.local.", zone.NotInZone},
		{"db-0.DB.shop.svc.cluster.local.", zone.NotInZone},
		{"web.shop.svc.cluster.local.", zone.Answered},
		{"stub.shop.svc.cluster.local.", zone.Alias},
	}
	for _, tt := range tests {
		if g := ask(t, z, tt.question, dns.TypeA, 0, epoch()); g.Verdict != tt.want {
			t.Errorf("%s: verdict %d, want %d", tt.question, g.Verdict, tt.want)
		}
	}
	assert.NoError(t, z.Transfer(epoch(), func(record dns.RR) error {
		if dns.IsSubDomain("db.shop.svc.cluster.local.", record.Header().Name) {
			t.Errorf("transferred, but excluded: %s", record)
		}
		return nil
	}))
}

// TestDenialIsNotTruncated queries types without data at an address with more PTR records than fit.
func TestDenialIsNotTruncated(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, epoch())
	sl := zone.Slice{Namespace: "shop", Name: "db-0", Service: "db"}
	for i := range 1000 {
		sl.Endpoints = append(sl.Endpoints, zone.Endpoint{
			Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Hostname: fmt.Sprintf("%060d", i), Ready: true,
		})
	}
	s.PutSlice(sl, epoch())
	z := zoneOf(t, s, zone.Config{})
	for _, tt := range []struct {
		rrtype uint16
		want   bool
	}{
		{dns.TypePTR, true},
		{dns.TypeTXT, false},
		{dns.TypeA, false},
	} {
		var q wire.Query
		q.Parse(packet(t, "1.0.0.10.in-addr.arpa.", tt.rrtype))
		dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.SafeUDP}, epoch(), nil)
		m := parse(t, dst)
		if m.Truncated != tt.want || (len(m.Answer) > 0) != tt.want {
			t.Errorf("%s: %d records, TC %t; want records and TC %t", dns.TypeToString[tt.rrtype], len(m.Answer), m.Truncated, tt.want)
		}
	}
}
