// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// small fills a store with one object of each kind.
func small(s *zone.Store) {
	now := epoch()
	a := netip.MustParseAddr
	s.PutNamespace("shop", now)
	s.PutService(zone.Service{Namespace: "shop", Name: "web", Addrs: []netip.Addr{a("10.0.0.1")}, Ports: []zone.Port{{Name: "http", Number: 80}}, TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "shop", Name: "empty", Type: zone.Headless, TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "shop", Name: "out", Type: zone.ExternalName, ExternalName: "example.com", TTL: -1}, now)
	s.PutService(zone.Service{Namespace: "shop", Name: "gone", Type: zone.ExternalName, ExternalName: "none.shop.svc.cluster.local", TTL: -1}, now)
	s.PutSlice(zone.Slice{Namespace: "shop", Name: "db-1", Service: "db", Ports: []zone.Port{{Name: "sql", Number: 5432}}, Endpoints: []zone.Endpoint{
		{Addrs: []netip.Addr{a("10.1.0.1")}, Hostname: "db-0", Zone: "east", Ready: true},
		{Addrs: []netip.Addr{a("10.1.0.2")}, Hostname: "db-1", Zone: "west", Ready: false},
	}}, now)
	s.PutPod(zone.Pod{Namespace: "shop", Name: "p", Addrs: []netip.Addr{a("10.2.0.1")}}, now)
}

// A summary holds the relevant parts of an answer.
type summary struct {
	Verdict zone.Verdict
	Rcode   string
	EDE     int
	Records int
}

// storeIn returns the small store and a time at which it is unsynced, restored, stale or fresh.
func storeIn(t *testing.T, state string) (*zone.Store, time.Time) {
	t.Helper()
	s, now := zone.NewStore(), epoch()
	s.Expect(zone.Services, zone.Slices, zone.Namespaces, zone.Pods)
	small(s)
	if state != "unsynced" {
		freshen(s, now)
	}
	switch state {
	case "restored":
		s = restored(t, dump(t, s, now), now)
	case "stale":
		now = now.Add(91 * time.Second)
	}
	return s, now
}

func TestDenials(t *testing.T) {
	t.Parallel()
	const (
		none = wire.EDENone
		ok   = "NOERROR"
		nx   = "NXDOMAIN"
	)
	elsewhere := summary{zone.UseFallback, "", none, 0}
	unready := summary{zone.NotReady, "", 14, 0}
	yes := func(ede, n int) summary { return summary{zone.Answered, ok, ede, n} }
	no := func(rcode string, ede int) summary { return summary{zone.Answered, rcode, ede, 0} }
	same := func(s summary) [2]summary { return [2]summary{s, s} }
	or := func(alone summary) [2]summary { return [2]summary{alone, elsewhere} }
	// By freshness; for each, without and with a fallback.
	tests := []struct {
		name                   string
		rrtype                 uint16
		unsynced, stale, fresh [2]summary
	}{
		{"web.shop.svc", dns.TypeA, same(yes(none, 1)), same(yes(3, 1)), same(yes(none, 1))},
		{"web.shop.svc", dns.TypeAAAA, same(no(ok, none)), same(no(ok, none)), same(no(ok, none))},
		{"none.shop.svc", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"_none._tcp.web.shop.svc", dns.TypeSRV, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"_tcp.web.shop.svc", dns.TypeSRV, same(no(ok, none)), same(no(ok, none)), same(no(ok, none))},
		{"x.web.shop.svc", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"db.shop.svc", dns.TypeA, or(unready), same(yes(3, 1)), same(yes(none, 1))},
		{"db.shop.svc", dns.TypeAAAA, or(unready), or(no(ok, 3)), same(no(ok, none))},
		{"_sql._tcp.db.shop.svc", dns.TypeSRV, or(unready), same(yes(3, 1)), same(yes(none, 1))},
		{"db-0.db.shop.svc", dns.TypeA, same(yes(none, 1)), same(yes(3, 1)), same(yes(none, 1))},
		{"db-1.db.shop.svc", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"empty.shop.svc", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"east.pin._zone.db.shop.svc", dns.TypeA, or(unready), same(yes(3, 1)), same(yes(none, 1))},
		{"west.pin._zone.db.shop.svc", dns.TypeA, or(unready), or(no(ok, 3)), same(no(ok, none))},
		{"out.shop.svc", dns.TypeCNAME, same(yes(none, 1)), same(yes(3, 1)), same(yes(none, 1))},
		{"gone.shop.svc", dns.TypeA, or(unready), or(summary{zone.Answered, nx, 19, 1}), same(summary{zone.Answered, nx, none, 1})},
		{"shop.svc", dns.TypeA, same(no(ok, none)), same(no(ok, none)), same(no(ok, none))},
		{"none.svc", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"10-2-0-1.shop.pod", dns.TypeA, same(yes(none, 1)), same(yes(3, 1)), same(yes(none, 1))},
		{"10-2-0-2.shop.pod", dns.TypeA, or(unready), or(no(nx, 19)), same(no(nx, none))},
		{"10-2-0-256.shop.pod", dns.TypeA, same(no(nx, none)), same(no(nx, none)), same(no(nx, none))},
		{"www.google.com.shop.svc", dns.TypeA, same(no(nx, none)), same(no(nx, none)), same(no(nx, none))},
		{"web.shop.svc.cluster.local.shop.svc", dns.TypeA, same(no(nx, none)), same(no(nx, none)), same(no(nx, none))},
		{"x", dns.TypeA, or(no(nx, none)), or(no(nx, none)), or(no(nx, none))},
		{"dns", dns.TypeA, same(no(ok, none)), same(no(ok, none)), same(no(ok, none))},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+dns.TypeToString[tt.rrtype], func(t *testing.T) {
			t.Parallel()
			for state, want := range map[string][2]summary{"unsynced": tt.unsynced, "restored": tt.stale, "stale": tt.stale, "fresh": tt.fresh} {
				for i, others := range []bool{false, true} {
					s, now := storeIn(t, state)
					have := summaryOf(t, zone.Config{
						Store: s, Pods: zone.PodsVerified, AllSlices: true, HasFallback: func() bool { return others },
					}, tt.name+".cluster.local.", tt.rrtype, now)
					assert.Same(t, fmt.Sprintf("%s, fallback %t", state, others), want[i], have)
				}
			}
		})
	}
}

