// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// worstStore returns a store with the most expensive sets.
func worstStore() *zone.Store {
	s, now := zone.NewStore(), epoch()
	headless := func(name string) {
		s.PutService(zone.Service{Namespace: "shop", Name: name, Type: zone.Headless, TTL: -1}, now)
	}
	// fill puts n endpoints, changed by edit, into slices of each.
	fill := func(name string, n, each int, ports []zone.Port, edit func(i int, e *zone.Endpoint)) {
		headless(name)
		for at := 0; at < n; at += each {
			sl := zone.Slice{Namespace: "shop", Name: fmt.Sprint(name, "-", at), Service: name, Ports: ports}
			for i := at; i < at+each; i++ {
				e := zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}, Ready: true}
				if edit != nil {
					edit(i, &e)
				}
				sl.Endpoints = append(sl.Endpoints, e)
			}
			s.PutSlice(sl, now)
		}
	}
	for i := range 1000 {
		fill(fmt.Sprint("claim-", i), 1, 1, nil, func(_ int, e *zone.Endpoint) { e.Addrs[0] = netip.MustParseAddr("172.16.0.1") })
	}
	fill("one-name", 3000, 1000, []zone.Port{{Name: "p", Number: 7}}, func(_ int, e *zone.Endpoint) { e.Hostname = "same" })
	ports := make([]zone.Port, 100)
	for i := range ports {
		ports[i] = zone.Port{Name: fmt.Sprint("p", i), Number: uint16(i + 1)}
	}
	fill("ports", 5000, 100, ports, func(i int, e *zone.Endpoint) { e.Hostname = fmt.Sprint("pod-", i) })
	fill("many", 5000, 100, nil, nil)
	fill("near", 5000, 100, nil, func(i int, e *zone.Endpoint) { e.Zone = []string{"west", "east", "south"}[i%3] })
	fill("small-slices", 5000, 1, ports, func(i int, e *zone.Endpoint) { e.Hostname = fmt.Sprint("pod-", i) })
	fill("unready", 20000, 1000, nil, func(i int, e *zone.Endpoint) { e.Ready = i%1000 == 999 })
	fill("one-address", 20000, 1000, nil, func(i int, e *zone.Endpoint) {
		e.Addrs[0], e.Hostname = netip.MustParseAddr("172.16.0.2"), fmt.Sprint("pod-", i)
	})
	fill("few-slices", 200, 10, nil, func(i int, e *zone.Endpoint) {
		e.Addrs[0], e.Hostname = netip.MustParseAddr("172.16.0.3"), fmt.Sprint("pod-", i)
	})
	return s
}

// A worstCase is a question about one of the sets of worstStore.
type worstCase struct {
	name, question string
	rrtype         uint16
	some           bool // records are given
	limited        bool // the budget does not cover all of them
}

func worstCases() []worstCase {
	const d = ".shop.svc.cluster.local."
	return []worstCase{
		{"PTR of an address in 1,000 Services", "1.0.16.172.in-addr.arpa.", dns.TypePTR, true, false},
		{"other type at that name", "1.0.16.172.in-addr.arpa.", dns.TypeTXT, false, false},
		{"3,000 endpoints of one hostname", "one-name" + d, dns.TypeA, true, false},
		{"3,000 endpoints of one hostname, by it", "same.one-name" + d, dns.TypeA, true, false},
		{"SRV of 3,000 endpoints of one hostname", "one-name" + d, dns.TypeSRV, true, true},
		{"SRV of 5,000 endpoints and 100 ports", "ports" + d, dns.TypeSRV, true, false},
		{"SRV of 5,000 endpoints and the last port", "_p99._tcp.ports" + d, dns.TypeSRV, true, false},
		{"SRV of one of 5,000 endpoints", "pod-4711.ports" + d, dns.TypeSRV, true, false},
		{"no such port of 5,000 endpoints", "_none._tcp.ports" + d, dns.TypeSRV, false, false},
		{"5,000 addresses", "many" + d, dns.TypeA, true, false},
		{"no such type at 5,000 addresses", "many" + d, dns.TypeAAAA, false, false},
		{"5,000 addresses, a third near", "near" + d, dns.TypeA, true, false},
		{"one of 5,000 slices by name", "pod-4711.small-slices" + d, dns.TypeA, true, false},
		{"none of 5,000 slices by name", "none.small-slices" + d, dns.TypeA, false, false},
		{"none of 5,000 slices by protocol", "_udp.small-slices" + d, dns.TypeA, false, false},
		{"20 ready of 20,000", "unready" + d, dns.TypeA, true, true},
		{"20,000 endpoints of one address", "one-address" + d, dns.TypeA, true, true},
		{"PTR of 20,000 hostnames", "2.0.16.172.in-addr.arpa.", dns.TypePTR, true, false},
	}
}

