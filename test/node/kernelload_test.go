// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestKernelPrefetch has a name that only the kernel answers. It is fetched again before it expires, so that no client waits, and
// counted as if the process had answered.
func TestKernelPrefetch(t *testing.T) {
	n := startTruth(t, "forward: [{zone: ., to: [10.201.0.2:5301]}]\n")
	a := &authority{network: 64, ttl: 3}
	n.serve(t, a, 5301)
	n.dialProcess(t)
	conn := n.dialPod(t, n.Pods[0])
	const seconds = 13
	asked := 0
	for began := time.Now(); time.Since(began) < seconds*time.Second; asked++ {
		_, err := exchange(conn, nameQuery("popular.test.", asked))
		assert.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
	}
	sources := n.responses(t)
	t.Logf("%d queries, answers by source: %v, %d queries to the upstream", asked, sources, a.asked.Load())
	if sources["upstream"] != 1 {
		t.Errorf("%v queries waited for the upstream, want the first only", sources["upstream"])
	}
	if got := a.asked.Load(); got < seconds/3 || got > seconds/2 {
		t.Errorf("the upstream was asked %d times, want once for each TTL of 3 s less a tenth", got)
	}
	if all := sources["kernel"] + sources["cache"] + sources["upstream"]; int(all) != asked || sources["kernel"] < 0.9*all {
		t.Errorf("%d queries, answers by source: %v; want all counted, and most from the kernel", asked, sources)
	}
	if hits := n.metric(t, "cache_hits_total"); int(hits) < asked-10 {
		t.Errorf("%v hits of the cache for %d queries", hits, asked)
	}
}

// TestKernelFlood has a pod that floods names, each several times, so that the kernel takes them. The answers that another pod uses
// stay, and the flood costs the agent little more than without the kernel.
func TestKernelFlood(t *testing.T) {
	for _, hits := range []string{"off", "on"} {
		n := startKernel(t, "kernel: {hits: "+hits+", size: 256Ki}\nforward: [{zone: ., to: [10.201.0.2:5301]}]\n")
		n.serve(t, &authority{network: 65, ttl: 3600}, 5301)
		n.dialProcess(t)
		steady := n.dialPod(t, n.Pods[0])
		askSteady := func() {
			for i := range 100 {
				_, err := exchange(steady, nameQuery(fmt.Sprintf("steady-%d.test.", i), i))
				assert.NoError(t, err)
				time.Sleep(time.Millisecond)
			}
		}
		for range 5 {
			askSteady()
		}
		before, cpu := n.responses(t), n.cpu(t)
		flooded := n.flood(t, n.Pods[1], 8*time.Second, askSteady)
		used := n.cpu(t) - cpu
		during := n.responses(t)
		asked := 0
		for ; asked < 1000; asked += 100 {
			askSteady()
		}
		after := n.responses(t)
		proctest.Figure(t, "hits %s: %d flooded queries, %.1f us of the agent's CPU each; sources %v, then %v", hits, flooded,
			used.Seconds()/float64(flooded)*1e6, sourcesSince(before, during), sourcesSince(during, after))
		if share := (after["kernel"] - during["kernel"]) / float64(asked); hits == "on" && share < 0.95 {
			t.Errorf("after the flood the kernel answers %.0f %% of another pod's queries", 100*share)
		}
	}
}

// flood asks for new names from a pod, each ten times, while also runs again and again.
func (n *truth) flood(t *testing.T, pod *nodetest.Host, length time.Duration, also func()) (asked int) {
	t.Helper()
	var floods sync.WaitGroup
	var counts [4]int
	quit := time.Now().Add(length)
	for i := range counts {
		conn := n.dialPod(t, pod)
		floods.Go(func() {
			for name := 0; time.Now().Before(quit); name += 50 {
				for j := range 500 {
					if _, err := exchange(conn, nameQuery(fmt.Sprintf("f-%d-%d.test.", i, name+j%50), j)); err == nil {
						counts[i]++
					}
				}
			}
		})
	}
	for time.Now().Before(quit) {
		also()
	}
	floods.Wait()
	for _, count := range counts {
		asked += count
	}
	return asked
}

func sourcesSince(before, after map[string]float64) map[string]float64 {
	since := map[string]float64{}
	for source, count := range after {
		since[source] = count - before[source]
	}
	return since
}

func (n *truth) dialPod(t *testing.T, pod *nodetest.Host) *dns.Conn {
	t.Helper()
	conn, err := pod.Dial(t.Context(), "udp", netip.AddrPortFrom(agentIPv4, 53).String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &dns.Conn{Conn: conn}
}

func nameQuery(name string, id int) *dns.Msg {
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	q.Id = uint16(id)
	return q
}

// cpu is the CPU time of the agent.
func (n *truth) cpu(t *testing.T) time.Duration {
	t.Helper()
	used, err := proctest.UsageOf(n.agent.PID())
	assert.NoError(t, err)
	return used.CPU
}
