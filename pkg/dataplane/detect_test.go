// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func services(v6 bool) Chain {
	return Chain{V6: v6, Table: "nat", Name: "KUBE-SERVICES"}
}

func hint() Chain { return Chain{Table: "mangle", Name: "KUBE-IPTABLES-HINT"} }

const (
	takes   = " packets to a Service's address before netfilter: transparent interception cannot work here. Link-local can, if network policies let pods reach the node."
	perhaps = "eBPF programs run on connect of this node's sockets: if they rewrite the Service's address, transparent interception does not work."
)

func TestFind(t *testing.T) {
	t.Parallel()
	denied := errors.New("operation not permitted")
	for _, tt := range []struct {
		name   string
		traces Traces
		usable func(string) error
		want   Found
	}{
		{
			name: "nothing",
			want: Found{Backend: "nftables", Reason: "there is no kube-proxy, and it needs no program"},
		},
		{
			name: "kube-proxy reports iptables, with rules in iptables-nft",
			traces: Traces{
				ProxyMode: "iptables", NFT: []Chain{services(false), services(true), hint()}, Links: []string{"eth0", "lo"}, IPVS: -1,
			},
			want: Found{
				Proxy: IPTables, Backend: "iptables-nft", Reason: "kube-proxy uses iptables-nft",
				Evidence: []string{"kube-proxy reports mode iptables", "chain KUBE-SERVICES of iptables-nft for IPv4 and IPv6"},
			},
		},
		{
			name:   "silent kube-proxy in iptables-legacy",
			traces: Traces{Legacy: []Chain{services(false)}, LegacyTables: []string{"filter", "nat"}},
			want: Found{
				Proxy: IPTables, Backend: "iptables-legacy", Reason: "kube-proxy uses iptables-legacy",
				Evidence: []string{"chain KUBE-SERVICES of iptables-legacy for IPv4"},
			},
		},
		{
			name:   "kube-proxy before its first rules, where the kubelet shows which iptables",
			traces: Traces{ProxyMode: "iptables", Legacy: []Chain{hint()}, LegacyTables: []string{"mangle"}},
			want: Found{
				Proxy: IPTables, Backend: "iptables-legacy", Reason: "kube-proxy uses iptables-legacy",
				Evidence: []string{"kube-proxy reports mode iptables", "a chain of the kubelet in iptables-legacy for IPv4"},
			},
		},
		{
			name:   "kube-proxy before its first rules, where only tables are evidence",
			traces: Traces{ProxyMode: "iptables", LegacyTables: []string{"nat"}},
			want: Found{
				Proxy: IPTables, Backend: "iptables-legacy",
				Reason:   "kube-proxy uses iptables, here iptables-legacy because of its tables",
				Evidence: []string{"kube-proxy reports mode iptables"},
			},
		},
		{
			name:   "kube-proxy before its first rules, without evidence",
			traces: Traces{ProxyMode: "iptables"},
			want: Found{
				Proxy: IPTables, Backend: "iptables-nft",
				Reason:   "kube-proxy uses iptables, with no sign of iptables-legacy",
				Evidence: []string{"kube-proxy reports mode iptables"},
			},
		},
		{
			name:   "rules of an earlier kube-proxy count less than the reported mode",
			traces: Traces{ProxyMode: "nftables", Legacy: []Chain{services(false)}, NFT: []Chain{{Table: "kube-proxy"}, {V6: true, Table: "kube-proxy"}}},
			want: Found{
				Proxy: NFTables, Backend: "nftables", Reason: "kube-proxy uses it",
				Evidence: []string{
					"kube-proxy reports mode nftables", "table kube-proxy of nftables for IPv4 and IPv6",
					"chain KUBE-SERVICES of iptables-legacy for IPv4",
				},
			},
		},
		{
			name:   "what answers there is no kube-proxy",
			traces: Traces{ProxyMode: "<html>", NFT: []Chain{{V6: true, Table: "kube-proxy"}}},
			want: Found{
				Proxy: NFTables, Backend: "nftables", Reason: "kube-proxy uses it",
				Evidence: []string{"table kube-proxy of nftables for IPv6"},
			},
		},
		{
			name:   "IPVS",
			traces: Traces{Links: []string{"eth0", "kube-ipvs0"}, IPVS: 12, NFT: []Chain{services(false)}},
			want: Found{
				Proxy: IPVS, Backend: "iptables-nft", Reason: "IPVS uses rules in iptables-nft",
				Evidence: []string{"link kube-ipvs0", "12 IPVS virtual services", "chain KUBE-SERVICES of iptables-nft for IPv4"},
			},
		},
		{
			name:   "IPVS without services",
			traces: Traces{IPVS: 0},
			want:   Found{Backend: "nftables", Reason: "there is no kube-proxy, and it needs no program"},
		},
		{
			name: "Cilium beside kube-proxy",
			traces: Traces{
				ProxyMode: "iptables", NFT: []Chain{services(false)},
				Links: []string{"cilium_host", "cilium_net", "eth0"}, Sockets: []string{"cil_sock4_connec", "77"},
				Pins: []string{"/sys/fs/bpf/tc/globals/cilium_lb4_services_v2"},
			},
			want: Found{
				Proxy: Cilium, Early: true, Note: "Cilium handles" + takes,
				Backend: "nftables", Reason: "kube-proxy has no rules, and it needs no program",
				Evidence: []string{
					"link cilium_host", "link cilium_net", "program cil_sock4_connec on the sockets of this node",
					"map /sys/fs/bpf/tc/globals/cilium_lb4_services_v2",
					"kube-proxy reports mode iptables", "chain KUBE-SERVICES of iptables-nft for IPv4",
				},
			},
		},
		{
			name:   "remains of an earlier Cilium",
			traces: Traces{Pins: []string{"/sys/fs/bpf/tc/globals/cilium_lb4_services_v2"}, NFT: []Chain{{Table: "kube-proxy"}}},
			want: Found{
				Proxy: NFTables, Backend: "nftables", Reason: "kube-proxy uses it",
				Evidence: []string{
					"map /sys/fs/bpf/tc/globals/cilium_lb4_services_v2, but no link of Cilium", "table kube-proxy of nftables for IPv4",
				},
			},
		},
		{
			name:   "Calico by its links",
			traces: Traces{Links: []string{"bpfin.cali", "bpfout.cali", "cali1234"}},
			want: Found{
				Proxy: Calico, Early: true, Note: "Calico's eBPF data plane handles" + takes,
				Backend: "nftables", Reason: "kube-proxy has no rules, and it needs no program",
				Evidence: []string{"link bpfin.cali", "link bpfout.cali"},
			},
		},
		{
			name:   "Calico by its maps and programs",
			traces: Traces{Pins: []string{"/sys/fs/bpf/tc/globals/cali_v4_nat_fe3"}, Sockets: []string{"calico_connect_"}},
			want: Found{
				Proxy: Calico, Early: true, Note: "Calico's eBPF data plane handles" + takes,
				Backend: "nftables", Reason: "kube-proxy has no rules, and it needs no program",
				Evidence: []string{"program calico_connect_ on the sockets of this node", "map /sys/fs/bpf/tc/globals/cali_v4_nat_fe3"},
			},
		},
		{
			name:   "Calico with kube-proxy",
			traces: Traces{Links: []string{"cali1234", "vxlan.calico"}, NFT: []Chain{services(false)}},
			want: Found{
				Proxy: IPTables, Backend: "iptables-nft", Reason: "kube-proxy uses iptables-nft",
				Evidence: []string{"chain KUBE-SERVICES of iptables-nft for IPv4"},
			},
		},
		{
			name:   "Open vSwitch",
			traces: Traces{Links: []string{"antrea-gw0"}},
			want: Found{
				Proxy: OVS, Early: true, Note: "Open vSwitch handles" + takes,
				Backend: "nftables", Reason: "kube-proxy has no rules, and it needs no program",
				Evidence: []string{"link antrea-gw0"},
			},
		},
		{
			name:   "an unknown program, and nothing else",
			traces: Traces{Sockets: []string{"77"}},
			want: Found{
				Proxy: EBPF, Early: true, Note: "An eBPF program on the sockets of this node handles" + takes,
				Backend: "nftables", Reason: "kube-proxy has no rules, and it needs no program",
				Evidence: []string{"program 77 on the sockets of this node"},
			},
		},
		{
			name:   "an unknown program beside kube-proxy",
			traces: Traces{Sockets: []string{"observe"}, NFT: []Chain{services(true)}},
			want: Found{
				Proxy: IPTables, Note: perhaps, Backend: "iptables-nft", Reason: "kube-proxy uses iptables-nft",
				Evidence: []string{"program observe on the sockets of this node", "chain KUBE-SERVICES of iptables-nft for IPv6"},
			},
		},
		{
			name:   "nothing can be read",
			traces: Traces{NFTErr: denied, LegacyErr: denied, SocketsErr: denied},
			want: Found{
				Backend: "iptables-legacy", Reason: "nftables is not available: operation not permitted",
				Evidence: []string{
					"cannot read nftables: operation not permitted", "cannot read iptables-legacy: operation not permitted",
					"cannot read the programs on sockets: operation not permitted",
				},
			},
		},
		{
			name:   "a backend without its program is passed over",
			traces: Traces{NFT: []Chain{services(false)}},
			usable: func(b string) error {
				if b == "iptables-nft" {
					return errors.New("no program iptables")
				}
				return nil
			},
			want: Found{
				Proxy: IPTables, Backend: "nftables",
				Reason:   "iptables-nft would be used (kube-proxy uses iptables-nft), but is not available: no program iptables",
				Evidence: []string{"chain KUBE-SERVICES of iptables-nft for IPv4"},
			},
		},
		{
			name:   "no backend can be used",
			usable: func(string) error { return denied },
			want: Found{
				Backend: "nftables",
				Reason:  "there is no kube-proxy, and it needs no program, but no backend is available: operation not permitted",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := conclude(tt.traces, tt.usable)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("conclude (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFindEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Find with a context that has ended: %v, want %v", err, context.Canceled)
	}
}
