// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

// TestKernelFlood has a pod send queries that the kernel answers as fast as it can. No more queries of others are lost than if the
// agent answers these, but for packets that a busy machine has no room for.
func TestKernelFlood(t *testing.T) {
	b := newHarness(t, options{pods: 3, socket: proctest.SocketPath(t), extra: withKernelHits})
	b.start(t)
	lost, dropped := map[string]int{}, 0
	for _, hits := range []string{"off", "on"} {
		b.run(t, nodeCache, "kernel", hits, "--admin", "unix:"+b.socket)
		if hits == "on" {
			b.awaitKernelHits(t, b.Pods[2], 0)
		}
		before, l := b.drops(t), b.load(t)
		l.awaitServer(t, byAgent, l.began, time.Minute)
		began := time.Now()
		stop := startQueryFlood(t, b.Pods[2], b.dnsAddrs[0])
		time.Sleep(proctest.OrdinaryOrSoak(time.Second, 20*time.Second))
		sent, took := stop(), time.Since(began)
		others := l.merge(l.stop(t)).Between(began, began.Add(took))
		lost[hits] = others.Lost() - others.Count(nodetest.Late)
		after := b.drops(t)
		maps.DeleteFunc(after, func(where string, _ int) bool { return strings.HasPrefix(where, b.Pods[2].Name+" ") }) // it reads no reply
		dropped, _ = after.since(before)
		proctest.Figure(t, "a pod floods hits, hits %s: %.0f queries a second; others: %s", hits, float64(sent)/took.Seconds(), others)
	}
	if lost["on"] > lost["off"]+dropped {
		t.Errorf("queries of others that were lost, by hits in the kernel: %v; packets dropped with them: %d", lost, dropped)
	}
}

// startQueryFlood sends queries from a host as fast as one thread can, until stop, which returns their number.
func startQueryFlood(t *testing.T, from *nodetest.Host, to netip.AddrPort) (stop func() uint64) {
	t.Helper()
	conn, err := from.Dial(t.Context(), "udp", to.String())
	assert.NoError(t, err)
	assert.NoError(t, conn.(*net.UDPConn).SetReadBuffer(4096)) // the replies are not read
	query, err := new(dns.Msg).SetQuestion("who.nodetest.test.", dns.TypeTXT).Pack()
	assert.NoError(t, err)
	var sent atomic.Uint64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := conn.Write(query); err != nil {
				return
			}
			sent.Add(1)
		}
	}()
	return func() uint64 {
		_ = conn.Close()
		<-ended
		return sent.Load()
	}
}

// TestKernelFull has a pod ask for so many names that there is no room for answers in the kernel. The kernel goes on to answer a name
// that another pod asks for more often, and takes a new one of these.
func TestKernelFull(t *testing.T) {
	t.Parallel()
	size, names := proctest.OrdinaryOrSoak("64Ki", "4Mi"), proctest.OrdinaryOrSoak(128, 8192)
	b := newHarness(t, options{extra: "kernel: {hits: on, size: " + size + "}\n"})
	p := asker{b, agentMap(t, b.start(t).PID(), "clients")}
	b.awaitKernelHits(t, b.Pods[0], 0)
	rate := 3 * names
	flood, err := nodetest.StartMeter(nodetest.MeterConfig{
		Host: b.Pods[1], Target: b.dnsAddrs[0], Loads: []nodetest.Load{{Network: "udp", Rate: rate}}, Names: names,
	})
	assert.NoError(t, err)
	t.Cleanup(func() { flood.Stop() })
	proctest.Eventually(t, time.Minute, "there is no room", func() bool {
		var st status.Status
		_ = json.Unmarshal([]byte(b.adminPage(t, "/status")), &st) // the agent may be busy
		return st.Kernel != nil && st.Kernel.Full > 0
	})
	const asked, popular, another = 200, "who.nodetest.test.", "another.nodetest.test."
	old, began := p.ask(t, popular, asked), time.Now()
	proctest.Eventually(t, time.Minute, "the kernel takes another name", func() bool { return p.ask(t, another, 5) > 0 })
	took := time.Since(began)
	taken := p.ask(t, another, asked)
	proctest.Figure(t, "a pod asks %d queries a second for %d names: of %d for another name the kernel answers %d; takes a new one after %s, and answers %d",
		rate, names, asked, old, ms(took), taken)
	if old < asked/2 || taken < asked/2 {
		t.Errorf("of %d queries the kernel answered %d, and %d for a new name", asked, old, taken)
	}
}

// An asker is a pod that asks.
type asker struct {
	*harness
	clients *ebpf.Map
}

// ask asks for a name so many times, and returns how often the kernel has answered.
func (p asker) ask(t *testing.T, name string, times int) (byKernel uint64) {
	t.Helper()
	before := p.hits(t)
	for range times {
		_, err := nodetest.AskName(p.Pods[0], p.dnsAddrs[0], "udp", name)
		assert.NoError(t, err)
		time.Sleep(5 * time.Millisecond)
	}
	return p.hits(t) - before
}

// hits returns how many of the pod's queries the kernel has answered.
func (p asker) hits(t *testing.T) uint64 {
	t.Helper()
	var of client
	assert.NoError(t, p.Node.Do(func() error {
		dev, err := netlink.LinkByName("pod0")
		if err != nil {
			return err
		}
		return p.clients.Lookup(clientKey{uint32(dev.Attrs().Index), 4}, &of)
	}))
	return of.Hits
}
