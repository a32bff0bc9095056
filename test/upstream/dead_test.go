// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestDeadUpstream floods an agent with misses while its only upstream is silent. Names in the cache are answered as
// ever, memory is bounded, and misses are answered soon after the upstream is back.
func TestDeadUpstream(t *testing.T) {
	proctest.FindProgram(t, "nft", "nftables")
	if !proctest.Soak() { // what docs/reliability.md tells of is of a quiet machine, and the agent has all of it
		proctest.ReserveCPU(t)
	}
	network := nodetest.Start(t, nodetest.Options{Pods: 1, NoIPv6: true})
	server := netip.AddrPortFrom(network.Upstream.IPv4, 53)
	startNSD(t, network.Upstream, server, "test", "miss", tag(0))
	a := start(t, settings{
		ownCPU: !proctest.Soak(), host: network.Node, listen: netip.MustParseAddrPort("127.0.0.1:53"), admin: netip.MustParseAddrPort("127.0.0.1:9253"),
		rest: forwardTo(server.String()) + "cache: {size: 16Mi}\n",
	})
	const names, hitRate = 100, 1000
	for i := range names {
		if r, _ := a.ask(t, nameOf(i, "miss.test")); r.Rcode != dns.RcodeSuccess {
			t.Fatalf("before: %s", dns.RcodeToString[r.Rcode])
		}
	}
	rate, span := proctest.OrdinaryOrSoak(10_000, 50_000), proctest.OrdinaryOrSoak(5*time.Second, time.Minute)
	hits := loadOptions{addr: a.settings.listen, dial: a.settings.dial, rate: hitRate, length: span + 20*time.Second, suffix: "miss.test", names: names}
	misses := loadOptions{addr: a.settings.listen, dial: a.settings.dial, rate: rate, length: span + 20*time.Second, suffix: "miss.test", first: 10_000}

	h := startLoad(t, hits)
	calm := time.Now()
	time.Sleep(proctest.OrdinaryOrSoak(time.Second, 5*time.Second))
	before := a.Usage(t).RSS >> 20
	dropPackets(t, network.Upstream)
	flood := time.Now()
	m := startLoad(t, misses)
	time.Sleep(span)
	back := time.Now()
	if _, err := network.Upstream.Output(t.Context(), "nft", "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	limit := proctest.OrdinaryOrSoak(3*time.Second, time.Second)
	recovered := m.firstGood(t, back, 10*time.Second)
	time.Sleep(limit + 2*time.Second)
	m.end()
	h.end()
	used := a.Usage(t)
	now, peak := used.RSS>>20, used.Peak>>20
	silent, after := m.between(flood, back), m.between(back.Add(limit), time.Now())
	quiet, loud := h.between(calm, flood), h.between(flood, back)
	proctest.Figure(t, "%d misses a second: memory %d MiB before, at most %d MiB, %d MiB after", rate, before, peak, now)
	proctest.Figure(t, "hits without the flood: %s", quiet)
	proctest.Figure(t, "hits in the flood: %s", loud)
	proctest.Figure(t, "misses in the flood: %s", silent)
	proctest.Figure(t, "first answer %s after the return; from %s on: %s", ms(recovered), limit, after)
	if most := before + 64; peak > most {
		t.Errorf("memory grew to %d MiB, want at most %d", peak, most)
	}
	if loud.bad() > loud.asked/1000 { // under so many queries a buffer may overflow
		t.Errorf("names in the cache: %s, want NOERROR for all", loud)
	}
	if most := proctest.OrdinaryOrSoak(500*time.Millisecond, time.Millisecond); loud.quantile(990) > most {
		t.Errorf("names in the cache: p99 %s, want %s", ms(loud.quantile(990)), most)
	}
	if recovered > limit {
		t.Errorf("the first answer came %s after the upstream, want %s", ms(recovered), limit)
	}
	if after.bad() > after.asked/proctest.OrdinaryOrSoak(4, 100) {
		t.Errorf("%s after the return: %s, want NOERROR for nearly all", limit, after)
	}
}

// TestForgottenConnections has a firewall forget all open connections: their packets are lost, and new ones work. Queries
// are answered all the same.
func TestForgottenConnections(t *testing.T) {
	proctest.FindProgram(t, "nft", "nftables")
	network := nodetest.Start(t, nodetest.Options{Pods: 1, NoIPv6: true})
	server := netip.AddrPortFrom(network.Upstream.IPv4, 53)
	startNSD(t, network.Upstream, server, "test", "miss", tag(0))
	a := start(t, settings{
		host: network.Node, listen: netip.MustParseAddrPort("127.0.0.1:53"), admin: netip.MustParseAddrPort("127.0.0.1:9253"),
		rest: forwardTo("tcp://" + server.String()),
	})
	for i := range 4 {
		if r, _ := a.ask(t, nameOf(i, "miss.test")); r.Rcode != dns.RcodeSuccess {
			t.Fatalf("before: %s", dns.RcodeToString[r.Rcode])
		}
	}
	for _, rule := range []string{
		"add table inet forget", "add chain inet forget in { type filter hook prerouting priority -100; }",
		"add rule inet forget in tcp dport 53 tcp flags & (syn | ack) == syn ct mark set 1",
		"add rule inet forget in tcp dport 53 ct mark != 1 drop",
	} {
		if _, err := network.Upstream.Output(t.Context(), "nft", rule); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		start := time.Now()
		r, _ := a.ask(t, nameOf(100+i, "miss.test"))
		if took := time.Since(start); r.Rcode != dns.RcodeSuccess || took > 1500*time.Millisecond {
			t.Errorf("query %d: %s after %s, want NOERROR within 1.5 s", i, dns.RcodeToString[r.Rcode], ms(took))
		}
	}
}

// firstGood waits until an answer came since a time, and tells how long after it that was.
func (l *load) firstGood(t *testing.T, since time.Time, limit time.Duration) (took time.Duration) {
	t.Helper()
	proctest.Eventually(t, limit, "a good answer", func() bool {
		for i := range int(l.asked.Load()) {
			o := &l.outcomes[i]
			at := o.sent.Load() + o.took.Load()
			if o.took.Load() > 0 && o.code.Load() == dns.RcodeSuccess && at >= since.UnixNano() {
				took = time.Duration(at - since.UnixNano())
				return true
			}
		}
		return false
	})
	return took
}
