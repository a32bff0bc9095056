// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestSharedReply asks for copies of replies. There is none of a reply that another client might not get, or that has no fresh
// answer of the zone or the cache behind it.
func TestSharedReply(t *testing.T) {
	t.Parallel()
	const web, none, external = "web.shop.svc.cluster.local.", "none.shop.svc.cluster.local.", "db.example."
	for _, tt := range []struct {
		what, name string
		rrtype     uint16
		change     func(*resolve.Plan, *zone.Store)
		want       string // "", or the source, and whether only the object's change ends it
	}{
		{what: "Service", name: web, rrtype: dns.TypeA, want: "zone true"},
		{what: "other type", name: web, rrtype: dns.TypeTXT, want: "zone false"},
		{what: "denial", name: none, rrtype: dns.TypeA, want: "zone false"},
		{what: "reverse name", name: "7.0.96.10.in-addr.arpa.", rrtype: dns.TypePTR, want: "zone false"},
		{what: "no SOA record", name: web, rrtype: dns.TypeSOA, want: "zone false"},
		{what: "name without an owner", name: "dns-version.cluster.local.", rrtype: dns.TypeTXT, want: "zone false"},
		{what: "alias in the zone", name: "inner.shop.svc.cluster.local.", rrtype: dns.TypeA, want: "zone false", change: func(_ *resolve.Plan, s *zone.Store) {
			s.PutService(zone.Service{
				Namespace: "shop", Name: "inner", TTL: -1, Type: zone.ExternalName, ExternalName: strings.TrimSuffix(web, "."),
			}, time.Now())
		}},
		{what: "any type", name: web, rrtype: dns.TypeANY},
		{what: "cached", name: external, rrtype: dns.TypeA, want: "cache false"},
		{what: "cached, and in a zone of etcd", name: external, rrtype: dns.TypeA, change: func(p *resolve.Plan, _ *zone.Store) {
			s, err := skydns.New(skydns.Config{Prefix: "/", Zones: []string{"example."}, Onward: true})
			assert.NoError(t, err)
			s.Use(s.NewRecords())
			p.SkyDNS = s
		}},
		{what: "alias out of the zone", name: "mail.shop.svc.cluster.local.", rrtype: dns.TypeA},
		{what: "not cached", name: "unknown.example.", rrtype: dns.TypeA},
		{what: "search path", name: none, rrtype: dns.TypeA, change: func(p *resolve.Plan, _ *zone.Store) { p.SearchPath = true }},
		{what: "search path, IPv6", name: none, rrtype: dns.TypeAAAA, change: func(p *resolve.Plan, _ *zone.Store) { p.SearchPath = true }},
		{what: "search path, no address", name: none, rrtype: dns.TypeTXT, change: func(p *resolve.Plan, _ *zone.Store) { p.SearchPath = true }, want: "zone false"},
		{what: "search path, no denial", name: web, rrtype: dns.TypeA, change: func(p *resolve.Plan, _ *zone.Store) { p.SearchPath = true }, want: "zone true"},
		{what: "DNS64", name: web, rrtype: dns.TypeAAAA, change: func(p *resolve.Plan, _ *zone.Store) { making(t, p, false) }},
		{what: "rewrite", name: "other.example.", rrtype: dns.TypeA, change: func(p *resolve.Plan, _ *zone.Store) {
			rewriting(t, p, "exact other.example "+strings.TrimSuffix(web, "."))
		}},
		{what: "hosts", name: web, rrtype: dns.TypeA, change: func(p *resolve.Plan, _ *zone.Store) {
			p.LocalData = fixed(t, map[string]string{"web.shop.svc.cluster.local": "192.0.2.77"})
		}},
		{what: "zone that is not synced", name: web, rrtype: dns.TypeA, change: func(_ *resolve.Plan, s *zone.Store) { s.Expect(zone.Pods) }},
		{what: "stale zone", name: web, rrtype: dns.TypeA, change: func(_ *resolve.Plan, s *zone.Store) { s.AddSuspend(time.Hour) }},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s := shop(time.Now())
			for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
				s.SetSynced(kind)
				s.ConfirmFresh(kind, time.Now())
			}
			p := clusterPlan(t, s, false)
			p.Owner = func(name []byte) []byte { return zone.Owner(name, wireName(t, "cluster.local.")) }
			if tt.change != nil {
				tt.change(p, s)
			}
			r, pkt := newResolver(t, p), pack(t, query(tt.name, tt.rrtype))
			if tt.name == external {
				newClient(r, false).exchange(t, pkt)
			}
			before := r.Stats()
			reply, shared, ok := r.NewWorker().SharedReply(pkt, time.Now(), nil)
			assert.Equal(t, "queries counted", before.Queries, r.Stats().Queries)
			got := ""
			if ok {
				got = fmt.Sprint(resolve.Sources()[shared.Source], " ", shared.Single)
				assert.Equal(t, "reply", say(unpack(t, newClient(r, false).exchange(t, pkt))), say(unpack(t, reply)))
			}
			assert.Equal(t, "copy", tt.want, got)
		})
	}
}