func worstZone(tb testing.TB) *zone.Zone {
	tb.Helper()
	s := worstStore()
	freshen(s, epoch())
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", AllSlices: true, NodeZone: "east"})
	assert.NoError(tb, err)
	return z
}

// BenchmarkWorst measures the most expensive answers over UDP and TCP.
func BenchmarkWorst(b *testing.B) {
	z, now := worstZone(b), epoch()
	buf := make([]byte, 0, wire.MaxMessage)
	for _, w := range worstCases() {
		for _, c := range []struct {
			name string
			room int
		}{{"UDP", wire.SafeUDP}, {"TCP", wire.MaxMessage}} {
			b.Run(w.name+"/"+c.name, func(b *testing.B) {
				var q wire.Query
				q.Parse(packet(b, w.question, w.rrtype))
				b.ReportAllocs()
				turn := uint32(0)
				for b.Loop() {
					turn++
					if dst, _ := (zone.Zones{z}).Answer(&q, zone.Client{MaxSize: c.room, Rotation: turn}, now, buf); len(dst) > c.room {
						b.Fatalf("%d bytes", len(dst))
					}
				}
			})
		}
	}
}

// TestWorst checks that the budget counts every step of an answer: its cost does not depend on what the zone holds.
func TestWorst(t *testing.T) {
	t.Parallel()
	z, now := worstZone(t), epoch()
	buf := make([]byte, 0, wire.MaxMessage)
	for _, w := range worstCases() {
		var q wire.Query
		q.Parse(packet(t, w.question, w.rrtype))
		for turn := range uint32(100) {
			dst, result := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.SafeUDP, Rotation: turn}, now, buf)
			if result.Verdict != zone.Answered && w.some {
				t.Fatalf("%s: verdict %d", w.name, result.Verdict)
			}
			if len(dst) == 0 {
				continue // not in the zone
			}
			m := parse(t, dst)
			if len(dst) > wire.SafeUDP || len(m.Answer) == 0 && w.some {
				t.Fatalf("%s: %d bytes with %d records, want some and at most %d bytes", w.name, len(dst), len(m.Answer), wire.SafeUDP)
			}
			if short := result.Limited && w.rrtype != dns.TypePTR; short != w.limited || w.limited && !m.Truncated {
				t.Fatalf("%s, turn %d: short %t, TC %t, want short %t with TC", w.name, turn, short, m.Truncated, w.limited)
			}
			if m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && len(m.Ns) == 0 && !m.Truncated {
				t.Fatalf("%s: an empty answer without TC or SOA", w.name)
			}
		}
	}
}

// TestPTRsAreBounded has an address with more names than are given: they change with each rotation.
func TestPTRsAreBounded(t *testing.T) {
	t.Parallel()
	z := worstZone(t)
	for question, names := range map[string]int{"1.0.16.172.in-addr.arpa.": 1000, "2.0.16.172.in-addr.arpa.": 1000, "3.0.16.172.in-addr.arpa.": 200} {
		var q wire.Query
		q.Parse(packet(t, question, dns.TypePTR))
		seen := map[string]bool{}
		for turn := range uint32(400) {
			dst, result := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: turn}, epoch(), nil)
			m := parse(t, dst)
			if len(m.Answer) != 32 || m.Truncated || !result.Limited {
				t.Fatalf("%s: %d records, TC %t, short %t; want 32 of more without TC", question, len(m.Answer), m.Truncated, result.Limited)
			}
			for _, record := range m.Answer {
				seen[record.String()] = true
			}
		}
		if len(seen) < names {
			t.Errorf("%s: %d names seen in 400 turns, want %d", question, len(seen), names)
		}
	}
}

