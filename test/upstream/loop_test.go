// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestLoop has two agents ask each other. They say so, answer SERVFAIL at once, and ask no more than they must.
func TestLoop(t *testing.T) {
	t.Parallel()
	better := upstreamtest.New(answerAddrInName).Listen(t).String()
	first, second := proctest.FreeAddr(t), proctest.FreeAddr(t)
	agents := []*agent{
		start(t, settings{listen: first, rest: looped(second, better)}),
		start(t, settings{listen: second, rest: looped(first, better)}),
	}
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
	named := proctest.Eventually(t, time.Minute, "/status names the loop", func() bool {
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
}

// looped is a configuration with an upstream that leads back, and a route that has a good one too.
func looped(back netip.AddrPort, better string) string {
	return fmt.Sprintf("forward: [{zone: ., to: [%[1]q]}, {zone: better.test, to: [%[1]q, %[2]q]}]\n", back, better)
}

// addrInName is the address that a name begins with.
func addrInName(name string) (netip.Addr, bool) {
	label, _, _ := strings.Cut(name, ".")
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
	return a, err == nil
}

// answerAddrInName is the script of a server that gives each name the address that it spells, and none to others.
func answerAddrInName(q upstreamtest.Query) upstreamtest.Action {
	a, ok := addrInName(q.Name)
	if !ok || q.Type != dns.TypeA {
		return upstreamtest.Action{}
	}
	return upstreamtest.Action{Records: []string{fmt.Sprintf("%s 300 IN A %s", q.Name, a)}}
}
