// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// TestPlanChangesNothing makes plans for a configuration that shares the running one's parts: only one that is adopted changes them.
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	r := emptyGeneration(t)
	r.config.Cluster.NodeZone = "a"
	r.config.Cluster.TransferTo = []config.TransferClient{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}
	c := r.cluster
	c.Endpoints = new(upstream.Service)
	pool, err := upstream.New(upstream.Config{Endpoints: c.Endpoints.Endpoints()})
	assert.NoError(t, err)
	c.Endpoints.Set([]upstream.ServiceEndpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:53"), Zone: "a"}, {Addr: netip.MustParseAddrPort("10.244.0.2:53"), Zone: "b"},
	}, nil)
	far := func() (list []netip.AddrPort) {
		for _, s := range pool.Stats().Servers {
			if s.Far {
				list = append(list, s.Addr)
			}
		}
		return list
	}
	b := &builder{log: slog.New(slog.DiscardHandler), loops: upstream.NewLoopDetector(nil), memory: new(memory.Keeper), kernelHas: func([]byte, uint16) bool { return false }}
	plan, err := b.plan(r)
	assert.NoError(t, err)
	assert.Equal(t, "far servers after a plan", "[]", fmt.Sprint(far()))
	r.adopt(plan)
	assert.Equal(t, "far servers after it is adopted", "[10.244.0.2:53]", fmt.Sprint(far()))
	serial := c.Store.Serial()
	next := *r
	next.config.Cluster.NodeZone, next.config.Cluster.TransferTo = "b", nil
	next.config.Rewrite = []config.Rewrite{{Exact: "a..b", To: "c"}}
	if _, err := b.plan(&next); err == nil {
		t.Error("a plan with a wrong rule is made")
	}
	assert.Equal(t, "far servers after a failed plan", "[10.244.0.2:53]", fmt.Sprint(far()))
	assert.Equal(t, "version of the zone after it", serial, c.Store.Serial())
}
