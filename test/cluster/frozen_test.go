// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// staleAfter is the limit of freshness in these tests, and slack what a busy machine may add to it.
const (
	staleAfter = 10 * time.Second
	loadMargin = 5 * time.Second
)

// newName is created while nothing is heard.
const newName = "late.shop.svc.cluster.local."

// testFrozenWatch has the watches stay open and bring nothing, while other requests are answered.
func testFrozenWatch(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	g := startGateway(t, c)
	n := startReady(t, settings{cluster: local("staleAfter: 10s", kubeconfig(g.kubeconfig))})
	// The first list and the watch after it share a request, which is ended soon. What goes on from there is another.
	time.Sleep(staleAfter / 2)
	n.expect(t, expectedAnswer{"silent.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"})
	held := startLoad(t, n.settings.addr, inTurn(expectedQuery{webName, dns.TypeA, []string{"NOERROR 10.96.1.1", "NOERROR 10.96.1.1 ede=3"}}))
	g.hold()
	kubetest.Apply(t, c, shopService("silent", "10.96.2.1"))
	created := time.Now()
	n.awaitAnswer(t, "silent.shop.svc.cluster.local.", "NOERROR 10.96.2.1")
	took := time.Since(created)
	t.Logf("known after %s", took)
	if took > staleAfter+loadMargin {
		t.Errorf("known after %s, want within %s", took, staleAfter)
	}
	held.end(t)
	n.expect(t, expectedAnswer{absentName, dns.TypeA, "NXDOMAIN"})
}

// testFrozenConnection has every connection to the API server fall silent, new ones too, as if the server had stopped.
func testFrozenConnection(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	proxy := kubetest.StartProxy(t, c)
	config, err := c.KubeconfigAt(kubetest.Admin, proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	alone := startReady(t, settings{cluster: local("staleAfter: 10s", kubeconfig(config))})
	backed := startReady(t, settings{cluster: local("staleAfter: 10s", kubeconfig(config), central(startCentral(t)))})
	held := inTurn(expectedQuery{webName, dns.TypeA, []string{"NOERROR 10.96.1.1", "NOERROR 10.96.1.1 ede=3"}})
	loads := []*load{startLoad(t, alone.settings.addr, held), startLoad(t, backed.settings.addr, held)}
	for _, n := range []*node{alone, backed} {
		n.expect(t, expectedAnswer{newName, dns.TypeA, "NXDOMAIN"})
	}

	proxy.Freeze()
	kubetest.Apply(t, c, shopService("late", "10.96.2.2"))
	created := time.Now()
	backed.awaitAnswer(t, newName, fromCentral)
	alone.awaitAnswer(t, newName, "NXDOMAIN ede=19")
	if took := time.Since(created); took > staleAfter+loadMargin {
		t.Errorf("denied for %s, want not for longer than %s", took, staleAfter)
	}
	// From now on the view is old, and stays so while nothing is heard. What the central resolver said the agent gives once
	// more where the next answer takes it longer than 200 ms (serveStale.after).
	denied := startLoad(t, backed.settings.addr, inTurn(expectedQuery{newName, dns.TypeA, []string{fromCentral, staleText(fromCentral)}}))
	time.Sleep(staleAfter)
	denied.end(t)
	for _, n := range []*node{alone, backed} {
		n.expect(t, expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1 ede=3"}, expectedAnswer{setName, dns.TypeA, "NOERROR 10.1.2.1 10.1.2.2 ede=3"})
		if s := n.status(t); len(s.Problems) < 3 || !strings.HasPrefix(s.Problems[0].What, "not confirmed fresh for ") {
			t.Errorf("/status of an old view: %+v", s.Problems)
		}
	}

	proxy.Resume()
	resumed := time.Now()
	for _, n := range []*node{alone, backed} {
		n.awaitAnswer(t, newName, "NOERROR 10.96.2.2")
		n.awaitAnswer(t, absentName, "NXDOMAIN")
	}
	if took := time.Since(resumed); took > staleAfter+loadMargin {
		t.Errorf("healed %s after the connection, want within %s", took, staleAfter)
	}
	for _, l := range loads {
		l.end(t)
	}
}
