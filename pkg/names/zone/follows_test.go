// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Names whose answers the zones alone give.
func TestFollows(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		name   string
		change func(*zone.Config)
		want   bool
	}{
		"a service":                           {"web.shop.svc.cluster.local.", nil, true},
		"a namespace":                         {"shop.svc.cluster.local.", nil, true},
		"a pod":                               {"10-0-0-1.shop.pod.cluster.local.", nil, true},
		"a pod, insecure":                     {"10-0-0-1.shop.pod.cluster.local.", func(c *zone.Config) { c.Pods = zone.PodsInsecure }, false},
		"another service, with insecure pods": {"pod.shop.svc.cluster.local.", func(c *zone.Config) { c.Pods = zone.PodsInsecure }, true},
		"a stub zone":                         {"web.shop.svc.cluster.local.", func(c *zone.Config) { c.Excluded = []string{"shop.svc.cluster.local."} }, false},
		"fallthrough":                         {"web.shop.svc.cluster.local.", func(c *zone.Config) { c.Fallthrough = []string{"cluster.local."} }, false},
		"a federation": {"web.shop.myfed.svc.cluster.local.", func(c *zone.Config) {
			c.Federations = []zone.Federation{{Name: "myfed", Suffix: "example.com."}}
		}, false},
		"a fallback, even if it is empty now": {"web.shop.svc.cluster.local.", func(c *zone.Config) { c.HasFallback = func() bool { return false } }, false},
		"an external zone":                    {"web.shop.cluster.local.", func(c *zone.Config) { c.External = true }, false},
		"another zone":                        {"www.example.com.", nil, false},
		"the bytes of the domain":             {"acluster.local.", nil, false},
		"a reverse name":                      {"1.0.0.10.in-addr.arpa.", nil, true},
		"a reverse name of other ranges":      {"1.2.0.192.in-addr.arpa.", nil, false},
		"a reverse name, by namespaces":       {"1.0.0.10.in-addr.arpa.", func(c *zone.Config) { c.KnownNamespaces = true }, false},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			cfg := zone.Config{Store: zone.NewStore(), Domain: "cluster.local.", Pods: zone.PodsVerified, AllSlices: true, ReverseZones: []string{"10.in-addr.arpa."}}
			if tt.change != nil {
				tt.change(&cfg)
			}
			z, err := zone.New(cfg)
			assert.NoError(t, err)
			name, err := wire.AppendName(nil, tt.name)
			assert.NoError(t, err)
			assert.Equal(t, tt.name, tt.want, zone.Zones{z}.Follows(name))
		})
	}
}
