// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestDenialReasons denies a name for each reason.
func TestDenialReasons(t *testing.T) {
	t.Parallel()
	store, bare := zone.NewStore(), zone.NewStore()
	ports := []zone.Port{{Name: "http", Number: 80}}
	addr := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	for _, svc := range []zone.Service{
		{Name: "web", Addrs: addr, Ports: ports},
		{Name: "db", Type: zone.Headless},
		{Name: "none", Type: zone.Headless},
		{Name: "out", Type: zone.ExternalName, ExternalName: "a..b"},
		{Name: "a", Type: zone.ExternalName, ExternalName: "b.shop.svc.cluster.local"},
		{Name: "b", Type: zone.ExternalName, ExternalName: "a.shop.svc.cluster.local"},
	} {
		svc.Namespace = "shop"
		store.PutService(svc, epoch())
	}
	store.PutNamespace("shop", epoch())
	store.PutSlice(zone.Slice{
		Namespace: "shop", Name: "db-1", Service: "db", Ports: ports,
		Endpoints: []zone.Endpoint{{Addrs: addr, Hostname: "db-0", Ready: true}},
	}, epoch())
	freshen(store, epoch())
	freshen(bare, epoch())
	bare.Expect(zone.Services, zone.Slices)
	for _, tt := range []struct {
		name   string
		rrtype uint16
		cfg    zone.Config
		want   string
	}{
		{name: "web.shop.svc.cluster.local.", want: ""},
		{name: "web.shop.svc.cluster.local.", rrtype: dns.TypeAAAA, want: "no_type"},
		{name: "svc.cluster.local.", want: "no_type"},
		{name: "web.gone.svc.cluster.local.", want: "no_namespace"},
		{name: "web.gone.svc.cluster.local.", cfg: zone.Config{Store: bare}, want: "no_service"}, // the Namespaces are not watched
		{name: "gone.svc.cluster.local.", want: "no_namespace"},
		{name: "web.gone.svc.cluster.local.", cfg: zone.Config{KnownNamespaces: true}, want: "no_namespace"},
		{name: "web.gone.svc.cluster.local.", cfg: zone.Config{Namespaces: []string{"shop"}}, want: "not_served"},
		{name: "gone.shop.svc.cluster.local.", want: "no_service"},
		{name: "_http._tcp.gone.shop.svc.cluster.local.", want: "no_service"},
		{name: "_http._tcp.gone.gone.svc.cluster.local.", want: "no_namespace"},
		{name: "_smtp._tcp.web.shop.svc.cluster.local.", want: "no_port"},
		{name: "_udp.web.shop.svc.cluster.local.", want: "no_port"},
		{name: "_smtp._tcp.db.shop.svc.cluster.local.", want: "no_port"},
		{name: "_smtp._tcp.none.shop.svc.cluster.local.", want: "no_ready_endpoint"},
		{name: "db-1.db.shop.svc.cluster.local.", want: "no_endpoint"},
		{name: "db-1.web.shop.svc.cluster.local.", want: "no_endpoint"},
		{name: "none.shop.svc.cluster.local.", want: "no_ready_endpoint"},
		{name: "web.shop.svc.cluster.local.", cfg: zone.Config{IgnoreEmpty: true}, want: "no_ready_endpoint"},
		{name: "east.pin._zone.db.shop.svc.cluster.local.", want: "no_ready_endpoint"},
		{name: "out.shop.svc.cluster.local.", want: "bad_external_name"},
		{name: "x.out.shop.svc.cluster.local.", want: "impossible_name"},
		{name: "a.shop.svc.cluster.local.", want: "alias_chain"},
		{name: "www.example.com.shop.svc.cluster.local.", want: "impossible_name"},
		{name: "example.com.cluster.local.", want: "impossible_name"},
		{name: "10-0-0-9.shop.pod.cluster.local.", want: "pods_disabled"},
		{name: "10-0-0-9.shop.pod.cluster.local.", cfg: zone.Config{Pods: zone.PodsVerified}, want: "no_pod"},
		{name: "10-0-0-9.gone.pod.cluster.local.", cfg: zone.Config{Pods: zone.PodsInsecure}, want: "no_namespace"},
		{name: "web-0.shop.pod.cluster.local.", cfg: zone.Config{Pods: zone.PodsInsecure}, want: "impossible_name"},
		{name: "9.0.0.10.in-addr.arpa.", rrtype: dns.TypePTR, want: "no_address"},
		{name: "web.shop.cluster.local.", cfg: zone.Config{External: true}, want: "no_external"},
	} {
		if tt.cfg.Store == nil {
			tt.cfg.Store = store
		}
		tt.cfg.Domain, tt.cfg.AllSlices, tt.cfg.ReverseZones = "cluster.local.", true, []string{"10.in-addr.arpa."}
		z, err := zone.New(tt.cfg)
		assert.NoError(t, err)
		var q wire.Query
		q.Parse(packet(t, tt.name, max(tt.rrtype, dns.TypeA)))
		_, res := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, epoch(), nil)
		assert.Equal(t, tt.name, tt.want, zone.Zones{z}.Explain(res.Denial, q.Name()).String())
	}
}

// TestDenialWords shows that each denial has a word of its own.
func TestDenialWords(t *testing.T) {
	t.Parallel()
	words := zone.Denials()
	list := words[:]
	slices.Sort(list)
	assert.Equal(t, "words", len(words), len(slices.Compact(list)))
}
