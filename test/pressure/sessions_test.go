// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// endpoints of the Service "huge", and addresses below huge.test, have an answer of some 60 KB.
const endpoints = 3700

// queryInterval is how often a session asks, and how soon it is opened again.
const queryInterval = 100 * time.Millisecond

// TestSessionsHold has four clients open 128 TCP sessions each, ask for answers of 60 KB from the zone and from the cache,
// and read nothing. The kernel does not end the agent, and what others ask for is still answered.
func TestSessionsHold(t *testing.T) {
	const limit = 144 * mib
	dir := t.TempDir()
	folder, err := os.MkdirTemp("/dev/shm", "node-cache-test") //nolint:usetesting // in memory, so that snapshots have their part of the limit, as shipped
	if err != nil {
		t.Skipf("no memory for snapshots: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	proctest.WriteFile(t, filepath.Join(dir, "huge.yaml"), hugeService())
	h := startMemoryRun(t, limit, 64*mib, fmt.Sprintf("cluster: {resolver: local, manifests: %q}\nsnapshot: {folder: %q, size: 16Mi}\n", dir, folder))
	stream := dns.Client{Net: "tcp", Timeout: 5 * time.Second}
	names := []string{"huge.default.svc.cluster.local.", "a.huge.test."}
	for _, name := range names {
		r, _, err := stream.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), h.agent.listen.String())
		if err != nil || len(r.Answer) != endpoints {
			t.Fatalf("before: %v, %v", r, err)
		}
	}
	h.takeSamples(t, proctest.OrdinaryOrSoak(time.Second, 5*time.Second))
	attack, before := time.Now(), h.agent.Usage(t).CPU
	quit := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 * 128 {
		q, err := new(dns.Msg).SetQuestion(names[i%2], dns.TypeA).Pack()
		assert.NoError(t, err)
		frame := append([]byte{byte(len(q) >> 8), byte(len(q))}, q...)
		d := narrow(netip.AddrFrom4([4]byte{127, 2, 0, byte(i % 4)}))
		clients.Go(func() { neverRead(&d, h.agent.listen, frame, quit) })
	}
	h.takeSamples(t, proctest.OrdinaryOrSoak(3*time.Second, *halfTime))
	end := time.Now()
	share := 100 * float64(h.agent.Usage(t).CPU-before) / float64(end.Sub(attack))
	close(quit)
	clients.Wait()
	h.hits.end()
	var usage int64
	for _, s := range h.samples {
		usage = max(usage, s.usage)
	}
	took := h.hits.took(attack, end)
	proctest.Figure(t, "the cgroup used %.1f of %d MiB at most; the agent took %.0f %% of a CPU", inMiB(usage), limit/mib, share)
	proctest.Figure(t, "hits before: p99 %s", ms(quantile(h.hits.took(h.began, attack), 990)))
	proctest.Figure(t, "hits in the attack: %d answered, median %s, p99 %s, longest %s", len(took), ms(quantile(took, 500)), ms(quantile(took, 990)), ms(quantile(took, 1000)))
	proctest.Figure(t, "hits: %s", h.hits)
	if kills := h.memory.kills(t); kills > 0 || usage > limit {
		t.Errorf("the cgroup used %.1f MiB, and the kernel has killed %d times for lack of memory", inMiB(usage), kills)
	}
	if proctest.Soak() && quantile(took, 990) > time.Millisecond {
		t.Errorf("hits: p99 %s, want 1 ms", ms(quantile(took, 990)))
	}
	if asked := int(h.hits.asked.Load()); h.hits.rcodes()[dns.RcodeSuccess] < asked*99/100 {
		t.Errorf("hits: %s, want NOERROR", h.hits)
	}
	if closed := h.agent.counted(t, "tcp_sessions_closed", "memory"); closed == 0 {
		t.Error("no session was closed for lack of memory: that is no attack")
	}
}

// hugeService is a headless Service with its endpoints.
func hugeService() string {
	var b strings.Builder
	b.WriteString("{apiVersion: v1, kind: Service, metadata: {name: huge, namespace: default}, spec: {clusterIP: None, clusterIPs: [None]}}\n")
	for i := range endpoints {
		if i%1000 == 0 {
			fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n"+
				"metadata: {name: huge-%d, namespace: default, labels: {kubernetes.io/service-name: huge}}\nendpoints:\n", i)
		}
		fmt.Fprintf(&b, "- {addresses: [10.1.%d.%d]}\n", i>>8, i&255)
	}
	return b.String()
}

// narrow dials from an address, with little room for what the client does not read.
func narrow(from netip.Addr) net.Dialer {
	return net.Dialer{
		Timeout: time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		},
	}
}

// neverRead asks over one session after another until quit is closed.
func neverRead(d *net.Dialer, to netip.AddrPort, frame []byte, quit <-chan struct{}) {
	time.Sleep(rand.N(queryInterval)) // or all would ask at once
	again := time.NewTicker(queryInterval)
	defer again.Stop()
	var conn net.Conn
	for {
		if conn == nil {
			conn, _ = d.Dial("tcp", to.String())
		}
		if conn != nil {
			_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := conn.Write(frame); err != nil {
				_ = conn.Close()
				conn = nil
			}
		}
		select {
		case <-quit:
			if conn != nil {
				_ = conn.Close()
			}
			return
		case <-again.C:
		}
	}
}
