// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestTrace traces queries that rules of other programs drop.
func TestTrace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, firewall string
		v6             bool
		want           []Drop
	}{
		{name: "nobody", firewall: "table inet fw { chain in { type filter hook input priority 0; }; }"},
		{
			name:     "a rule against what is not tracked",
			firewall: "table inet fw { chain in { type filter hook input priority 0; ct state invalid,untracked counter drop comment \"odd\"; }; }",
			want:     []Drop{{Family: "inet", Table: "fw", Chain: "in", Rule: `ct state invalid,untracked drop comment "odd"`}},
		},
		{
			name:     "a chain below",
			firewall: "table ip fw { chain dns { udp dport 53 ip saddr 10.200.0.0/16 reject; }; chain in { type filter hook input priority 0; jump dns; }; }",
			want:     []Drop{{Family: "ip", Table: "fw", Chain: "dns", Rule: "meta l4proto udp dport 53 ip saddr 10.200.0.0/16 reject"}},
		},
		{
			name: "a policy, IPv6", v6: true,
			firewall: "table ip6 fw { chain in { type filter hook input priority 0; policy drop; ip6 nexthdr icmpv6 accept; }; }",
			want:     []Drop{{Family: "ip6", Table: "fw", Chain: "in", Policy: true, Rule: "policy drop"}},
		},
		{
			name:     "against the answer",
			firewall: "table inet fw { chain out { type filter hook output priority 0; udp sport 53 drop; }; }",
			want:     []Drop{{Family: "inet", Table: "fw", Chain: "out", Rule: "meta l4proto udp sport 53 drop"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := linkLocalRules()
			s := newHarness(t, r)
			if out, err := s.Node.Output(t.Context(), "nft", tt.firewall); err != nil {
				t.Fatalf("nft: %v\n%s", err, out)
			}
			apply(t, s.backend, r)
			renew(t, s.backend, r, longLease)
			client, server := s.Pods[0].IPv4, agent4()
			if tt.v6 {
				client, server = s.Pods[0].IPv6, agent6()
			}
			before := ruleset(t, s.Node, "-s", "-t")
			var got []Drop
			err := s.Node.Do(func() (err error) {
				got, err = Trace(t.Context(), client, func(context.Context) error {
					_, failed := nodetest.Ask(s.Pods[0], netip.AddrPortFrom(server, dnsPort), "udp")
					if (failed != nil) != (tt.want != nil) {
						t.Errorf("the query: %v", failed)
					}
					return nil
				})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Drop{}, "Handle")); diff != "" {
				t.Errorf("drops (-want +got):\n%s", diff)
			}
			for _, d := range got {
				if (d.Handle == 0) != d.Policy {
					t.Errorf("%+v: a rule has a handle, a policy none", d)
				}
			}
			if diff := cmp.Diff(before, ruleset(t, s.Node, "-s", "-t")); diff != "" {
				t.Errorf("left behind (-before +after):\n%s", diff)
			}
		})
	}
}