func summaryOf(t *testing.T, cfg zone.Config, name string, rrtype uint16, now time.Time) summary {
	t.Helper()
	cfg.Domain = "cluster.local."
	z, err := zone.New(cfg)
	assert.NoError(t, err)
	g := ask(t, z, name, rrtype, 0, now)
	return summary{g.Verdict, g.Rcode, g.EDE, len(g.Answer)}
}

func TestUnwatchedKinds(t *testing.T) {
	t.Parallel()
	none := wire.EDENone
	elsewhere := summary{zone.UseFallback, "", none, 0}
	nx := summary{zone.Answered, "NXDOMAIN", none, 0}
	tests := []struct {
		name      string
		expect    []zone.Kind
		allSlices bool
		question  string
		want      [2]summary // without a fallback, with one
	}{
		{"a headless set without slices", []zone.Kind{zone.Services, zone.Namespaces}, false, "empty.shop.svc", [2]summary{nx, elsewhere}},
		{"an endpoint without slices", []zone.Kind{zone.Services, zone.Namespaces}, false, "x.empty.shop.svc", [2]summary{nx, elsewhere}},
		{"a zonal name without slices", []zone.Kind{zone.Services, zone.Namespaces}, false, "a.pin._zone.empty.shop.svc", [2]summary{nx, elsewhere}},
		{"a zonal node without slices", []zone.Kind{zone.Services, zone.Namespaces}, false, "_zone.empty.shop.svc", [2]summary{nx, elsewhere}},
		{"below a ClusterIP service with headless slices only", []zone.Kind{zone.Services, zone.Slices, zone.Namespaces}, false, "x.web.shop.svc", [2]summary{nx, elsewhere}},
		{"below a ClusterIP service with all slices", []zone.Kind{zone.Services, zone.Slices, zone.Namespaces}, true, "x.web.shop.svc", [2]summary{nx, nx}},
		{"a namespace without an object", []zone.Kind{zone.Services, zone.Slices}, false, "none.svc", [2]summary{nx, elsewhere}},
		{"a namespace with a service", []zone.Kind{zone.Services, zone.Slices}, false, "shop.svc", [2]summary{{zone.Answered, "NOERROR", none, 0}, {zone.Answered, "NOERROR", none, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for i, others := range []bool{false, true} {
				s := zone.NewStore()
				small(s)
				freshen(s, epoch())
				s.Expect(tt.expect...)
				have := summaryOf(t, zone.Config{Store: s, AllSlices: tt.allSlices, HasFallback: func() bool { return others }}, tt.question+".cluster.local.", dns.TypeA, epoch())
				assert.Same(t, fmt.Sprintf("fallback %t", others), tt.want[i], have)
			}
		})
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	if age := s.Age(zone.Services, now); age < 100*365*24*time.Hour {
		t.Errorf("never confirmed: age %s, want the longest", age)
	}
	s.ConfirmFresh(zone.Services, now)
	s.ConfirmFresh(zone.Services, now.Add(-time.Minute))
	if age := s.Age(zone.Services, now.Add(time.Second)); age != time.Second {
		t.Errorf("confirmed a second ago: age %s", age)
	}
	s.AddSuspend(time.Hour)
	if age := s.Age(zone.Services, now.Add(time.Second)); age != time.Hour+time.Second {
		t.Errorf("confirmed a second before a suspend of an hour: age %s", age)
	}
	s.ConfirmFresh(zone.Services, s.BootTime(now.Add(time.Second)))
	if age := s.Age(zone.Services, now.Add(2*time.Second)); age != time.Second {
		t.Errorf("confirmed after the suspend: age %s, want 1s", age)
	}
	s.SetAlwaysFresh(zone.Services)
	assert.Equal(t, "a local source: age", 0, s.Age(zone.Services, now.Add(time.Hour)))
	if s.Synced(zone.Services) {
		t.Error("synced before SetSynced")
	}
	s.SetSynced(zone.Services)
	if !s.Synced(zone.Services) || s.Synced(zone.Pods) {
		t.Error("SetSynced of one kind: want that one synced and no other")
	}
}

// TestFreshFor reads how long copies of answers may be used.
func TestFreshFor(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", StaleAfter: time.Minute})
	assert.NoError(t, err)
	for _, step := range []struct {
		name string
		do   func()
		want time.Duration
	}{
		{"nothing is synced", func() {}, 0},
		{"never confirmed", func() { s.SetSynced(zone.Services) }, 0},
		{"confirmed", func() { s.ConfirmFresh(zone.Services, now) }, time.Minute},
		{"later", func() { now = now.Add(20 * time.Second) }, 40 * time.Second},
		{"another kind", func() { s.Expect(zone.Slices) }, 0},
		{"the other kind is confirmed, but not synced", func() { s.ConfirmFresh(zone.Slices, now) }, 0},
		{"the other kind is synced", func() { s.SetSynced(zone.Slices) }, 40 * time.Second},
		{"services are confirmed again", func() { s.ConfirmFresh(zone.Services, now.Add(time.Second)) }, time.Minute},
		{"stale", func() { now = now.Add(61 * time.Second) }, 0},
	} {
		step.do()
		assert.Equal(t, step.name, step.want, zone.Zones{z}.FreshFor(now))
	}
}

func TestReverseRanges(t *testing.T) {
	t.Parallel()
	none := wire.EDENone
	foreign := summary{zone.NotInZone, "", none, 0}
	ptr := summary{zone.Answered, "NOERROR", none, 1}
	nx := summary{zone.Answered, "NXDOMAIN", none, 0}
	empty := summary{zone.Answered, "NOERROR", none, 0}
	elsewhere := summary{zone.UseFallback, "", none, 0}
	tests := []struct {
		name      string
		question  string
		allSlices bool
		want      [2]summary
	}{
		{"a service", "1.0.0.10.in-addr.arpa.", false, [2]summary{ptr, ptr}},
		{"an endpoint", "1.0.1.10.in-addr.arpa.", false, [2]summary{ptr, ptr}},
		{"an endpoint that is not ready", "2.0.1.10.in-addr.arpa.", true, [2]summary{nx, nx}},
		{"unknown, all slices", "9.0.1.10.in-addr.arpa.", true, [2]summary{nx, nx}},
		{"unknown, headless slices", "9.0.1.10.in-addr.arpa.", false, [2]summary{nx, elsewhere}},
		{"out of the ranges", "9.0.1.11.in-addr.arpa.", true, [2]summary{foreign, foreign}},
		{"no whole address", "1.10.in-addr.arpa.", true, [2]summary{empty, foreign}},
		{"below an address", "lb._dns-sd._udp.0.0.1.10.in-addr.arpa.", false, [2]summary{empty, foreign}},
		{"no address, out of the ranges", "1.11.in-addr.arpa.", true, [2]summary{foreign, foreign}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for i, others := range []bool{false, true} {
				s := zone.NewStore()
				small(s)
				freshen(s, epoch())
				have := summaryOf(t, zone.Config{
					Store: s, AllSlices: tt.allSlices, ReverseZones: []string{"10.in-addr.arpa."}, HasFallback: func() bool { return others },
				}, tt.question, dns.TypePTR, epoch())
				assert.Same(t, fmt.Sprintf("fallback %t", others), tt.want[i], have)
			}
		})
	}
}

// TestAnswerStale has a fallback that could not answer.
func TestAnswerStale(t *testing.T) {
	t.Parallel()
	elsewhere := summary{zone.UseFallback, "", wire.EDENone, 0}
	nx := func(ede int) summary { return summary{zone.Answered, "NXDOMAIN", ede, 0} }
	tests := []struct {
		name                   string
		unsynced, stale, fresh summary
	}{
		{"none.shop.svc.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		{"com.none.shop.svc.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		{"10-9-9-9.none.pod.cluster.local.", elsewhere, nx(wire.EDEStaleNXDomain), nx(wire.EDENone)},
		// Never denied by this zone.
		{"x.web.shop.svc.cluster.local.", elsewhere, elsewhere, elsewhere},
		{"x.cluster.local.", elsewhere, elsewhere, elsewhere},
		{"example.com.", summary{zone.NotInZone, "", wire.EDENone, 0}, summary{zone.NotInZone, "", wire.EDENone, 0}, summary{zone.NotInZone, "", wire.EDENone, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for state, want := range map[string]summary{"unsynced": tt.unsynced, "restored": tt.stale, "stale": tt.stale, "fresh": tt.fresh} {
				s, now := storeIn(t, state)
				z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", Pods: zone.PodsInsecure, HasFallback: func() bool { return true }})
				assert.NoError(t, err)
				var q wire.Query
				q.Parse(packet(t, tt.name, dns.TypeA))
				msg, res := zone.Zones{z}.AnswerStale(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: 0}, now, nil)
				have := summary{Verdict: res.Verdict, EDE: res.EDE}
				if res.Verdict == zone.Answered {
					m := parse(t, msg)
					have.Rcode, have.Records = dns.RcodeToString[m.Rcode], len(m.Answer)
				} else if len(msg) > 0 {
					t.Errorf("%s: %d bytes appended, want none", state, len(msg))
				}
				assert.Same(t, state, want, have)
			}
		})
	}
}

// TestUnselected answers names of a headless Service without a selector from its slices if the store gets all of them, and by the
// fallback if it only gets those with the label of headless Services.
func TestUnselected(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	s.PutNamespace("shop", now)
	s.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Unselected, TTL: -1}, now)
	s.PutSlice(zone.Slice{Namespace: "shop", Name: "db-1", Service: "db", Endpoints: []zone.Endpoint{
		{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Hostname: "a", Ready: true},
	}}, now)
	s.PutService(zone.Service{Namespace: "shop", Name: "web", Type: zone.Unselected, TTL: -1}, now)
	answered, denied := summary{zone.Answered, "NOERROR", wire.EDENone, 1}, summary{zone.Answered, "NXDOMAIN", wire.EDENone, 0}
	elsewhere, fails := summary{zone.UseFallback, "", wire.EDENone, 0}, summary{zone.NotReady, "", wire.EDENotReady, 0}
	for _, tt := range []struct {
		labelled, fallback    bool
		known, unknown, empty summary
	}{
		{false, true, answered, denied, denied},
		{false, false, answered, denied, denied},
		{true, true, elsewhere, elsewhere, elsewhere},
		{true, false, answered, denied, fails},
	} {
		cfg := zone.Config{Store: s, LabelledSlices: tt.labelled, HasFallback: func() bool { return tt.fallback }}
		for name, want := range map[string]summary{"db": tt.known, "a.db": tt.known, "b.db": tt.unknown, "web": tt.empty} {
			assert.Same(t, fmt.Sprintf("%s, labelled %t, fallback %t", name, tt.labelled, tt.fallback), want,
				summaryOf(t, cfg, name+".shop.svc.cluster.local.", dns.TypeA, now))
		}
	}
}
