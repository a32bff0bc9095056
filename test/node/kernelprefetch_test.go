// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestKernelPrefetch has a name that only the kernel answers. It is fetched again before it expires, so that no client waits, and
// counted as if the process had answered.
func TestKernelPrefetch(t *testing.T) {
	t.Parallel()
	n := startTruth(t, "forward: [{zone: ., to: [10.201.0.2:5301]}]\n")
	a := &authority{network: 64, ttl: 3}
	n.serve(t, a, 5301)
	n.dialProcess(t)
	conn := n.dialPod(t, n.Pods[0])
	const seconds = 7
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
