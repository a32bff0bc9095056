// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// The names that change while no agent runs.
const (
	oldName   = "old.shop.svc.cluster.local."
	freshName = "fresh.shop.svc.cluster.local."
)

// restarted is a cluster whose agents are ended, and that loses its API server and its central resolver before they
// start again.
type restarted struct {
	cluster *kubetest.Cluster
	coredns *kubetest.CoreDNS

	alone   *node // has the zone and has no other agent
	backed  *node // has the zone and asks CoreDNS about what it cannot know
	central *node // asks CoreDNS
	events  *node // asks CoreDNS and watches services
}

// TestWarmRestart has agents answer what they knew before, marked as old, and the truth when it can be had again.
func TestWarmRestart(t *testing.T) {
	t.Parallel()
	r := &restarted{cluster: kubetest.Start(t, kubetest.Options{})}
	openShop(t, r.cluster)
	r.coredns = startCoreDNS(t, r.cluster, netip.AddrPort{}, "cluster.local")
	direct, resolver := kubeconfig(r.cluster.Kubeconfig(kubetest.Admin)), central(r.coredns.Addr())
	asking := []string{"resolver: central", resolver, "ranges: [10.96.0.0/12]"}
	r.alone = startReady(t, keeping(t, local("ranges: [10.96.0.0/12]", direct)))
	r.backed = startReady(t, keeping(t, local(direct, resolver)))
	r.central = startReady(t, keeping(t, asking))
	r.events = startReady(t, keeping(t, append(asking, "invalidate: true", direct)))
	proctest.Eventually(t, limit, "services are in sync", func() bool { return r.events.status(t).kind(t, "service").Synced })
	time.Sleep(settled) // the events of the first list
	r.fillCaches(t)

	for _, n := range r.all() {
		n.Stop(t)
	}
	deleteService(t, r.cluster, "old")
	kubetest.Apply(t, r.cluster, shopService("fresh", "10.96.1.3"))
	r.cluster.KillAPIServer()
	r.coredns.Close()
	for _, n := range []**node{&r.alone, &r.backed, &r.central, &r.events} {
		*n = startNode(t, (*n).settings)
	}
	r.testRestoredZone(t)
	r.testRestoredCache(t)
	if t.Failed() {
		return
	}
	r.testRecovery(t)
}

// keeping are the settings of an agent that keeps a snapshot.
func keeping(t *testing.T, cluster []string) settings {
	t.Helper()
	return settings{
		cluster: cluster,
		more:    fmt.Sprintf("snapshot: {folder: %q, period: 10s}", filepath.Join(t.TempDir(), "kept")),
	}
}

func (r *restarted) all() []*node { return []*node{r.alone, r.backed, r.central, r.events} }

// fillCaches asks every agent for all that it is to know.
func (r *restarted) fillCaches(t *testing.T) {
	t.Helper()
	for _, n := range r.all() {
		n.expect(t,
			expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1"},
			expectedAnswer{oldName, dns.TypeA, "NOERROR 10.96.1.9"},
			expectedAnswer{setName, dns.TypeA, "NOERROR 10.1.2.1 10.1.2.2"},
			expectedAnswer{webReverse, dns.TypePTR, "NOERROR " + webName},
			expectedAnswer{freshName, dns.TypeA, "NXDOMAIN"},
		)
	}
}

// testRestoredZone checks the agents that have the zone while no server can confirm it.
func (r *restarted) testRestoredZone(t *testing.T) {
	t.Helper()
	for _, n := range []*node{r.alone, r.backed} {
		n.expect(t,
			expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1 ede=3"},
			expectedAnswer{oldName, dns.TypeA, "NOERROR 10.96.1.9 ede=3"},
			expectedAnswer{setName, dns.TypeA, "NOERROR 10.1.2.1 10.1.2.2 ede=3"},
			expectedAnswer{webReverse, dns.TypePTR, "NOERROR " + webName + " ede=3"},
			expectedAnswer{"_http._tcp." + webName, dns.TypeSRV, "NOERROR 0 100 80 " + webName + " ede=3"},
			expectedAnswer{freshName, dns.TypeA, "NXDOMAIN ede=19"},
			expectedAnswer{"absent.svc.cluster.local.", dns.TypeA, "NXDOMAIN ede=19"},
			expectedAnswer{"www.example.com.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, // no object can make it
		)
		proctest.Eventually(t, limit, "/readyz says 503 and why", func() bool { // it says that it starts at first
			code, body, err := n.Get("/readyz")
			return err == nil && code == http.StatusServiceUnavailable && strings.Contains(body, "from a snapshot")
		})
		s := n.status(t)
		for _, k := range s.Cluster.Kinds {
			if k.Synced || !k.Restored {
				t.Errorf("/status of kind %s: %+v", k.Kind, k)
			}
		}
	}
}

// testRestoredCache looks at the agents that know what they asked for.
func (r *restarted) testRestoredCache(t *testing.T) {
	t.Helper()
	for _, n := range []*node{r.central, r.events} {
		n.awaitAnswer(t, webName, "NOERROR 10.96.1.1 ede=3") // CoreDNS gives it 5 s
		n.awaitAnswer(t, setName, "NOERROR 10.1.2.1 10.1.2.2 ede=3")
		n.awaitAnswer(t, freshName, "NXDOMAIN ede=19")
		if said := n.answerText("never.shop.svc.cluster.local.", dns.TypeA); !strings.HasPrefix(said, "SERVFAIL") {
			t.Errorf("what no client asked for before: %s", said)
		}
	}
}

// testRecovery has both come back, and then what is true is said, without a mark.
func (r *restarted) testRecovery(t *testing.T) {
	t.Helper()
	denied := startLoad(t, r.alone.settings.addr, inTurn(
		expectedQuery{freshName, dns.TypeA, []string{"NXDOMAIN ede=19", "NOERROR 10.96.1.3 ede=3", "NOERROR 10.96.1.3"}},
		expectedQuery{webName, dns.TypeA, []string{"NOERROR 10.96.1.1 ede=3", "NOERROR 10.96.1.1"}},
	))
	assert.NoError(t, r.cluster.StartAPIServer(t.Context()))
	assert.NoError(t, r.coredns.Start(t.Context()))
	began := time.Now()
	for _, n := range r.all() {
		n.awaitReady(t)
		n.awaitAnswer(t, freshName, "NOERROR 10.96.1.3")
		n.awaitAnswer(t, oldName, "NXDOMAIN")
		n.awaitAnswer(t, webName, "NOERROR 10.96.1.1")
		n.awaitAnswer(t, setName, "NOERROR 10.1.2.1 10.1.2.2")
	}
	proctest.Figure(t, "API server and CoreDNS back: all agents say what is true %s later", time.Since(began).Round(100*time.Millisecond))
	denied.end(t)
	for _, k := range r.alone.status(t).Cluster.Kinds {
		if !k.Synced || k.Restored {
			t.Errorf("/status of kind %s: %+v", k.Kind, k)
		}
	}
}
