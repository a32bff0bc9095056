// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/iptables"
)

// TestNotracksOnNode has other programs exempt packets from conntrack, and a pod ask without a lease, over UDP and TCP. The test of the
// fallback notices replies only. What [dataplane.Notracks] calls certain keeps pods from the fallback, unless the agent's rules for it
// come first.
func TestNotracksOnNode(t *testing.T) {
	t.Parallel()
	const queries, replies = "ip daddr 169.254.20.10 th dport 53 notrack", "th sport 5301-5302 notrack"
	chain := func(priority, rule string) []string {
		return []string{"nft", "table inet other { chain pre { type filter hook prerouting priority " + priority + "; " + rule + "; }; }"}
	}
	notrack := func(program, to string) []string {
		return []string{program, "-w", "-t", "raw", "-A", "PREROUTING", "-d", to, "-j", "CT", "--notrack"}
	}
	for _, tt := range []struct {
		name    string
		open    func() (intercept.Backend, error)
		command []string
		tracked bool // the pod gets answers where the rules have Track
	}{
		{"nftables, queries", openNftables, chain("-300", queries), true},
		{"nftables, replies", openNftables, chain("-300", replies), true},
		{"nftables, queries, before the agent's rules", openNftables, chain("-315", queries), false},
		{"nftables, replies, before the agent's rules", openNftables, chain("-315", replies), false},
		{"nftables, as another node cache", openNftables, notrack("iptables-nft", "169.254.20.10"), true},
		{"iptables-nft, queries", openIptables(iptables.Nft), chain("-299", queries), true},
		{"iptables-nft, replies", openIptables(iptables.Nft), chain("-299", replies), true},
		{"iptables-nft, queries, before the agent's rules", openIptables(iptables.Nft), chain("-301", queries), false},
		{"iptables-nft, in the same table", openIptables(iptables.Nft), notrack("iptables-nft", "169.254.0.0/16"), true},
		{"iptables-legacy, in the same table", openIptables(iptables.Legacy), notrack("iptables-legacy", "169.254.20.10"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newTesterNode(t, tt.open)
			s.rules.Addresses, s.rules.Fallback = s.rules.Addresses[:1], s.rules.Fallback[:2]
			apply := func(track bool) {
				s.rules.Track = track
				_, err := s.backend.Apply(t.Context(), s.rules)
				assert.NoError(t, err)
			}
			answered := func() bool {
				for _, network := range []string{"udp", "tcp"} {
					if who, _ := nodetest.Ask(s.hosts.Pods[0], netip.AddrPortFrom(s.rules.Addresses[0], 53), network); who != "central" {
						return false
					}
				}
				return true
			}
			notracks := func() (list []dataplane.Notrack) {
				assert.NoError(t, s.hosts.Node.Do(func() (err error) {
					list, err = dataplane.Notracks(dataplane.Flows{Addresses: s.rules.Addresses, Port: 53, Fallback: s.rules.Fallback})
					return err
				}))
				return list
			}
			apply(false)
			if list := notracks(); len(list) != 0 || !answered() {
				t.Errorf("before: %+v, answered: %t", list, answered())
			}
			s.run(tt.command[0], tt.command[1:]...)
			if strings.Contains(tt.name, "replies") {
				s.expect("exempt", intercept.FallbackBroken, "no reply within 2s")
			} else {
				s.expect("exempt", intercept.FallbackWorks, "")
			}
			if list := notracks(); len(list) != 1 || !list[0].Certain || answered() {
				t.Errorf("exempt: %+v, answered: %t", list, answered())
			}
			apply(true)
			if list := notracks(); len(list) != 1 || answered() != tt.tracked {
				t.Errorf("with Track: %+v, answered: %t, want %t", list, answered(), tt.tracked)
			}
		})
	}
}
