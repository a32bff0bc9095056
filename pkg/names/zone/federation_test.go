// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestFederations answers the names of a federation from the cluster where the Service has an endpoint.
func TestFederations(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	ready := func(name string, ready bool) zone.Slice {
		return zone.Slice{Namespace: "shop", Name: name, Service: name, Ports: []zone.Port{{Number: 5432}}, Endpoints: []zone.Endpoint{{Addrs: addrs("10.1.0.1"), Hostname: "db-0", Ready: ready}}}
	}
	for _, svc := range []zone.Service{
		{Name: "web", Addrs: addrs("10.96.0.7")},
		{Name: "idle", Addrs: addrs("10.96.0.8")},
		{Name: "db", Type: zone.Headless},
		{Name: "none", Type: zone.Headless},
		{Name: "mail", Type: zone.ExternalName, ExternalName: "mail.example"},
	} {
		svc.Namespace, svc.TTL = "shop", -1
		s.PutService(svc, now)
	}
	for _, sl := range []zone.Slice{ready("web", true), ready("idle", false), ready("db", true), ready("none", false)} {
		s.PutSlice(sl, now)
	}
	cfg := zone.Config{
		Store: s, Domain: "cluster.local.", TTL: 5 * time.Second, AllSlices: true,
		Federations: []zone.Federation{
			{Name: "myfed", Suffix: "zone-a.East.example.com."},
			{Name: "unknown"},
			{Name: "odd", Suffix: "a..b.example.com."},
			{Name: "long", Suffix: strings.Repeat(strings.Repeat("x", 60)+".", 4)},
		},
	}
	unready, err := zone.New(cfg)
	assert.NoError(t, err)
	assert.Same(t, "before the first list", got{Verdict: zone.NotReady, EDE: wire.EDENotReady}, ask(t, unready, "gone.shop.myfed.svc.cluster.local.", dns.TypeA, 0, now))
	freshen(s, now)
	z, err := zone.New(cfg)
	assert.NoError(t, err)
	for _, tt := range []struct{ labels, want string }{
		{"web.shop.myfed", "A 10.96.0.7"},
		{"db.shop.myfed", "A 10.1.0.1"},
		{"idle.shop.myfed", "CNAME idle.shop.myfed.svc.zone-a.east.example.com."},
		{"none.shop.myfed", "CNAME none.shop.myfed.svc.zone-a.east.example.com."},
		{"gone.shop.myfed", "CNAME gone.shop.myfed.svc.zone-a.east.example.com."},
		{"web.else.myfed", "CNAME web.else.myfed.svc.zone-a.east.example.com."},
		{"mail.shop.myfed", "CNAME mail.example."},
		{"web.shop.unknown", "A 10.96.0.7"},
		{"gone.shop.unknown", ""},
		{"gone.shop.odd", ""},
	} {
		name, labels := tt.labels+".svc.cluster.local.", strings.Split(tt.labels, ".")
		here := labels[0] + "." + labels[1] + ".svc.cluster.local."
		want := got{EDE: wire.EDENone, Verdict: zone.Answered, Rcode: "NOERROR", Answer: []string{name + " 5 CNAME " + here, here + " 5 " + tt.want}}
		target, leaves := strings.CutPrefix(tt.want, "CNAME ")
		switch {
		case tt.want == "":
			want = got{Verdict: zone.NotReady, EDE: wire.EDENotReady}
		case leaves:
			want.Verdict, want.Target = zone.Alias, target
		}
		if strings.HasPrefix(target, tt.labels) { // an alias in the federation
			want.Answer = []string{name + " 5 " + tt.want}
		}
		slices.Sort(want.Answer)
		assert.Same(t, name, want, ask(t, z, name, dns.TypeA, 0, now))
	}
	srv := ask(t, z, "db.shop.myfed.svc.cluster.local.", dns.TypeSRV, 0, now)
	assert.Same(t, "ports of endpoints", "db.shop.svc.cluster.local. 5 SRV 0 100 5432 db-0.db.shop.svc.cluster.local.", srv.Answer[len(srv.Answer)-1])
	for _, labels := range []string{"web.shop.other", "a.web.shop.myfed", "shop.myfed", "gone.shop.long"} {
		if g := ask(t, z, labels+".svc.cluster.local.", dns.TypeA, 0, now); g.Rcode != "NXDOMAIN" {
			t.Errorf("%s: %+v, want NXDOMAIN", labels, g)
		}
	}
}
