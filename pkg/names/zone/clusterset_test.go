// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// clusterSet returns the zones of a cluster and of its set, with the stores of both.
func clusterSet(tb testing.TB, own, set *zone.Store, cfg zone.Config) zone.Zones {
	tb.Helper()
	freshen(own, epoch())
	freshen(set, epoch())
	set.Expect(zone.Services, zone.Slices)
	cfg.TTL, cfg.AllSlices = 5*time.Second, true
	first, second := cfg, cfg
	first.Store, first.Domain, first.ReverseZones = own, "cluster.local.", []string{"10.in-addr.arpa."}
	second.Store, second.Domain, second.Cluster = set, "clusterset.local.", own
	var zones zone.Zones
	for _, c := range []zone.Config{first, second} {
		z, err := zone.New(c)
		assert.NoError(tb, err)
		zones = append(zones, z)
	}
	return zones
}

// named is ready with a hostname.
func named(host string, addrs ...string) zone.Endpoint {
	e := ready(addrs...)
	e.Hostname = host
	return e
}

// imported puts a ClusterSetIP import, and a headless one with endpoints in three clusters.
func imported(own, set *zone.Store) {
	now := epoch()
	http := []zone.Port{{Name: "http", Number: 80}, {Number: 9}}
	own.PutNamespace("shop", now)
	own.PutNamespace("empty", now)
	own.PutService(zone.Service{Namespace: "shop", Name: "derived", Addrs: addrs("10.96.0.9"), TTL: -1}, now)
	set.PutService(zone.Service{Namespace: "shop", Name: "web", Addrs: addrs("10.97.0.1", "fd00::1"), Ports: http, TTL: -1}, now)
	set.PutService(zone.Service{Namespace: "shop", Name: "both", Addrs: addrs("10.96.0.9"), TTL: -1}, now)
	set.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, now)
	set.PutService(zone.Service{Namespace: "away", Name: "idle", Type: zone.Headless, TTL: -1}, now)
	put := func(service, cluster string, endpoints ...zone.Endpoint) {
		set.PutSlice(zone.Slice{
			Namespace: "shop", Name: service + "-" + cluster, Service: service, Cluster: cluster, Ports: http, Endpoints: endpoints,
		}, now)
	}
	put("db", "east", named("db-0", "10.1.0.1"), ready("10.1.0.2"))
	put("db", "West", named("db-0", "10.2.0.1", "fd00:2::1"), zone.Endpoint{Addrs: addrs("10.2.0.9"), Hostname: "late"})
	put("db", "north", zone.Endpoint{Addrs: addrs("10.3.0.1"), Hostname: "db-0"})
	put("web", "east", named("web-0", "10.1.0.7"))
}

