// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// handover is what the configuration of an agent needs that hands over.
func handoverConfig(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "handover") //nolint:usetesting // t.TempDir is too long for a socket
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return fmt.Sprintf("handover: {socket: %s}\nsnapshot: {folder: %s}\n", filepath.Join(dir, "handover.sock"), dir)
}

// awaitHandOver waits until an agent has taken over, and holds its leases.
func (b *harness) awaitHandOver(t *testing.T, a daemon) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "the next agent has taken over and holds the leases", func() bool {
		if a.Ended() {
			t.Fatalf("the agent has ended: %v", a.Err())
		}
		log := a.Stderr.String()
		return strings.Contains(log, `"taken over"`) && strings.Contains(log, "handover socket listening") &&
			(b.unmanaged || strings.Count(log, "lease acquired") >= len(b.dnsAddrs))
	})
}

// TestHandOver starts one agent after the other while the one before serves, under load, and counts every query.
func TestHandOver(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options options
		times   int // in an ordinary run, which leaves out one with 0
	}{
		{name: nftables, options: options{backend: nftables}, times: 3},
		{name: iptablesNFT, options: options{backend: iptablesNFT}, times: 2},
		{name: iptablesLegacy, options: options{backend: iptablesLegacy}},
		{name: "transparent, " + nftables, options: options{backend: nftables, transparent: true}, times: 2},
		{name: "excluded service, " + nftables, options: options{backend: nftables, transparent: true, excluded: true}, times: 2},
		{name: "transparent, " + iptablesNFT, options: options{backend: iptablesNFT, transparent: true}, times: 2},
	} {
		if tt.times == 0 && !proctest.Soak() {
			continue // the rules of iptables-nft, which a handover leaves as they are
		}
		t.Run(tt.name, func(t *testing.T) {
			b, last := startHandOver(t, tt.options)
			before := b.fallbackQueries()
			dropped := b.drops(t)
			l := b.flood(t)
			sessions := []*pipeline{
				startPipeline(t, b.Pods[0], b.dnsAddrs[0], 20), startPipeline(t, b.Pods[1], b.dnsAddrs[1], 20),
				startPipeline(t, b.Node, b.dnsAddrs[0], 3),
			}
			time.Sleep(500 * time.Millisecond)
			times := proctest.OrdinaryOrSoak(tt.times, 50)
			var old []daemon
			var slowest time.Duration
			for range times {
				next := b.launch(t)
				b.awaitHandOver(t, next)
				slowest = max(slowest, time.Since(next.started))
				time.Sleep(500 * time.Millisecond)
				last.Signal(syscall.SIGTERM) // as the kubelet does, when the next pod is ready
				old = append(old, last)
				last = next
			}
			for _, a := range old {
				if err := a.Wait(t, time.Minute); err != nil {
					t.Errorf("an agent that handed over ended with %v", err)
				}
			}
			time.Sleep(500 * time.Millisecond)
			lasted := time.Since(l.began)
			reports := l.stop(t)
			sum := nodetest.Report{}
			for _, r := range reports {
				sum.Outcomes = append(sum.Outcomes, r.Outcomes...)
			}
			slices.SortStableFunc(sum.Outcomes, func(a, b nodetest.Outcome) int { return a.Sent.Compare(b.Sent) })
			// A machine that has no time for packets drops them before an agent has them, and counts each. What is lost with a
			// socket that is closed is not among what it counts. Where answers take longer than six seconds nothing can be said.
			if overflow, reasons := b.drops(t).since(dropped); sum.Lost() > 0 {
				at, _ := sum.FirstLost()
				last, _ := sum.LastLost()
				t.Logf("%s; from %s to %s; dropped by the kernel: %d: %s", sum, logTime(at), logTime(last), overflow, reasons)
				// What waits for an upstream whose answer was dropped fails. A session that the old agent has accepted, and
				// whose client on a busy machine has not asked before it ended, is closed. The client asks again.
				lost, late, cut := sum.Count(nodetest.Lost), sum.Count(nodetest.Late), sum.Count(nodetest.Reset)
				if lost > overflow+late || late+overflow == 0 && (sum.Lost() > cut || cut > 3*times) {
					t.Errorf("%d of %d queries were lost, and the kernel has dropped %d", sum.Lost(), sum.Sent(), overflow)
				}
				if refused := sum.Count(nodetest.Refused); refused > 0 { // nothing that is dropped makes a refusal
					t.Errorf("%d queries were refused: no process had the socket", refused)
				}
			}
			if leaked := b.fallbackQueries() - before; leaked > 0 || sum.By()[byCentral] > 0 {
				t.Errorf("%d queries went to the fallback: %s", leaked, sum)
			}
			answered, again, opened := 0, 0, 0
			for _, p := range sessions {
				p.end(t)
				answered, again, opened = answered+p.answered, again+p.repeated, opened+p.opened
			}
			rate := float64(sum.Sent()) / lasted.Seconds()
			proctest.Figure(t, "handed over %d times, %s: %s at %.0f a second; %s over %d persistent sessions, opened %d times, %d asked again; slowest %s",
				times, tt.name, sum, rate, nodetest.Thousands(answered), len(sessions), opened, again, ms(slowest))
		})
	}
}

// flood is pods and the node asking 5,000 queries a second, or 20,000 with SOAK, some of them for new names.
func (b *harness) flood(t *testing.T) *load {
	t.Helper()
	l := &load{began: time.Now(), harness: b}
	udp := func(rate int) nodetest.Load {
		return nodetest.Load{Network: "udp", Rate: proctest.OrdinaryOrSoak(rate/4, rate)}
	}
	freshUDP := func(rate int) nodetest.Load { return nodetest.Load{Network: "udp", Rate: rate, Fresh: true} }
	freshTCP := nodetest.Load{Network: "tcp", Rate: 25, Fresh: true}
	const patient, longer = 6 * time.Second, 8 * time.Second // what is late is not lost; not so long that the IDs come again
	for _, c := range []nodetest.MeterConfig{
		{Host: b.Pods[0], Target: b.dnsAddrs[0], Loads: []nodetest.Load{udp(4000), udp(4000), freshUDP(300), freshTCP}},
		{Host: b.Pods[1], Target: b.dnsAddrs[1], Loads: []nodetest.Load{udp(4000), udp(4000), freshUDP(300), freshTCP}},
		{Host: b.Node, Target: b.dnsAddrs[0], Loads: []nodetest.Load{udp(3000), freshUDP(100), freshTCP}},
		{Host: b.Node, Target: b.dnsAddrs[1], Loads: []nodetest.Load{udp(1000), freshUDP(100), freshTCP}},
		{Host: b.Pods[0], Target: b.dnsAddrs[0], Loads: []nodetest.Load{{Network: "udp", Rate: 50}}, Names: 1 << 20},
	} {
		c.Timeout, c.Linger = patient, longer
		m, err := nodetest.StartMeter(c)
		assert.NoError(t, err)
		t.Cleanup(func() { m.Stop() })
		l.meters = append(l.meters, m)
	}
	return l
}
