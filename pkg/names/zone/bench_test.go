// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// clusterOf fills a store with ClusterIP services, and with headless ones with a hundred endpoints in each slice.
func clusterOf(services, headless, slicesEach int) *zone.Store {
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	for i := range 50 {
		s.PutNamespace(fmt.Sprint("team-", i), now)
	}
	for i := range services {
		s.PutService(zone.Service{
			Namespace: fmt.Sprint("team-", i%50), Name: fmt.Sprint("service-", i), TTL: -1,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []zone.Port{{Name: "http", Number: 80}, {Name: "metrics", Number: 9090}},
		}, now)
	}
	address := 0
	for i := range headless {
		ns, name := fmt.Sprint("team-", i%50), fmt.Sprint("headless-", i)
		s.PutService(zone.Service{Namespace: ns, Name: name, Type: zone.Headless, TTL: -1}, now)
		for j := range slicesEach {
			sl := zone.Slice{Namespace: ns, Name: fmt.Sprint(name, "-", j), Service: name, Ports: []zone.Port{{Name: "peer", Number: 7000}}}
			for range 100 {
				address++
				sl.Endpoints = append(sl.Endpoints, zone.Endpoint{
					Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(address >> 16), byte(address >> 8), byte(address)})},
					Zone:  fmt.Sprint("zone-", address%3), Ready: true,
				})
			}
			s.PutSlice(sl, now)
		}
	}
	return s
}

// A load is one question with a budget.
type load struct {
	name, question string
	rrtype         uint16
	rcode, answers int
}

func loads() []load {
	return []load{
		{name: "ClusterIP", question: "service-77.team-27.svc.cluster.local.", rrtype: dns.TypeA, answers: 1},
		{name: "NODATA", question: "service-77.team-27.svc.cluster.local.", rrtype: dns.TypeAAAA},
		{name: "denial", question: "kubernetes.default.svc.cluster.local.team-27.svc.cluster.local.", rrtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "denial of a service", question: "example.team-27.svc.cluster.local.", rrtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "headless 10", question: "db.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 10},
		{name: "headless 10 SRV", question: "_peer._tcp.db.team-1.svc.cluster.local.", rrtype: dns.TypeSRV, answers: 10},
		{name: "endpoint", question: "db-3.db.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 1},
		{name: "endpoint of 5000", question: "10-1-134-169.huge.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 1},
		{name: "headless 5000", question: "huge.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 4000},
		{name: "SRV", question: "_http._tcp.service-77.team-27.svc.cluster.local.", rrtype: dns.TypeSRV, answers: 1},
		{name: "PTR", question: "77.0.96.10.in-addr.arpa.", rrtype: dns.TypePTR, answers: 1},
		{name: "PTR of an endpoint", question: "3.0.0.172.in-addr.arpa.", rrtype: dns.TypePTR, answers: 1},
		{name: "pod", question: "10-1-2-3.team-1.pod.cluster.local.", rrtype: dns.TypeA, answers: 1},
		{name: "alias", question: "alias.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 2},
		{name: "zonal", question: "zone-1.pin._zone.db.team-1.svc.cluster.local.", rrtype: dns.TypeA, answers: 3},
		{name: "foreign", question: "www.example.com.", rrtype: dns.TypeA, answers: -1},
	}
}

// benchZone returns a zone with data for every load.
func benchZone(tb testing.TB) *zone.Zone {
	tb.Helper()
	s, now := clusterOf(1000, 10, 1), epoch()
	s.PutService(zone.Service{Namespace: "team-1", Name: "db", Type: zone.Headless, TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "team-1", Name: "huge", Type: zone.Headless, TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "team-1", Name: "alias", Type: zone.ExternalName, ExternalName: "service-77.team-27.svc.cluster.local", TTL: -1}, now)
	db := zone.Slice{Namespace: "team-1", Name: "db", Service: "db", Ports: []zone.Port{{Name: "peer", Number: 7000}}}
	for i := range 10 {
		db.Endpoints = append(db.Endpoints, zone.Endpoint{
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 0, 0, byte(i)})}, Hostname: fmt.Sprint("db-", i), Zone: fmt.Sprint("zone-", i%3), Ready: true,
		})
	}
	s.PutSlice(db, now)
	for i := range 50 {
		huge := zone.Slice{Namespace: "team-1", Name: fmt.Sprint("huge-", i), Service: "huge", Ports: []zone.Port{{Name: "peer", Number: 7000}}}
		for j := range 100 {
			a := 100000 + i*100 + j
			huge.Endpoints = append(huge.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(a >> 16), byte(a >> 8), byte(a)})}, Ready: true})
		}
		s.PutSlice(huge, now)
	}
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", TTL: 5 * time.Second, Pods: zone.PodsInsecure, AllSlices: true, NodeZone: "zone-1"})
	assert.NoError(tb, err)
	return z
}

func BenchmarkAnswer(b *testing.B) {
	z, now := benchZone(b), epoch()
	buf := make([]byte, 0, wire.MaxMessage)
	for _, l := range loads() {
		b.Run(l.name, func(b *testing.B) {
			var q wire.Query
			q.Parse(packet(b, l.question, l.rrtype))
			b.ReportAllocs()
			turn := uint32(0)
			for b.Loop() {
				turn++
				if dst, _ := (zone.Zones{z}).Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: turn}, now, buf); len(dst) == 1 {
					b.Fatal("an answer of one byte")
				}
			}
		})
	}
}

func TestAnswerAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	z, now := benchZone(t), epoch()
	buf := make([]byte, 0, wire.MaxMessage)
	for _, l := range loads() {
		var q wire.Query
		q.Parse(packet(t, l.question, l.rrtype))
		if l.answers >= 0 {
			dst, _ := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 0}, now, buf)
			m := parse(t, dst)
			if m.Rcode != l.rcode || len(m.Answer) < l.answers {
				t.Errorf("%s: %s with %d records, want %s with %d", l.name, dns.RcodeToString[m.Rcode], len(m.Answer), dns.RcodeToString[l.rcode], l.answers)
			}
		}
		if n := testing.AllocsPerRun(100, func() { (zone.Zones{z}).Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 1}, now, buf) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", l.name, n)
		}
	}
}

// Memory budgets in bytes: for a ClusterIP service with two ports, for a headless endpoint, and for 11,000 and 100,000
// of them together.
const (
	budgetService  = 240
	budgetEndpoint = 30
	budgetAll      = 6 << 20
)

func TestMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory would be counted")
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	tests := []struct {
		name               string
		services, headless int
		slices             int
		budget, each       int64
	}{
		{name: "services", services: 11000, budget: budgetService, each: 11000},
		{name: "endpoints", headless: 100, slices: 10, budget: budgetEndpoint, each: 100000},
		{name: "all", services: 11000, headless: 100, slices: 10, budget: budgetAll, each: 1},
	}
	for _, tt := range tests {
		before := heap()
		s := clusterOf(tt.services, tt.headless, tt.slices)
		used := heap() - before
		stats := s.Stats()
		t.Logf("%s: %d bytes, %d each; counted: %+v", tt.name, used, used/tt.each, stats)
		if used/tt.each > tt.budget {
			t.Errorf("%s: %d bytes each, want at most %d", tt.name, used/tt.each, tt.budget)
		}
		counted := stats.Index
		for _, k := range stats.Kinds {
			counted += k.Bytes
		}
		if counted < used*7/10 || counted > used*13/10 {
			t.Errorf("%s: Stats counts %d bytes, the heap grew by %d", tt.name, counted, used)
		}
		runtime.KeepAlive(s)
	}
}
