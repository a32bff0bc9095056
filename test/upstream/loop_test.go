// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestLoop has agents that ask each other, and one that asks itself. They say so, answer SERVFAIL at once, and ask no more
// than they must.
func TestLoop(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		start func(t *testing.T, better string) []*agent
	}{
		{name: "two that ask each other", start: startRing},
		{name: "one that asks itself", start: startCircle},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agents := tt.start(t, upstreamtest.New(answerAddrInName).Listen(t).String())
			const names = 50
			var slowest time.Duration
			for i := range names {
				r, took := agents[0].ask(t, fmt.Sprintf("n%d.test.", i))
				slowest = max(slowest, took)
				if r.Rcode != dns.RcodeServerFailure || took > 2*time.Second {
					t.Errorf("query %d: %s after %s, want SERVFAIL soon", i, dns.RcodeToString[r.Rcode], ms(took))
					break
				}
			}
			// The first of a ring that finds out cuts it, and what the others ask does not come back any more.
			var finder *agent
			named := proctest.Eventually(t, 5*time.Second, "/status names the loop", func() bool {
				i := slices.IndexFunc(agents, func(a *agent) bool { return a.upstream(t, "127.0.0.1:").State == "looped" })
				if i >= 0 {
					finder = agents[i]
				}
				return i >= 0
			})
			if s := finder.status(t); len(s.Problems) == 0 || !strings.Contains(s.Problems[0].What, "127.0.0.1:") {
				t.Errorf("problems %+v, want one that names the upstream", s.Problems)
			}
			sent := 0
			for _, a := range agents {
				sent += a.upstreamQueries(t)
			}
			proctest.Figure(t, "%d names: SERVFAIL, the slowest after %s; %d queries sent in all; named %s later", names, ms(slowest), sent, ms(named))
			if sent > 10*names { // each may go round until the loop is known
				t.Errorf("%d queries left the agents for %d names", sent, names)
			}
			began, before := time.Now(), agents[0].upstreamQueries(t)
			for i := range names {
				name := nameOf(i, "better.test")
				if r, took := agents[0].ask(t, name); addressOf(r) != addressIn(i).String() {
					t.Errorf("of the route with a good upstream too: %s %q after %s", dns.RcodeToString[r.Rcode], addressOf(r), ms(took))
					break
				}
			}
			proctest.Figure(t, "%d names of which another upstream knows: answered within %s", names, ms(time.Since(began)))
			if n := agents[0].upstreamQueries(t) - before; n > 3*names {
				t.Errorf("%d queries left the agent for %d names that another upstream knows", n, names)
			}
		})
	}
}

// startRing runs two agents that ask each other.
func startRing(t *testing.T, better string) []*agent {
	t.Helper()
	first, second := proctest.FreeAddr(t), proctest.FreeAddr(t)
	return []*agent{
		start(t, settings{listen: first, rest: looped(second, better)}),
		start(t, settings{listen: second, rest: looped(first, better)}),
	}
}

// startCircle runs an agent that asks itself through another address.
func startCircle(t *testing.T, better string) []*agent {
	t.Helper()
	addr := proctest.FreeAddr(t)
	return []*agent{start(t, settings{listen: addr, rest: looped(startRelay(t, addr), better)})}
}

// looped is a configuration with an upstream that leads back, and a route that has a good one too.
func looped(back netip.AddrPort, better string) string {
	return fmt.Sprintf("forward: [{zone: ., to: [%[1]q]}, {zone: better.test, to: [%[1]q, %[2]q]}]\n", back, better)
}

// startRelay hands what is asked to a server and what that says back, as a load balancer does. It returns where.
func startRelay(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	var relayed sync.WaitGroup
	t.Cleanup(relayed.Wait)
	return startFakeServer(t, func(f *fakeServer, q []byte, from netip.AddrPort) {
		relayed.Go(func() {
			conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(answerTimeout))
			r := make([]byte, 4096)
			if _, err = conn.Write(q); err != nil {
				return
			}
			if n, err := conn.Read(r); err == nil {
				f.send(r[:n], from)
			}
		})
	}).addr
}