// TestClusterSet asks for the names of the multicluster DNS specification, and for those that it forbids.
func TestClusterSet(t *testing.T) {
	t.Parallel()
	own, set := zone.NewStore(), zone.NewStore()
	imported(own, set)
	zones := clusterSet(t, own, set, zone.Config{})
	const a, aaaa, srv, ptr, txt = dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT
	tests := []struct {
		name string // below clusterset.local, or absolute
		typ  uint16
		want string // sorted data, NODATA or an rcode
	}{
		{"dns-version", txt, `"1.0.0"`},
		{"dns-version.cluster.local.", txt, `"1.1.0"`},
		{"", dns.TypeNS, "ns.dns.clusterset.local."},
		{"svc", a, "NODATA"},
		{"shop.svc", a, "NODATA"},
		{"empty.svc", a, "NODATA"}, // a namespace is the same in the whole set
		{"away.svc", a, "NODATA"},  // this cluster has no such namespace, another has
		{"nowhere.svc", a, "NXDOMAIN"},

		{"web.shop.svc", a, "10.97.0.1"},
		{"web.shop.svc", aaaa, "fd00::1"},
		{"web.shop.svc", srv, "0 25 80 web.shop.svc.clusterset.local. 0 25 9 web.shop.svc.clusterset.local."}, // as in the cluster's zone
		{"_http._tcp.web.shop.svc", srv, "0 50 80 web.shop.svc.clusterset.local."},
		{"_tcp.web.shop.svc", a, "NODATA"},
		{"_grpc._tcp.web.shop.svc", srv, "NXDOMAIN"},
		{"east.web.shop.svc", a, "NXDOMAIN"},
		{"web-0.east.web.shop.svc", a, "NXDOMAIN"},
		{"10-1-0-7.east.web.shop.svc", a, "NXDOMAIN"},
		{"web.shop.svc.cluster.local.", a, "NXDOMAIN"},

		{"db.shop.svc", a, "10.1.0.1 10.1.0.2 10.2.0.1"},
		{"db.shop.svc", aaaa, "fd00:2::1"},
		{"db-0.east.db.shop.svc", a, "10.1.0.1"},
		{"DB-0.WEST.db.shop.svc", a, "10.2.0.1"},
		{"db-0.west.db.shop.svc", aaaa, "fd00:2::1"},
		{"db-0.east.db.shop.svc", srv, "0 50 80 db-0.east.db.shop.svc.clusterset.local. 0 50 9 db-0.east.db.shop.svc.clusterset.local."},
		{"db-0.east.db.shop.svc", aaaa, "NODATA"},
		{"10-1-0-2.east.db.shop.svc", a, "10.1.0.2"},
		{"10-1-0-2.west.db.shop.svc", a, "NXDOMAIN"},
		{"10-1-0-1.east.db.shop.svc", a, "NXDOMAIN"}, // its name is its hostname
		{"db-0.north.db.shop.svc", a, "NXDOMAIN"},    // not ready
		{"late.west.db.shop.svc", a, "NXDOMAIN"},
		{"db-0.db.shop.svc", a, "NXDOMAIN"},
		{"east.db.shop.svc", a, "NODATA"}, // names are below it
		{"north.db.shop.svc", a, "NXDOMAIN"},
		{"_tcp.db.shop.svc", a, "NODATA"},
		{"x.db-0.east.db.shop.svc", a, "NXDOMAIN"},
		{"pin._zone.db.shop.svc", a, "NXDOMAIN"},
		{"z.pin._zone.db.shop.svc", a, "NXDOMAIN"},
		{"_http._tcp.db.shop.svc", srv, "0 25 80 10-1-0-2.east.db.shop.svc.clusterset.local. " +
			"0 25 80 db-0.east.db.shop.svc.clusterset.local. 0 25 80 db-0.west.db.shop.svc.clusterset.local."},
		{"_http._tcp.db.shop.svc", a, "10.1.0.1 10.1.0.2 10.2.0.1"},
		{"_grpc._tcp.db.shop.svc", srv, "NXDOMAIN"},
		{"http.tcp.db.shop.svc", srv, "NXDOMAIN"}, // an endpoint http in a cluster tcp
		{"idle.away.svc", a, "NXDOMAIN"},          // no endpoint is ready

		{"1.0.97.10.in-addr.arpa.", ptr, "web.shop.svc.clusterset.local."},
		{"9.0.96.10.in-addr.arpa.", ptr, "derived.shop.svc.cluster.local."}, // the cluster's name comes first
		{"1.0.2.10.in-addr.arpa.", ptr, "db-0.west.db.shop.svc.clusterset.local."},
		{"2.0.1.10.in-addr.arpa.", ptr, "10-1-0-2.east.db.shop.svc.clusterset.local."},
		{"7.0.1.10.in-addr.arpa.", ptr, "NXDOMAIN"}, // the endpoint of a ClusterSetIP has no name
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+dns.TypeToString[tt.typ], func(t *testing.T) {
			t.Parallel()
			name := tt.name
			if !strings.HasSuffix(name, ".") {
				name = strings.TrimPrefix(name+".clusterset.local.", ".")
			}
			assert.Same(t, name, tt.want, dataOf(t, zones, name, tt.typ))
		})
	}
}

// dataOf returns the sorted data of the answer, NODATA or the rcode.
func dataOf(t *testing.T, zones zone.Zones, name string, rrtype uint16) string {
	t.Helper()
	var q wire.Query
	q.Parse(packet(t, name, rrtype))
	dst, result := zones.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, epoch(), nil)
	if result.Verdict != zone.Answered {
		return fmt.Sprint("verdict ", result.Verdict)
	}
	m := parse(t, dst)
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	var data []string
	for _, rr := range m.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	if data == nil {
		return "NODATA"
	}
	slices.Sort(data)
	return strings.Join(data, " ")
}

