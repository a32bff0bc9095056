// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// The pods' network as Cilium would know it. The servers of the upstream host stand for pods.
const (
	podsIPv4     = "10.200.0.0/14"
	podsIPv6     = "fd00:200::/30"
	upstreamIPv4 = "{ 10.201.0.2, 10.202.0.2 }"
	upstreamIPv6 = "{ fd00:201::2, fd00:202::2 }"
)

// MoreUpstreamIPv4 and MoreUpstreamIPv6 are addresses for the upstream host, beside its own ones, to which the node has a route.
func MoreUpstreamIPv4() netip.Addr { return netip.AddrFrom4([4]byte{10, 202, 0, 2}) }

// MoreUpstreamIPv6 is like MoreUpstreamIPv4.
func MoreUpstreamIPv6() netip.Addr { return netip.MustParseAddr("fd00:202::2") }

// ImitateCilium gives h the links of Cilium and the rules that it writes with the program iptables-VARIANT: the node's own packets
// get the host mark, and with untracked those of the pods' network are exempt from conntrack, as with its option
// installNoConntrackIptablesRules. Cilium itself writes the latter for IPv4 only.
func ImitateCilium(ctx context.Context, h *Host, variant string, untracked bool) error {
	if _, err := h.Output(ctx, "ip", "link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net"); err != nil {
		return err
	}
	for program, network := range map[string]string{"iptables-" + variant: podsIPv4, "ip6tables-" + variant: podsIPv6} {
		lines := []string{
			"-t raw -N CILIUM_PRE_raw", "-t raw -N CILIUM_OUTPUT_raw", "-t filter -N CILIUM_OUTPUT",
			"-t raw -A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -m comment --comment cilium:_NOTRACK_for_proxy_traffic -j CT --notrack",
			"-t filter -A CILIUM_OUTPUT -m mark ! --mark 0xe00/0xf00 -m comment --comment cilium:_host->any_mark_as_from_host -j MARK --set-xmark 0xc00/0xf00",
		}
		for _, chain := range []string{"CILIUM_PRE_raw", "CILIUM_OUTPUT_raw"} {
			for _, side := range []string{"-s", "-d"} {
				if untracked {
					lines = append(lines, fmt.Sprintf("-t raw -I %s %s %s -m comment --comment cilium:_NOTRACK_for_pod_traffic -j CT --notrack", chain, side, network))
				}
			}
		}
		for _, line := range append(lines, CiliumFeeders()...) {
			if _, err := h.Output(ctx, program, append([]string{"-w"}, strings.Fields(line)...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// CiliumFeeders are the arguments of iptables that put the jumps to Cilium's chains in front of all other rules, which Cilium repeats
// when it starts and when its configuration changes.
func CiliumFeeders() []string {
	return []string{
		"-t raw -I PREROUTING -m comment --comment cilium-feeder:_CILIUM_PRE_raw -j CILIUM_PRE_raw",
		"-t raw -I OUTPUT -m comment --comment cilium-feeder:_CILIUM_OUTPUT_raw -j CILIUM_OUTPUT_raw",
		"-t filter -I OUTPUT -m comment --comment cilium-feeder:_CILIUM_OUTPUT -j CILIUM_OUTPUT",
	}
}

// ImitateHostFirewall drops packets from the upstream host's network that answer no packet with Cilium's host mark, as Cilium's host
// firewall does if its policy does not allow them. It keeps its own connections: Cilium's are not those of conntrack. Requests are
// seen behind masquerading, and replies before any other rule, like those that Cilium's programs see on the links.
func ImitateHostFirewall(ctx context.Context, h *Host) error {
	var text strings.Builder
	text.WriteString("table inet host-firewall {\n")
	for _, family := range []string{"4", "6"} {
		fmt.Fprintf(&text, "set open%s { type ipv%s_addr . inet_service . ipv%s_addr . inet_service; flags dynamic, timeout; timeout 1h; size 65535; }\n", family, family, family)
	}
	text.WriteString("chain leave { type filter hook postrouting priority 400;\n")
	for _, f := range []struct{ ip, set, network string }{{"ip", "open4", upstreamIPv4}, {"ip6", "open6", upstreamIPv6}} {
		fmt.Fprintf(&text, "meta l4proto { tcp, udp } %s daddr %s meta mark & 0xf00 == 0xc00 update @%s { %s saddr . th sport . %s daddr . th dport }\n", f.ip, f.network, f.set, f.ip, f.ip)
	}
	text.WriteString("}\nchain arrive { type filter hook prerouting priority -400;\n")
	for _, f := range []struct{ ip, set, network string }{{"ip", "open4", upstreamIPv4}, {"ip6", "open6", upstreamIPv6}} {
		fmt.Fprintf(&text, "fib daddr type local meta l4proto { tcp, udp } %s saddr %s %s daddr . th dport . %s saddr . th sport != @%s counter drop\n", f.ip, f.network, f.ip, f.ip, f.set)
	}
	text.WriteString("}\n}\n")
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("loading the host firewall: %w: %s", err, out)
	}
	return nil
}
