// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestServiceAddressOnALink has the service's addresses on a link of the node, as kube-proxy with IPVS has them.
func TestServiceAddressOnALink(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend, transparent: true})
			for _, addr := range b.dnsAddrs {
				assert.NoError(t, b.Node.AddAddress(addr.Addr()))
			}
			b.start(t)
			asked := b.askAll(t, byAgent)
			proctest.Figure(t, "service address on a local link, %s: %d of %d answered by the agent", backend, asked, asked)
		})
	}
}

// TestConnectionTableFull fills the node's table of tracked connections.
func TestConnectionTableFull(t *testing.T) {
	t.Parallel()
	b := newHarness(t, options{})
	b.start(t)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	assert.NoError(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || most > 1<<19 {
		t.Skipf("a table of %s connections takes too long to fill: %v", text, err)
	}
	var flows strings.Builder
	for i := range most + 100 { // a node may not shrink its table: the size is the machine's
		fmt.Fprintf(&flows, "-I -p udp -s 10.%d.%d.%d -d 10.99.0.1 --sport 1000 --dport 2000 -u ASSURED,SEEN_REPLY -t 3600\n", 1+i>>16, i>>8&255, i&255)
	}
	file := filepath.Join(t.TempDir(), "flows")
	proctest.WriteFile(t, file, flows.String())
	if out, err := b.Node.Output(t.Context(), "conntrack", "--load-file", file); err == nil || !strings.Contains(out, "not enough memory") {
		t.Fatalf("the table is not full: %v\n%s", err, out)
	}
	if who, err := nodetest.Ask(b.Pods[0], netip.AddrPortFrom(b.Upstream.IPv4, 5300), "udp"); err == nil {
		t.Errorf("%s answers through a node whose table is full", who)
	}
	asked := b.askAll(t, byAgent)
	proctest.Figure(t, "connection table full with %s, %s: %d of %d answered by the agent", nodetest.Thousands(most), b.backend, asked, asked)
	// The agent's own queries are tracked like everybody's, so that what it does not know it cannot find out.
	if who, err := nodetest.AskName(b.Pods[0], b.dnsAddrs[0], "udp", "new.nodetest.test"); err == nil {
		t.Logf("a name that has to be forwarded: answered by %s", who)
	} else {
		t.Logf("a name that has to be forwarded: %v", err)
	}
}

// TestDoctorNamesPolicy drops what is not tracked on its way from pods to the node, as some network policies do.
func TestDoctorNamesPolicy(t *testing.T) {
	t.Parallel()
	const table = "add table inet cni; add chain inet cni input { type filter hook input priority 0; }; "
	for _, tt := range []struct{ name, want, rule string }{
		{"rule", "inet cni input", `nft "` + table + `add rule inet cni input iifname != lo ct state untracked udp dport 53 drop"`},
		{"chain", "inet cni input", `nft "` + strings.Replace(table, "0; }", "0; policy drop; }", 1) +
			`add rule inet cni input iifname lo accept; add rule inet cni input ct state established,related,new accept; add rule inet cni input meta l4proto icmpv6 accept"`},
		{"iptables-nft", "CNI", "for p in iptables-nft ip6tables-nft; do $p -N CNI; $p -A INPUT ! -i lo -j CNI; $p -A CNI -p udp --dport 53 -m conntrack --ctstate UNTRACKED -j DROP; done"},
		{"iptables-legacy", "CNI", "for p in iptables-legacy ip6tables-legacy; do $p -N CNI; $p -A INPUT ! -i lo -j CNI; $p -A CNI -p udp --dport 53 -m conntrack --ctstate UNTRACKED -j DROP; done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{})
			b.start(t)
			b.run(t, "sh", "-c", tt.rule)
			out, err := b.Node.Command(t.Context(), nodeCache, "doctor", "--config", b.config).CombinedOutput()
			if err == nil {
				t.Error("doctor is content")
			}
			// Over TCP the pod is answered, and by this agent.
			if _, pod, _ := strings.Cut(string(out), "Asked from a pod"); tt.name == "rule" && !regexp.MustCompile(`ok +169\.254\.20\.10 tcp +agent [0-9a-f]{8} `).MatchString(pod) {
				t.Errorf("doctor does not know the agent behind an answer over TCP:\n%s", out)
			}
			var named []string
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "dropped by") && strings.Contains(line, tt.want) {
					named = append(named, strings.TrimSpace(line))
				}
			}
			if len(named) == 0 {
				t.Fatalf("doctor does not name what drops:\n%s", out)
			}
			proctest.Figure(t, "a policy that drops what is not tracked, %s: doctor says %q", tt.name, strings.Join(named, "; "))
		})
	}
}
