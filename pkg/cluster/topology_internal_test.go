// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestTopology gives federations the topology of the node: from the environment, or from its Node, which is read only if it is needed.
func TestTopology(t *testing.T) {
	t.Setenv("NODE_NAME", "n1")
	cfg := config.Cluster{NodeZone: "", Federations: []config.Federation{{Name: "myfed", Domain: "example.com."}}}
	for _, tt := range []struct {
		name, zone, region string // the environment
		learned            *topology
		suffix             string
		asks               bool
	}{
		{name: "not known yet", asks: true},
		{name: "a zone alone", zone: "a", asks: true},
		{name: "a region alone", region: "east", asks: true},
		{name: "environment", zone: "a", region: "east", suffix: "a.east.example.com."},
		{name: "Node", learned: &topology{"b", "west"}, suffix: "b.west.example.com."},
		{name: "a Node without labels", learned: &topology{}},
		{name: "labels that are no names", learned: &topology{"b..c", "west"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NODE_ZONE", tt.zone)
			t.Setenv("NODE_REGION", tt.region)
			c := &Cluster{Source: new(watch.Watch), Store: zone.NewStore(), location: new(location)}
			c.learned.Store(tt.learned)
			assert.Same(t, "federations", []zone.Federation{{Name: "myfed", Suffix: tt.suffix}}, c.federations(&cfg))
			asks := c.topologyReader(&cfg, time.Now) != nil
			assert.Equal(t, "the Node is read", tt.asks, asks)
		})
	}
}
