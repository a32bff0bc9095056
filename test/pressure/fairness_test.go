// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestFairness has one client flood cold names over UDP and TCP, while nine others ask for 100 cold names and 100 hot ones a
// second each, three of them over TCP. Each of the nine has every answer, but for those whose query found the socket's
// buffer full: the kernel throws away whatever comes then. That happens where the agent gets no processor for long, so in
// an ordinary run the flood over UDP is no faster than any machine takes; else it is as fast as it can be.
func TestFairness(t *testing.T) {
	const neighbours, latency = 9, 150 * time.Millisecond // the flood wants 7,500 places, more than there are
	up := startSlowServer(t, latency)
	a := start(t, settings{rest: fmt.Sprintf("forward: [{zone: ., to: [%q]}]\ncache: {size: 16Mi}\n", up)})
	var cold, hot []*clients
	for i := range neighbours {
		o := clientsOptions{
			to: a.listen, from: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, byte(3 + i)})}, stream: i%3 == 2,
			rate: 100, suffix: fmt.Sprintf("n%d.test", i), name: func(i int) int { return 100 + i },
		}
		cold = append(cold, startClients(t, o, true))
		o.name = func(i int) int { return i % 10 }
		hot = append(hot, startClients(t, o, true))
	}
	time.Sleep(proctest.OrdinaryOrSoak(time.Second, 10*time.Second))
	flood, busy := time.Now(), a.Usage(t).CPU
	f := startFlood(t, a.listen, proctest.OrdinaryOrSoak(50_000, asFastAsPossible))
	time.Sleep(proctest.OrdinaryOrSoak(3*time.Second, time.Minute))
	over, busy := time.Now(), a.Usage(t).CPU-busy
	end(f)
	end(append(cold, hot...))
	dropped := drops(t, a.listen.Port())
	proctest.Figure(t, "the flood: %s, for which the agent took %s of processor time", f, busy)
	proctest.Figure(t, "shed: %.0f with a reply, %.0f without; %d packets found a full buffer", a.shed(t, "client"), a.shed(t, "flood"), dropped)
	for kind, all := range map[string][]*clients{"cold": cold, "hot": hot} {
		proctest.Figure(t, "%s names before: %s; in the flood: %s", kind, latencies(all, time.Time{}, flood), latencies(all, flood, over))
		for _, n := range all {
			asked, good := int(n.asked.Load()), n.rcodes()[dns.RcodeSuccess]
			lost := asked - n.answered()
			if asked == 0 || good != asked-lost || lost > 0 && (n.stream || dropped == 0) || lost > dropped || lost > asked/10 {
				t.Errorf("%s, %s names: %s", n.from[0], kind, n)
			}
		}
	}
	if replied, not := a.shed(t, "client"), a.shed(t, "flood"); replied == 0 || not == 0 {
		t.Errorf("%.0f of the flood's queries were shed with a reply, and %.0f without", replied, not)
	}
	if got := a.shed(t, "inflight") + a.shed(t, "waiting"); got != 0 {
		t.Errorf("%.0f queries found no place at all", got)
	}
}

// startSlowServer runs a server that gives every name an address, but not soon.
func startSlowServer(t *testing.T, latency time.Duration) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(proctest.FreeAddr(t)))
	assert.NoError(t, err)
	_ = conn.SetReadBuffer(4 << 20)
	var running sync.WaitGroup
	running.Go(func() {
		q := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(q)
			if err != nil {
				return // closed
			}
			if reply := withAddress(q[:n]); reply != nil {
				time.AfterFunc(latency, func() { _, _ = conn.WriteToUDPAddrPort(reply, from) })
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		running.Wait()
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// withAddress answers a query with one address, nil if there is no reading it.
func withAddress(q []byte) []byte {
	end := headerLen
	for end < len(q) && q[end] != 0 {
		end += 1 + int(q[end])
	}
	if end+5 > len(q) {
		return nil
	}
	r := slices.Clone(q[:end+5])
	r[2], r[3] = 0x80|q[2]&1, 0x80
	copy(r[4:12], []byte{0, 1, 0, 1, 0, 0, 0, 0})
	return append(r, 0xc0, headerLen, 0, typeA, 0, classIN, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
}

// latencies says what the answers to several clients took from one moment to another.
func latencies(all []*clients, from, to time.Time) string {
	var took []time.Duration
	for _, c := range all {
		took = append(took, c.took(from, to)...)
	}
	slices.Sort(took)
	round := func(thousandths int) time.Duration { return quantile(took, thousandths).Round(10 * time.Microsecond) }
	return fmt.Sprintf("%d answers, median %s, p99 %s, longest %s", len(took), round(500), round(990), round(1000))
}

const asFastAsPossible = 1_000_000 // queries a second; no machine sends as many

// startFlood has a client ask for new names at a rate over UDP, and as fast as the session takes them over TCP.
func startFlood(t *testing.T, to netip.AddrPort, rate int) []*clients {
	t.Helper()
	o := clientsOptions{to: to, from: []netip.Addr{netip.MustParseAddr("127.0.0.2")}, name: func(i int) int { return i }, careless: true}
	udp, tcp := o, o
	udp.rate, udp.ports, udp.suffix = rate, 8, "flood.test" // every socket of the agent gets some of it
	tcp.rate, tcp.stream, tcp.suffix = asFastAsPossible, true, "stream.test"
	return []*clients{startClients(t, udp, false), startClients(t, tcp, false)}
}

// end ends clients.
func end(all []*clients) {
	var ending sync.WaitGroup
	for _, c := range all {
		ending.Go(c.end)
	}
	ending.Wait()
}

// shed is how many queries the agent has turned away, for a reason.
func (a *agent) shed(t *testing.T, reason string) float64 {
	t.Helper()
	return a.counted(t, "shed", reason)
}

// counted is the series with that in its name, and the reason.
func (a *agent) counted(t *testing.T, name, reason string) float64 {
	t.Helper()
	body, err := a.Page("/metrics")
	assert.NoError(t, err)
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(series, name) && strings.Contains(series, strconv.Quote(reason)) {
			v, err := strconv.ParseFloat(value, 64)
			assert.NoError(t, err)
			return v
		}
	}
	t.Fatalf("no metric of what is shed because of %s:\n%s", reason, body)
	return 0
}

// drops is how many packets the kernel has dropped because the sockets of a port were full.
func drops(t *testing.T, port uint16) (sum int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/udp")
	assert.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 13 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		n, err := strconv.Atoi(fields[12])
		assert.NoError(t, err)
		sum += n
	}
	return sum
}
