// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

func testFlows() Flows {
	return Flows{
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}, Port: 53,
		Fallback: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.7:5353"), netip.MustParseAddrPort("[fd01::7]:5353")},
	}
}

// raw returns a table of nftables with rules before conntrack.
func raw(family string, rules ...string) string {
	return "table " + family + " other { chain pre { type filter hook prerouting priority -300; " + strings.Join(rules, "; ") + "; }; }"
}

// TestNotracks has the kernel hold rules of other programs.
func TestNotracks(t *testing.T) {
	t.Parallel()
	const nftPre, certain = "chain pre of table inet other at -300", ", certain"
	for _, tt := range []struct {
		name string
		nft  string
		ipt  []string // of iptables, of both variants
		want []string
	}{
		{name: "none"},
		{name: "all", nft: raw("inet", "notrack"), want: []string{nftPre + certain}},
		{name: "all of one family", nft: raw("ip6", "notrack"), want: []string{"chain pre of table ip6 other at -300" + certain}},
		{name: "queries over UDP", nft: raw("inet", "ip daddr 169.254.20.10 udp dport 53 notrack"), want: []string{nftPre + certain}},
		{name: "queries over TCP to IPv6", nft: raw("inet", "ip6 daddr fd00::/8 tcp dport 1-100 notrack"), want: []string{nftPre + certain}},
		{name: "replies", nft: raw("inet", "udp sport 5353 ip saddr 10.244.0.0/16 notrack"), want: []string{nftPre + certain}},
		{name: "replies of all pods", nft: raw("ip", "ip saddr 10.0.0.0/9 notrack"), want: []string{"chain pre of table ip other at -300"}},
		{name: "by mark", nft: raw("inet", "meta mark 7 notrack"), want: []string{nftPre}},
		{name: "new TCP sessions", nft: raw("inet", "tcp dport 53 tcp flags syn notrack"), want: []string{nftPre}},
		{name: "by interface", nft: raw("inet", `iifname "cali*" notrack`), want: []string{nftPre}},
		{name: "another port", nft: raw("inet", "udp dport 8472 notrack", "tcp dport 80-443 notrack")},
		{name: "another address", nft: raw("inet", "ip daddr 169.254.20.11 th dport 53 notrack", "ip saddr != 10.244.1.7 ip daddr != 169.254.20.10 udp sport 5353 notrack")},
		{name: "a pod's address, which may ask", nft: raw("inet", "ip saddr 10.244.9.9 notrack"), want: []string{nftPre}},
		{name: "high ports", nft: raw("inet", "udp sport > 1023 udp dport < 54 udp dport > 52 notrack"), want: []string{nftPre + certain}},
		{name: "some high ports", nft: raw("inet", "udp sport 30000-32767 notrack"), want: []string{nftPre}},
		{name: "another protocol", nft: raw("inet", "meta l4proto icmp notrack", "meta l4proto != { tcp, udp } meta l4proto vrrp notrack")},
		{name: "by lo", nft: raw("inet", `iifname "lo" notrack`)},
		{name: "by others than lo", nft: raw("inet", `iifname != "lo" notrack`), want: []string{nftPre + certain}},
		{name: "what another rule accepts first", nft: raw("inet", "meta l4proto { tcp, udp } accept", "udp dport 53 accept", "udp sport 5353 accept", "meta l4proto tcp accept", "notrack")},
		{name: "what another rule may accept first", nft: raw("inet", "meta mark 7 accept", "notrack"), want: []string{nftPre}},
		{
			name: "in another chain", want: []string{"chain c of table inet other at -350" + certain},
			nft: "table inet other { chain c { udp dport 53 notrack; }; chain b { goto c; }; chain pre { type filter hook prerouting priority -350; jump b; }; }",
		},
		{
			name: "a chain that comes back", want: []string{nftPre + certain},
			nft: "table inet other { chain c { tcp dport 53 return; udp dport 53 return; }; chain pre { type filter hook prerouting priority -300; jump c; notrack; }; }",
		},
		{
			name: "a chain that does not come back",
			nft:  "table inet other { chain c { accept; }; chain pre { type filter hook prerouting priority -300; jump c; notrack; }; }",
		},
		{name: "no chain of a hook", nft: "table inet other { chain c { notrack; }; }"},
		{name: "packets of the node", nft: "table inet other { chain c { type filter hook output priority -300; notrack; }; }"},
		{name: "after conntrack", nft: "table inet other { chain c { type filter hook prerouting priority -150; notrack; }; }"},
		{
			name: "at an interface", want: []string{"chain in of table netdev other at 0"},
			nft: "table netdev other { chain in { type filter hook ingress device lo priority 0; notrack; }; }",
		},
		{name: "an agent's", nft: "table inet node-cache { chain c { type filter hook prerouting priority -320; notrack; }; }; table inet node-cache-x { chain c { type filter hook prerouting priority -320; notrack; }; }"},
		{
			name: "iptables", want: []string{"chain PREROUTING of IPTABLES at -300" + certain},
			ipt: []string{"-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j CT --notrack"},
		},
		{
			name: "iptables, chains", want: []string{"chain B of IPTABLES at -300" + certain},
			ipt: []string{"-N A", "-N B", "-A B -p tcp -j CT --notrack", "-A A -p udp -j RETURN", "-A A -g B", "-A PREROUTING -m comment --comment x -j A"},
		},
		{
			name: "iptables, by another match", want: []string{"chain PREROUTING of IPTABLES at -300"},
			ipt: []string{"-A PREROUTING -m mark --mark 0x7 -j CT --notrack"},
		},
		{
			name: "iptables, others", ipt: []string{
				"-A PREROUTING -p udp -m udp --dport 8472 -j CT --notrack", "-A PREROUTING -i lo -j CT --notrack", "-A PREROUTING -s 10.9.0.0/16 -d 10.8.0.0/16 -j CT --notrack",
				"-A PREROUTING -p udp -m udp --sport 1:52 --dport 1:52 -j CT --notrack",
				"-A PREROUTING -j CT --zone 7", "-N OTHER", "-A OTHER -j CT --notrack", "-A OUTPUT -j CT --notrack", "-A OUTPUT -j OTHER",
				"-N NODE-CACHE-PRE", "-A NODE-CACHE-PRE -j CT --notrack", "-A PREROUTING -j NODE-CACHE-PRE",
			},
		},
		{name: "iptables, accepted first", ipt: []string{"-A PREROUTING -j ACCEPT", "-A PREROUTING -j CT --notrack"}},
	} {
		programs := []string{""}
		if tt.ipt != nil {
			programs = []string{"iptables-nft", "iptables-legacy"}
		}
		for _, program := range programs {
			t.Run(strings.TrimSpace(tt.name+" "+program), func(t *testing.T) {
				t.Parallel()
				needs(t, append([]string{"nft"}, strings.Fields(program)...)...)
				inNamespace(t, func() error {
					if tt.nft != "" {
						if err := run("nft", tt.nft); err != nil {
							return err
						}
					}
					for _, rule := range tt.ipt {
						if err := run(append([]string{program, "-w", "-t", "raw"}, strings.Fields(rule)...)...); err != nil {
							return err
						}
					}
					got, err := Notracks(testFlows())
					if err != nil {
						return err
					}
					var list []string
					for _, n := range got {
						where := fmt.Sprintf("%s at %d", n.Where, n.Priority)
						if n.Certain {
							where += certain
						}
						list = append(list, where)
						if n.Backend != program {
							t.Errorf("backend %q of %s, want %q", n.Backend, where, program)
						}
					}
					want := slices.Clone(tt.want)
					for i := range want {
						want[i] = strings.ReplaceAll(want[i], "IPTABLES", map[string]string{"iptables-nft": "table ip raw", "iptables-legacy": "iptables-legacy"}[program])
					}
					assert.Same(t, "Notracks", want, list)
					return nil
				})
			})
		}
	}
}

