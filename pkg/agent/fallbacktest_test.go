// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestFallbackTested tests the fallback from a running agent, which would answer the test itself: then the fallback is broken.
func TestFallbackTested(t *testing.T) {
	t.Parallel()
	_, name := intercept.TestNames("cluster.local.")
	central := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Name == name {
			return upstreamtest.Action{Records: []string{q.Name + " 5 IN A 10.96.0.1"}}
		}
		return upstreamtest.Action{Rcode: dns.RcodeRefused}
	})
	for _, tt := range []struct {
		name  string
		loop  bool
		found dataplane.Found
		want  intercept.FallbackState
		why   string
	}{
		{name: "works", want: intercept.FallbackWorks},
		{name: "the agent itself", loop: true, want: intercept.FallbackBroken, why: "over UDP: an agent of this node answers instead of the fallback"},
		{
			name: "on Cilium", found: dataplane.Found{Proxy: dataplane.Cilium, Early: true, Backend: dataplane.BackendNFTables},
			want: intercept.FallbackUnverified, why: "not tested: Cilium handles packets of pods before netfilter",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			if tt.found.Proxy != "" {
				m.found = tt.found
			}
			m.testDial = func(ctx context.Context, network string, to netip.AddrPort, _ uint32) (net.Conn, error) {
				if tt.loop && to.Addr() == cfg.Listen.Addresses[0] {
					return new(net.Dialer).DialContext(ctx, network, to.String())
				}
				return upstreamtest.Network{to: central}.Dial(ctx, network, to)
			}
			a, _ := serveOnHost(t, m, cfg)
			var lease intercept.LeaseStats
			until(t, "the result is there", func() bool {
				lease = a.Status().Node.Intercept.Leases[0]
				return lease.Fallback == tt.want
			})
			if !strings.Contains(lease.FallbackWhy, tt.why) {
				t.Errorf("the reason is %q, want %q", lease.FallbackWhy, tt.why)
			}
			problems := a.Status().Problems
			i := slices.IndexFunc(problems, func(p status.Problem) bool { return p.Reason == status.FallbackBroken })
			if (i >= 0) != (tt.want == intercept.FallbackBroken) || i >= 0 && problems[i].Subject != cfg.Listen.Addresses[0].String() {
				t.Errorf("problems: %+v", problems)
			}
			if err := a.notReady(); err != nil || wayOf(m, &cfg) != intercepttest.ToAgent {
				t.Errorf("the result has an effect: not ready: %v", err)
			}
		})
	}
}