// TestClusterSetNamespaces hides what the cluster does not expose.
func TestClusterSetNamespaces(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  zone.Config
		want string // of the import in a namespace that this cluster does not have
	}{
		{"all", zone.Config{}, "NODATA"},
		{"named", zone.Config{Namespaces: []string{"shop"}}, "NXDOMAIN"},
		{"selected", zone.Config{KnownNamespaces: true}, "NXDOMAIN"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			own, set := zone.NewStore(), zone.NewStore()
			imported(own, set)
			set.PutService(zone.Service{Namespace: "away", Name: "web", TTL: -1}, epoch())
			zones := clusterSet(t, own, set, tt.cfg)
			assert.Same(t, "in shop", "10.97.0.1", dataOf(t, zones, "web.shop.svc.clusterset.local.", dns.TypeA))
			assert.Same(t, "in away", tt.want, dataOf(t, zones, "web.away.svc.clusterset.local.", dns.TypeA))
		})
	}
}

// TestClusterSetUnsynced denies nothing before the imports are complete, and everything that needs no object.
func TestClusterSetUnsynced(t *testing.T) {
	t.Parallel()
	own, set := zone.NewStore(), zone.NewStore()
	freshen(own, epoch())
	set.Expect(zone.Services, zone.Slices)
	z, err := zone.New(zone.Config{Store: set, Domain: "clusterset.local.", Cluster: own, AllSlices: true})
	assert.NoError(t, err)
	for name, want := range map[string]zone.Verdict{
		"web.shop.svc": zone.NotReady, "db-0.east.db.shop.svc": zone.NotReady, "a.b.c.web.shop.svc": zone.Answered, "dns-version": zone.Answered,
	} {
		assert.Same(t, name, want, ask(t, z, name+".clusterset.local.", dns.TypeA, 0, epoch()).Verdict)
	}
}

// TestClusterSetReverseDenials asks for an address that neither the cluster nor the set has. While the set's objects are not
// fresh, the denial is as good as they are.
func TestClusterSetReverseDenials(t *testing.T) {
	t.Parallel()
	elsewhere := summary{zone.UseFallback, "", wire.EDENone, 0}
	for _, tt := range []struct {
		set         string        // state of its objects
		alone, both summary       // without and with a fallback
		age         time.Duration // of the set's objects
	}{
		{"fresh", summary{zone.Answered, "NXDOMAIN", wire.EDENone, 0}, summary{zone.Answered, "NXDOMAIN", wire.EDENone, 0}, 0},
		{"stale", summary{zone.Answered, "NXDOMAIN", 19, 0}, elsewhere, 91 * time.Second},
		{"unsynced", summary{zone.NotReady, "", 14, 0}, elsewhere, 0},
	} {
		t.Run(tt.set, func(t *testing.T) {
			t.Parallel()
			for fallback, want := range map[bool]summary{false: tt.alone, true: tt.both} {
				own, set, now := zone.NewStore(), zone.NewStore(), epoch().Add(tt.age)
				zones := clusterSet(t, own, set, zone.Config{HasFallback: func() bool { return fallback }})
				freshen(own, now)
				if tt.set == "unsynced" {
					z, err := zone.New(zone.Config{Store: zone.NewStore(), Domain: "clusterset.local.", Cluster: own, AllSlices: true})
					assert.NoError(t, err)
					zones[1] = z
				}
				have := askZones(t, zones, packet(t, "9.9.97.10.in-addr.arpa.", dns.TypePTR), 0, now)
				assert.Same(t, fmt.Sprint("fallback ", fallback), want, summary{have.Verdict, have.Rcode, have.EDE, len(have.Answer)})
			}
		})
	}
}

