// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

func services(v6 bool) Chain {
	return Chain{V6: v6, Table: "nat", Name: "KUBE-SERVICES"}
}

func hint() Chain { return Chain{Table: "mangle", Name: "KUBE-IPTABLES-HINT"} }

// TestFind compares with a file what is concluded from traces.
func TestFind(t *testing.T) {
	t.Parallel()
	denied := errors.New("operation not permitted")
	noIPTables := func(b string) error {
		if b == "iptables-nft" {
			return errors.New("no program iptables")
		}
		return nil
	}
	var all strings.Builder
	for _, tt := range []struct {
		name   string
		traces Traces
		usable func(string) error
	}{
		{name: "nothing"},
		{
			name:   "kube-proxy reports iptables, with rules in iptables-nft",
			traces: Traces{ProxyMode: "iptables", NFT: []Chain{services(false), services(true), hint()}, Links: []string{"eth0", "lo"}, IPVS: -1},
		},
		{name: "silent kube-proxy in iptables-legacy", traces: Traces{Legacy: []Chain{services(false)}, LegacyTables: []string{"filter", "nat"}}},
		{
			name:   "kube-proxy before its first rules, where the kubelet shows which iptables",
			traces: Traces{ProxyMode: "iptables", Legacy: []Chain{hint()}, LegacyTables: []string{"mangle"}},
		},
		{
			name:   "kube-proxy before its first rules, where only tables are evidence",
			traces: Traces{ProxyMode: "iptables", LegacyTables: []string{"nat"}},
		},
		{name: "kube-proxy before its first rules, without evidence", traces: Traces{ProxyMode: "iptables"}},
		{
			name: "rules of an earlier kube-proxy count less than the reported mode",
			traces: Traces{
				ProxyMode: "nftables", Legacy: []Chain{services(false)},
				NFT: []Chain{{Table: "kube-proxy"}, {V6: true, Table: "kube-proxy"}},
			},
		},
		{name: "what answers there is no kube-proxy", traces: Traces{ProxyMode: "<html>", NFT: []Chain{{V6: true, Table: "kube-proxy"}}}},
		{name: "IPVS", traces: Traces{Links: []string{"eth0", "kube-ipvs0"}, IPVS: 12, NFT: []Chain{services(false)}}},
		{name: "IPVS without services", traces: Traces{IPVS: 0}},
		{
			name: "Cilium beside kube-proxy",
			traces: Traces{
				ProxyMode: "iptables", NFT: []Chain{services(false)}, Links: []string{"cilium_host", "cilium_net", "eth0"},
				Sockets: []string{"cil_sock4_connec", "77"}, Pins: []string{"/sys/fs/bpf/tc/globals/cilium_lb4_services_v2"},
			},
		},
		{
			name: "Cilium with a tunnel and without conntrack for pods, while it replaces its rules",
			traces: Traces{
				Links:  []string{"cilium_host", "cilium_net", "cilium_vxlan"},
				Legacy: []Chain{{Table: "raw", Name: "CILIUM_PRE_raw"}, {Table: "raw", Name: "OLD_CILIUM_PRE_raw", Untracks: true}, {Table: "filter", Name: "KUBE-ROUTER-INPUT"}},
			},
		},
		{
			name:   "rules of an earlier Cilium",
			traces: Traces{NFT: []Chain{{Table: "raw", Name: "CILIUM_PRE_raw", Untracks: true}}},
		},
		{name: "kindnet", traces: Traces{NFT: []Chain{{Table: "kindnet-network-policies"}, {Table: "nat", Name: "KUBE-SERVICES"}}}},
		{
			name:   "remains of an earlier Cilium",
			traces: Traces{Pins: []string{"/sys/fs/bpf/tc/globals/cilium_lb4_services_v2"}, NFT: []Chain{{Table: "kube-proxy"}}},
		},
		{name: "Calico by its links", traces: Traces{Links: []string{"bpfin.cali", "bpfout.cali", "cali1234"}}},
		{
			name:   "Calico by its maps and programs",
			traces: Traces{Pins: []string{"/sys/fs/bpf/tc/globals/cali_v4_nat_fe3"}, Sockets: []string{"calico_connect_"}},
		},
		{name: "Calico with kube-proxy", traces: Traces{Links: []string{"cali1234", "vxlan.calico"}, NFT: []Chain{services(false)}}},
		{name: "Open vSwitch", traces: Traces{Links: []string{"antrea-gw0"}}},
		{name: "an unknown program, and nothing else", traces: Traces{Sockets: []string{"77"}}},
		{name: "an unknown program beside kube-proxy", traces: Traces{Sockets: []string{"observe"}, NFT: []Chain{services(true)}}},
		{name: "nothing can be read", traces: Traces{NFTErr: denied, LegacyErr: denied, SocketsErr: denied}},
		{name: "a backend without its program is passed over", traces: Traces{NFT: []Chain{services(false)}}, usable: noIPTables},
		{name: "no backend can be used", usable: func(string) error { return denied }},
	} {
		got := conclude(tt.traces, tt.usable)
		fmt.Fprintf(&all, "# %s\nproxy %q, early: %t\nbackend %s: %s\n", tt.name, got.Proxy, got.Early, got.Backend, got.Reason)
		for _, what := range got.Evidence {
			all.WriteString("evidence: " + what + "\n")
		}
		for _, list := range []struct {
			what  string
			found []string
		}{{"tunnel", strings.Fields(got.Tunnel)}, {"untracked", got.Untracked}, {"policies", got.Policies}} {
			if len(list.found) > 0 {
				fmt.Fprintf(&all, "%s: %s\n", list.what, strings.Join(list.found, ", "))
			}
		}
		if got.Note != "" {
			all.WriteString("note: " + got.Note + "\n")
		}
	}
	assert.Golden(t, "testdata/detect.txt", all.String())
}

func TestFindEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Find with a context that has ended: %v, want %v", err, context.Canceled)
	}
}
