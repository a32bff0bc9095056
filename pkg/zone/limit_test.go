// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// huge is a slice that takes 80 bytes for each of its addresses: the API server takes one with 1,000 endpoints of 100 addresses.
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

// TestLimit has a tenant put objects without end into one namespace: they take no more than the limit, and no name of another
// namespace is answered in another way.
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
			if diff := cmp.Diff(want, summaryOf(t, cfg, name+".cluster.local.", rrtype, now)); diff != "" {
				t.Errorf("%s, another resolver %t (-want +got):\n%s", name, others, diff)
			}
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

// bytesOf is what a store takes.
func bytesOf(s *zone.Stats) int64 {
	n := s.Index
	for _, k := range s.Kinds {
		n += k.Bytes
	}
	return n
}

// TestRefusedIsNotDumped has the next process not take a refused object for an empty one.
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