// TestClusterSetRestored dumps and restores the store of a set: the names of endpoints are the same, and a new id of a
// slice's cluster reports the reverse names that it changes.
func TestClusterSetRestored(t *testing.T) {
	t.Parallel()
	own, set := zone.NewStore(), zone.NewStore()
	imported(own, set)
	clusterSet(t, own, set, zone.Config{})
	back := restored(t, dump(t, set, epoch()), epoch())
	if diff := cmp.Diff(sorted(dump(t, set, epoch())), sorted(dump(t, back, epoch()))); diff != "" {
		t.Errorf("dumped again (-want +got):\n%s", diff)
	}
	zones := clusterSet(t, own, back, zone.Config{})
	assert.Same(t, "an endpoint", "10.1.0.1", dataOf(t, zones, "db-0.east.db.shop.svc.clusterset.local.", dns.TypeA))
	l := listen(t, back)
	back.PutSlice(zone.Slice{Namespace: "shop", Name: "db-north", Service: "db", Cluster: "south", Endpoints: []zone.Endpoint{named("db-0", "10.3.0.1")}}, epoch())
	want := []string{"1.0.3.10.in-addr.arpa.", "1.0.3.10.in-addr.arpa.", "db.shop.svc", "db.shop.svc"}
	if diff := cmp.Diff(want, l.take()); diff != "" {
		t.Errorf("notified (-want +got):\n%s", diff)
	}
}

// TestClusterSetTransfer lists the names that the zone answers.
func TestClusterSetTransfer(t *testing.T) {
	t.Parallel()
	own, set := zone.NewStore(), zone.NewStore()
	imported(own, set)
	zones := clusterSet(t, own, set, zone.Config{})
	listed := map[string]bool{}
	assert.NoError(t, zones[1].Transfer(epoch(), func(rr dns.RR) error {
		listed[strings.TrimSuffix(rr.Header().Name, "clusterset.local.")+dns.TypeToString[rr.Header().Rrtype]] = true
		return nil
	}))
	for name, want := range map[string]bool{
		"web.shop.svc.A": true, "_http._tcp.web.shop.svc.SRV": true, "web-0.east.web.shop.svc.A": false,
		"db-0.west.db.shop.svc.AAAA": true, "db-0.north.db.shop.svc.A": false, "dns-version.TXT": true,
	} {
		assert.Same(t, name, want, listed[name])
	}
}

// TestClusterSetAllocatesNothing answers the names of endpoints without memory.
func TestClusterSetAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	own, set := zone.NewStore(), zone.NewStore()
	imported(own, set)
	zones := clusterSet(t, own, set, zone.Config{})
	buf := make([]byte, 0, wire.MaxMessage)
	for _, question := range []struct {
		name string
		typ  uint16
	}{
		{"db.shop.svc.clusterset.local.", dns.TypeA},
		{"db-0.west.db.shop.svc.clusterset.local.", dns.TypeSRV},
		{"_http._tcp.db.shop.svc.clusterset.local.", dns.TypeSRV},
		{"1.0.2.10.in-addr.arpa.", dns.TypePTR},
	} {
		var q wire.Query
		q.Parse(packet(t, question.name, question.typ))
		if n := testing.AllocsPerRun(100, func() { zones.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, epoch(), buf) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", question.name, n)
		}
	}
}

// TestClusterSetWorst has one hostname in very many clusters: the cost of one answer is bounded.
func TestClusterSetWorst(t *testing.T) {
	t.Parallel()
	own, set := zone.NewStore(), zone.NewStore()
	set.PutService(zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}, epoch())
	for i := range 20_000 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		set.PutSlice(zone.Slice{
			Namespace: "shop", Name: fmt.Sprint("db-", i), Service: "db", Cluster: fmt.Sprint("c-", i),
			Endpoints: []zone.Endpoint{{Addrs: []netip.Addr{addr}, Hostname: "db-0", Ready: true}},
		}, epoch())
	}
	zones := clusterSet(t, own, set, zone.Config{})
	var q wire.Query
	q.Parse(packet(t, "db-0.nowhere.db.shop.svc.clusterset.local.", dns.TypeA))
	buf := make([]byte, 0, wire.MaxMessage)
	const most = time.Millisecond // 20,000 slices take more
	took := time.Hour
	for range 20 {
		began := time.Now()
		_, _ = zones.Answer(&q, zone.Client{MaxSize: wire.SafeUDP}, epoch(), buf)
		took = min(took, time.Since(began))
	}
	if took > most {
		t.Errorf("an answer took %s, want at most %s", took, most)
	}
}
