// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A accessPath is how a pod's queries come to the agent.
type accessPath struct {
	name    string
	options options
	tracked bool // the node tracks connections
}

// TestAccessPathCost measures what the rules cost: one query after the other from a pod, each answered from the cache. The ways
// take turns, and each one's best turn counts, so that what else the machine does matters little.
func TestAccessPathCost(t *testing.T) {
	t.Parallel()
	ways := []accessPath{
		{name: "no rules, nothing tracked", options: options{unmanaged: true}},
		{name: "no rules, tracked", options: options{unmanaged: true}, tracked: true},
		{name: "link-local, nftables", tracked: true},
		{name: "link-local, iptables-nft", options: options{backend: iptablesNFT}, tracked: true},
		{name: "link-local, iptables-legacy", options: options{backend: iptablesLegacy}, tracked: true},
		{name: "transparent, nftables", options: options{transparent: true}, tracked: true},
		{name: "transparent, iptables-nft", options: options{backend: iptablesNFT, transparent: true}, tracked: true},
	}
	turns, length := 1, 20*time.Millisecond // that each way works; the figures need more
	if proctest.Soak() {
		turns, length = 5, 700*time.Millisecond
	}
	conns, best := make([]net.Conn, len(ways)), make([]time.Duration, len(ways))
	for i, w := range ways {
		conns[i] = w.open(t)
	}
	for range turns {
		for i := range ways {
			one := roundTripTime(t, conns[i], length)
			if best[i] == 0 || one < best[i] {
				best[i] = one
			}
		}
	}
	for i, w := range ways {
		proctest.Figure(t, "way, %s: %.2f of the first", w.name, float64(best[i])/float64(best[0]))
	}
}

// open starts an agent for the way and connects a pod to it.
func (w accessPath) open(t *testing.T) net.Conn {
	t.Helper()
	b := newHarness(t, w.options)
	if w.tracked {
		b.run(t, "nft", "add table inet test; add chain inet test c { type filter hook forward priority 0; }; add rule inet test c ct state new counter")
	}
	b.start(t)
	conn, err := b.Pods[0].Dial(t.Context(), "udp", b.dnsAddrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// roundTripTime asks one query after the other and returns the time for one.
func roundTripTime(t *testing.T, conn net.Conn, length time.Duration) time.Duration {
	t.Helper()
	query, err := new(dns.Msg).SetQuestion("way.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 512)
	start, n := time.Now(), 0
	for time.Since(start) < length {
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := conn.Write(query); err != nil {
			t.Fatal(err)
		}
		if size, err := conn.Read(reply); err != nil || size <= len(query) {
			t.Fatalf("a reply of %d bytes: %v", size, err)
		}
		n++
	}
	return time.Since(start) / time.Duration(n)
}