// TestHostNameIsFirst gives the host name of a pod first, whatever other names its address has: a pod that looks its own name up must
// not find another one each time.
func TestHostNameIsFirst(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	endpoint := func(service, addr, hostname string, ready bool) {
		s.PutService(zone.Service{Namespace: "shop", Name: service, Type: zone.Headless, TTL: -1}, now)
		s.PutSlice(zone.Slice{Namespace: "shop", Name: service + addr, Service: service, Endpoints: []zone.Endpoint{
			{Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Hostname: hostname, Ready: ready},
		}}, now)
	}
	for i := range 100 { // more names than are given
		endpoint(fmt.Sprint("other-", i), "10.0.0.1", "", true)
	}
	endpoint("db", "10.0.0.1", "db-0", true)
	endpoint("metrics", "10.0.0.2", "", true)
	endpoint("db", "10.0.0.2", "db-1", true)
	endpoint("metrics", "10.0.0.3", "", true)
	endpoint("db", "10.0.0.3", "db-2", false) // it has no name
	endpoint("db", "2001:db8::1", "db-0", true)
	endpoint("metrics", "2001:db8::1", "", true)
	endpoint("a", "10.0.0.4", "same", true)
	endpoint("b", "10.0.0.4", "same", true)
	endpoint("c", "10.0.0.4", "", true)
	freshen(s, now)
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", AllSlices: true})
	assert.NoError(t, err)
	for _, tt := range []struct {
		addr    string
		records int
		firsts  []string // each is the first one at times
	}{
		{"10.0.0.1", 32, []string{"db-0.db"}},
		{"10.0.0.2", 2, []string{"db-1.db"}},
		{"10.0.0.3", 1, []string{"10-0-0-3.metrics"}},
		{"2001:db8::1", 2, []string{"db-0.db"}},
		{"10.0.0.4", 3, []string{"same.a", "same.b"}},
	} {
		reverse, err := dns.ReverseAddr(tt.addr)
		assert.NoError(t, err)
		var q wire.Query
		q.Parse(packet(t, reverse, dns.TypePTR))
		firsts := map[string]int{}
		for turn := range uint32(400) {
			dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: turn}, now, nil)
			m := parse(t, dst)
			assert.Equal(t, tt.addr+": records", tt.records, len(m.Answer))
			firsts[m.Answer[0].(*dns.PTR).Ptr]++
		}
		for _, name := range tt.firsts {
			if firsts[name+".shop.svc.cluster.local."] < 100 || len(firsts) != len(tt.firsts) {
				t.Errorf("%s: the first names were %v, want %v", tt.addr, firsts, tt.firsts)
			}
		}
	}
}

// TestTruncatedSetsRotate checks that clients that accept a part of a set get all of it over time, even if they ask only
// every second or fifth time.
func TestTruncatedSetsRotate(t *testing.T) {
	t.Parallel()
	z, buf := worstZone(t), make([]byte, 0, wire.MaxMessage)
	tests := []struct {
		name  string
		whole int
	}{
		{"one-name", 3000}, {"same.one-name", 3000}, {"many", 5000}, {"near", 5000/3 + 1},
	}
	for _, tt := range tests {
		for _, c := range []struct{ room, turns int }{{wire.SafeUDP, 600}, {wire.MaxMessage, 20}} {
			for _, stride := range []int{1, 2, 5} {
				var q wire.Query
				q.Parse(packet(t, tt.name+".shop.svc.cluster.local.", dns.TypeA))
				seen := map[[4]byte]bool{}
				for i := range c.turns {
					dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: c.room, Rotation: uint32(1 + i*stride)}, epoch(), buf)
					for records := dst[wire.HeaderLen+len(q.Name())+4:]; len(records) > 0; records = records[16:] {
						seen[[4]byte(records[12:16])] = true
					}
				}
				if len(seen) < tt.whole {
					t.Errorf("%s in %d bytes, every turn of %d: %d addresses in %d answers, want %d", tt.name, c.room, stride, len(seen), c.turns, tt.whole)
				}
			}
		}
	}
}