// TestNotracksBounded has another program write more rules than are read, and a kube-proxy many chains.
func TestNotracksBounded(t *testing.T) {
	t.Parallel()
	needs(t, "nft", "iptables-legacy-restore")
	inNamespace(t, func() error {
		var chains strings.Builder
		chains.WriteString("table ip kube-proxy {\n")
		for i := range 20_000 {
			fmt.Fprintf(&chains, "chain service-%d-ABCDEFGH-namespace-some-name/tcp/http { }\n", i)
		}
		chains.WriteString("}\n" + raw("ip", "notrack"))
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(chains.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		began := time.Now()
		got, err := Notracks(testFlows())
		t.Logf("20,000 chains are read in %s", time.Since(began))
		if err != nil || len(got) != 1 {
			t.Errorf("beside many chains: %v, %v", got, err)
		}
		rules := strings.Repeat("-A PREROUTING -p icmp -j ACCEPT\n", maxRawRules+1)
		cmd = exec.Command("iptables-legacy-restore")
		cmd.Stdin = strings.NewReader("*raw\n" + rules + "COMMIT\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if _, err := Notracks(testFlows()); err == nil || !strings.Contains(err.Error(), "more than 128 chains or 4096 rules") {
			t.Errorf("with many rules: %v", err)
		}
		return nil
	})
}
