// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// serversOf are those of a pool by the last number of their address, "-" behind those that are far.
func serversOf(p *upstream.Pool) string {
	var list []string
	for _, s := range p.Stats().Servers {
		ip := s.Addr.Addr().As4()
		list = append(list, strconv.Itoa(int(ip[3]))+map[bool]string{true: "-"}[s.Far])
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestPlanChangesNothing makes plans for a configuration that shares the running one's parts: only one that is adopted changes them.
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	r := emptyGeneration(t)
	r.config.Cluster.NodeZone = "a"
	r.config.Cluster.TransferTo = []config.TransferClient{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}
	c := r.cluster
	c.endpoints = new(upstream.Service)
	pool, err := upstream.New(upstream.Config{Endpoints: c.endpoints.Endpoints()})
	assert.NoError(t, err)
	c.endpoints.Set([]upstream.ServiceEndpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:53"), Zone: "a"}, {Addr: netip.MustParseAddrPort("10.244.0.2:53"), Zone: "b"},
	}, nil)
	b := &builder{log: slog.New(slog.DiscardHandler), loops: upstream.NewLoopDetector(nil), memory: new(memory.Keeper), kernelHas: func([]byte, uint16) bool { return false }}
	plan, err := b.plan(r)
	assert.NoError(t, err)
	assert.Equal(t, "servers after a plan", "1 2", serversOf(pool))
	r.adopt(plan)
	assert.Equal(t, "servers after it is adopted", "1 2-", serversOf(pool))
	serial := c.store.Serial()
	next := *r
	next.config.Cluster.NodeZone, next.config.Cluster.TransferTo = "b", nil
	next.config.Rewrite = []config.Rewrite{{Exact: "a..b", To: "c"}}
	if _, err := b.plan(&next); err == nil {
		t.Error("a plan with a wrong rule is made")
	}
	assert.Equal(t, "servers after a failed plan", "1 2-", serversOf(pool))
	assert.Equal(t, "version of the zone after it", serial, c.store.Serial())
}

// TestLocalTo checks which clients count as local for an address that the agent listens on.
func TestLocalTo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		listen, client string
		want           bool
	}{
		{"169.254.20.10", "169.254.20.10", true},
		{"169.254.20.10", "127.0.0.1", true},
		{"169.254.20.10", "127.9.9.9", true},
		{"169.254.20.10", "::1", true},
		{"169.254.20.10", "::ffff:127.0.0.1", true},
		{"169.254.20.10", "::ffff:169.254.20.10", true},
		{"fe80::10", "fe80::10%eth0", true},
		{"169.254.20.10", "10.244.1.7", false},
		{"169.254.20.10", "0.0.0.0", false},
		{"fd00::10", "fd00::11", false},
		{"0.0.0.0", "127.0.0.1", true},
		{"0.0.0.0", "192.0.2.1", false}, // an address of documents, which no machine has
		{"0.0.0.0", "0.0.0.0", false},
		{"::", "2001:db8::1", false},
	} {
		if got := localClients([]netip.Addr{netip.MustParseAddr(tt.listen)})(netip.MustParseAddr(tt.client)); got != tt.want {
			t.Errorf("listening on %s, %s: %t, want %t", tt.listen, tt.client, got, tt.want)
		}
	}
	for _, own := range localAddrs() {
		if !localClients([]netip.Addr{netip.IPv6Unspecified()})(own) {
			t.Errorf("listening on all addresses, %s is no client here", own)
		}
	}
}
