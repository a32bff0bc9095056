// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// droppedOwners are the owners that an observer has heard of.
type droppedOwners map[string]bool

func (d droppedOwners) Changing()                 {}
func (d droppedOwners) OwnerChanged(owner []byte) { d[string(owner)] = true }
func (d droppedOwners) Changed()                  {}

// TestClusterSetEvents changes objects that names of a cluster set depend on: what the cache has of each name is dropped.
func TestClusterSetEvents(t *testing.T) {
	t.Parallel()
	dropped := droppedOwners{}
	m := &Maker{Memory: new(memory.Keeper), Observer: dropped}
	domains, err := wireNames([]string{"cluster.local.", "clusterset.local."})
	assert.NoError(t, err)
	c := &Cluster{Domains: domains[:1], setDomain: domains[1]}
	m.makeStore(c, &config.Cluster{Resolver: config.ResolverLocal, ClusterSet: "clusterset.local."})
	c.setOwner(false)
	now := time.Now()
	web := zone.Service{Namespace: "shop", Name: "web", Addrs: []netip.Addr{netip.MustParseAddr("10.97.0.1")}, TTL: -1}
	db := zone.Slice{Namespace: "shop", Name: "db-east", Service: "db", Cluster: "east", Endpoints: []zone.Endpoint{{
		Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Hostname: "db-0", Ready: true,
	}}}
	for _, tt := range []struct {
		event  string
		change func() bool
		names  []string
	}{
		{"an import", func() bool { return c.Set.PutService(web, now) }, []string{"_http._tcp.web.shop.svc.clusterset.local.", "1.0.97.10.in-addr.arpa."}},
		{"a slice of an import", func() bool { return c.Set.PutSlice(db, now) }, []string{"db-0.east.db.shop.svc.clusterset.local."}},
		{"a Namespace", func() bool { return c.Store.PutNamespace("new", now) }, []string{"new.svc.clusterset.local."}},
		{"the Namespace is gone", func() bool { return c.Store.Delete(zone.Namespaces, "", "new", now) }, []string{"new.svc.clusterset.local."}},
		{"the first Service of a namespace", func() bool { return c.Store.PutService(web, now) }, []string{"shop.svc.clusterset.local."}},
		{"the import is gone", func() bool { return c.Set.Delete(zone.Services, "shop", "web", now) }, []string{"web.shop.svc.clusterset.local."}},
	} {
		clear(dropped)
		assert.Equal(t, tt.event+" is a change", true, tt.change())
		for _, text := range tt.names {
			name, err := wireName(text)
			assert.NoError(t, err)
			assert.Equal(t, tt.event+" drops "+text, true, dropped[string(c.Owner(name))])
		}
	}
	held := c.Held().Kinds
	assert.Same(t, "imports and their slices", []int64{0, 1}, []int64{held[zone.Imports].Objects, held[zone.ImportSlices].Objects})
}
