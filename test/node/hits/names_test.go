// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

// A subject is a question about names in memory, and whether the kernel takes its answer.
type subject struct {
	name   string
	rrtype uint16
	taken  bool

	rotates bool // the order of its records changes, or the choice
	partial bool // not all records fit every client: the kernel gives a larger answer, so that it passes the query
}

// subjects are all kinds of answers.
func subjects() []subject {
	list := []subject{
		{name: "web.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true},
		{name: "web.shop.svc.cluster.local.", rrtype: dns.TypeAAAA, taken: true},
		{name: "web.shop.svc.cluster.local.", rrtype: dns.TypeMX, taken: true}, // no such data
		{name: "web.shop.svc.cluster.local.", rrtype: dns.TypeSRV, taken: true},
		{name: "_http._tcp.web.shop.svc.cluster.local.", rrtype: dns.TypeSRV, taken: true},
		{name: "absent.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true},
		{name: "absent.absent.svc.cluster.local.", rrtype: dns.TypeAAAA, taken: true},
		{name: "db.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true, rotates: true},
		{name: "db.shop.svc.cluster.local.", rrtype: dns.TypeAAAA, taken: true, rotates: true},
		{name: "_pg._tcp.db.shop.svc.cluster.local.", rrtype: dns.TypeSRV, taken: true, rotates: true, partial: true},
		{name: "db-3.db.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true},
		{name: "zoned.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true, rotates: true},
		{name: "zoned.shop.svc.cluster.local.", rrtype: dns.TypeAAAA, taken: true, rotates: true},
		{name: "big.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: false, rotates: true},   // too many records
		{name: "outer.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: false, rotates: true}, // leads out
		{name: "inner.shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true},
		{name: "shop.svc.cluster.local.", rrtype: dns.TypeA, taken: true},
		{name: "cluster.local.", rrtype: dns.TypeSOA, taken: true},
		{name: "7.0.96.10.in-addr.arpa.", rrtype: dns.TypePTR, taken: true},
		{name: "8.0.96.10.in-addr.arpa.", rrtype: dns.TypePTR, taken: true}, // unknown
		{name: "11.0.10.10.in-addr.arpa.", rrtype: dns.TypePTR, taken: true, rotates: true},
		{name: "www.test.", rrtype: dns.TypeA, taken: true, rotates: true},
		{name: "www.test.", rrtype: dns.TypeAAAA, taken: true, rotates: true},
		{name: "www.test.", rrtype: dns.TypeTXT, taken: true},
		{name: "www.test.", rrtype: 65280, taken: true},
		{name: "chain1.test.", rrtype: dns.TypeA, taken: true, rotates: true},
		{name: "chain1.test.", rrtype: dns.TypeCNAME, taken: true},
		{name: "short.test.", rrtype: dns.TypeA, taken: true, rotates: true},
		{name: "mail.test.", rrtype: dns.TypeMX, taken: true},
		{name: "absent.test.", rrtype: dns.TypeA, taken: true},
		{name: "absent.test.", rrtype: dns.TypeTXT, taken: true},
		{name: ".", rrtype: dns.TypeNS, taken: true},
		{name: `\128\255\@A.test.`, rrtype: dns.TypeA, taken: true},
		{name: longName(126), rrtype: dns.TypeA, taken: true},
		{name: longName(127), rrtype: dns.TypeA, taken: true},
		{name: longName(128), rrtype: dns.TypeA, taken: true},
		{name: longName(129), rrtype: dns.TypeA, taken: false},
	}
	for size := 445; size < 480; size++ { // around the limits of 512 bytes without EDNS, and 512 and 530 with it
		list = append(list, subject{name: sized(size), rrtype: dns.TypeTXT})
	}
	for size := 670; size < 690; size++ { // around the most bytes that the kernel holds
		list = append(list, subject{name: sized(size), rrtype: dns.TypeTXT})
	}
	for i := range list {
		if size := 0; strings.HasSuffix(list[i].name, ".sized.test.") {
			_, _ = fmt.Sscanf(list[i].name, "t%d", &size)
			list[i].taken = size <= 679
		}
	}
	return list
}

// sized is the name of a TXT record with so many bytes of data.
func sized(size int) string { return fmt.Sprintf("t%03d.sized.test.", size) }

// longName is a name of so many bytes in wire form.
func longName(size int) string {
	rest := size - len(wireName("long.test.")) - 2*51 - 1
	return strings.Repeat("a", rest) + "." + strings.Repeat("b", 50) + "." + strings.Repeat("c", 50) + ".long.test."
}

// cachedRecords are of the upstream.
func cachedRecords() []string {
	list := []string{
		"www.test. 3600 IN A 192.0.2.1", "www.test. 3600 IN A 192.0.2.2", "www.test. 3600 IN A 192.0.2.3",
		"www.test. 3600 IN AAAA 2001:db8::1", "www.test. 3600 IN AAAA 2001:db8::2",
		`www.test. 3600 IN TXT "text"`, `www.test. 3600 IN TYPE65280 \# 2 abcd`,
		"chain1.test. 3600 IN CNAME Chain2.test.", "Chain2.test. 1800 IN CNAME chain3.other.", "chain3.other. 900 IN A 192.0.2.4",
		"chain3.other. 900 IN A 192.0.2.5",
		"mail.test. 3600 IN MX 10 mx1.test.", "mail.test. 3600 IN MX 20 mx2.test.",
		". 3600 IN NS ns.root.", `\128\255\@A.test. 3600 IN A 192.0.2.9`,
	}
	for i := range 4 {
		list = append(list, fmt.Sprintf("short.test. 20 IN A 198.51.100.%d", i))
	}
	for size := 126; size <= 129; size++ {
		list = append(list, fmt.Sprintf("%s 3600 IN A 192.0.2.%d", longName(size), size))
	}
	for _, s := range [][2]int{{445, 480}, {670, 690}} {
		for size := s[0]; size < s[1]; size++ {
			rest, text := size, ""
			for rest > 0 {
				part := min(rest, 256)
				text += ` "` + strings.Repeat("x", part-1) + `"`
				rest -= part
			}
			list = append(list, sized(size)+" 3600 IN TXT"+text)
		}
	}
	return list
}

// newStore has a Service, headless ones, and aliases.
func newStore() *zone.Store {
	now, s := time.Now(), zone.NewStore()
	s.Expect(zone.Services, zone.Slices, zone.Namespaces)
	s.PutNamespace("shop", now)
	http := []zone.Port{{Name: "http", Number: 80}, {Name: "https", Number: 443}}
	s.PutService(zone.Service{Namespace: "shop", Name: "web", TTL: -1, Ports: http, Addrs: []netip.Addr{
		netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00:96::7"),
	}}, now)
	for name, target := range map[string]string{"outer": "www.test", "inner": "web.shop.svc.cluster.local"} {
		s.PutService(zone.Service{Namespace: "shop", Name: name, TTL: -1, Type: zone.ExternalName, ExternalName: target}, now)
	}
	for name, count := range map[string]int{"db": 5, "zoned": 6, "big": 40} {
		putHeadless(s, name, count, now)
	}
	for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
		s.SetSynced(kind)
		s.SetAlwaysFresh(kind)
	}
	return s
}

// putHeadless adds a headless Service with so many endpoints of both families. Those of "zoned" are in the zones a and b in turns.
func putHeadless(s *zone.Store, name string, count int, now time.Time) {
	ports := []zone.Port{{Name: "pg", Number: 5432}}
	s.PutService(zone.Service{Namespace: "shop", Name: name, TTL: -1, Type: zone.Headless, Ports: ports}, now)
	for family, format := range []string{"10.10.0.%d", "fd00:10::%d"} {
		slice := zone.Slice{Namespace: "shop", Name: name + families[family], Service: name, Ports: ports}
		for i := range count {
			addr := netip.MustParseAddr(fmt.Sprintf(format, 10+i))
			e := zone.Endpoint{Addrs: []netip.Addr{addr}, Hostname: fmt.Sprintf("%s-%d", name, i), Ready: true}
			if name == "zoned" {
				e.Zone = string('a' + rune(i%2))
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		s.PutSlice(slice, now)
	}
}
