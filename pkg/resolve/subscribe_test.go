// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// A name has an owner unless something of the configuration answers for it, of any type.
func TestZoneOwner(t *testing.T) {
	t.Parallel()
	z, err := zone.New(zone.Config{Store: shop(time.Now()), Domain: "cluster.local.", AllSlices: true})
	assert.NoError(t, err)
	p := plan(t, newUpstream(t))
	p.Zones = zone.Zones{z}
	p.Owner = func(name []byte) []byte { return zone.Owner(name, wireName(t, "cluster.local.")) }
	p.Rewrites, err = resolve.NewRewrites([]resolve.Rewrite{{Kind: resolve.RewriteExact, From: "old.shop.svc.cluster.local", To: "web.shop.svc.cluster.local"}})
	assert.NoError(t, err)
	text := func(*localdata.Question) (dns.RR, error) { return dns.NewRR("t.shop.svc.cluster.local. 5 IN TXT x") }
	p.LocalData, err = localdata.New(localdata.Config{
		Names:     map[string][]netip.Addr{"hosts.shop.svc.cluster.local.": {netip.MustParseAddr("192.0.2.1")}},
		Templates: []localdata.Template{{Zone: "t.shop.svc.cluster.local.", Types: []uint16{dns.TypeTXT}, Answer: []func(*localdata.Question) (dns.RR, error){text}}},
		Log:       slog.New(slog.DiscardHandler),
	})
	assert.NoError(t, err)
	r := newResolver(t, p)
	for name, want := range map[string]string{
		"web.shop.svc.cluster.local.":            "web.shop.svc.cluster.local.",
		"_http._tcp.web.shop.svc.cluster.local.": "web.shop.svc.cluster.local.",
		"shop.svc.cluster.local.":                "shop.svc.cluster.local.",
		"missing.shop.svc.cluster.local.":        "missing.shop.svc.cluster.local.",
		"svc.cluster.local.":                     "",
		"www.example.com.":                       "",
		"old.shop.svc.cluster.local.":            "",
		"hosts.shop.svc.cluster.local.":          "",
		"t.shop.svc.cluster.local.":              "",
	} {
		got := ""
		if owner := r.ZoneOwner(wireName(t, name)); owner != nil {
			got, _, err = dns.UnpackDomainName(owner, 0)
			assert.NoError(t, err)
		}
		assert.Equal(t, name, want, got)
	}
}
