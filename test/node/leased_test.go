// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestLeased asks while the lease is held: the agent answers everybody, and nothing is tracked.
func TestLeased(t *testing.T) {
	t.Parallel()
	for mode, transparent := range map[string]bool{"link-local": false, "transparent": true} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{transparent: transparent})
			b.start(t)
			before := b.fallbackQueries()
			// Connections are tracked here as soon as a rule asks for it, and kube-proxy's do.
			b.run(t, "nft", "add table inet test; add chain inet test c { type filter hook forward priority 0; }; add rule inet test c ct state new counter")
			// What was asked before the lease was held may still be known.
			b.run(t, "conntrack", "-F")
			asked := b.askAll(t, byAgent)
			if n := b.fallbackQueries() - before; n > 0 {
				t.Errorf("%d of %d queries went to the central DNS", n, asked)
			}
			control := netip.AddrPortFrom(b.Upstream.IPv4, 5300)
			if _, err := nodetest.Ask(b.Pods[0], control, "udp"); err != nil {
				t.Fatal(err)
			}
			if flows, err := nodetest.ConntrackOf(b.Node, control); err != nil || len(flows) == 0 {
				t.Errorf("a connection through the node is not tracked, %v, so that the others say nothing", err)
			}
			if tracked := b.tracked(t); len(tracked) > 0 {
				t.Errorf("%d connections are tracked: %v", len(tracked), tracked)
			}
			proctest.Figure(t, "leased, %s: %d of %d answered by the agent", mode, asked, asked)
		})
	}
}

// askAll asks from pods and node, over UDP and TCP, in both families, and wants who to answer.
func (b *harness) askAll(t *testing.T, who string) (asked int) {
	t.Helper()
	for _, from := range append([]*nodetest.Host{b.Node}, b.Pods...) {
		for _, addr := range b.dnsAddrs {
			for _, network := range []string{"udp", "tcp"} {
				for range 5 {
					asked++
					if got, err := nodetest.Ask(from, addr, network); got != who || err != nil {
						if !t.Failed() {
							flows, err := nodetest.ConntrackOf(b.Node, addr)
							flows = slices.DeleteFunc(flows, func(f nodetest.Flow) bool { return f.Dst == addr && f.ReplySrc != addr })
							t.Logf("at %s the rules are:\n%s\nand what is tracked, but not redirected: %v, %v", time.Now().UTC().Format(time.RFC3339Nano), b.rules(t), flows, err)
						}
						t.Errorf("%s asks %s over %s: answered by %q, %v; want %s", from.Name, addr, network, got, err, who)
					}
				}
			}
		}
	}
	return asked
}

// tracked lists the connections of clients that the node tracks. Those of the node itself to the central DNS are tests of the fallback: clients
// that get there are counted by fallbackQueries.
func (b *harness) tracked(t *testing.T) []nodetest.Flow {
	t.Helper()
	var tracked []nodetest.Flow
	for _, addr := range b.dnsAddrs {
		flows, err := nodetest.ConntrackOf(b.Node, addr)
		assert.NoError(t, err)
		for _, f := range flows {
			fromPod := slices.ContainsFunc(b.Pods, func(p *nodetest.Host) bool { return f.Src.Addr() == p.IPv4 || f.Src.Addr() == p.IPv6 })
			central := f.ReplySrc.Addr() != agentIPv4 && f.ReplySrc.Addr() != agentIPv6
			if fromPod || !central {
				tracked = append(tracked, f)
			}
		}
	}
	return tracked
}
