// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestStoreRestored puts another cluster in the place of the first, one that has seen fewer changes: so it looks when the
// store was restored from a backup. The new server knows nothing of the versions that the agent asks to go on from, and
// does not always say so.
func TestStoreRestored(t *testing.T) {
	t.Parallel()
	before := kubetest.Start(t, kubetest.Options{})
	openShop(t, before)
	var later []runtime.Object
	for i := range 500 {
		later = append(later, shopService(fmt.Sprintf("later-%d", i), fmt.Sprintf("10.98.%d.%d", i/250, i%250+1)))
	}
	kubetest.Apply(t, before, later...)
	after := kubetest.Start(t, kubetest.Options{})
	openShop(t, after)
	deleteService(t, after, "old")
	kubetest.Apply(t, after, shopService("restored", "10.96.5.1"), shopSet("db-1", endpoint("10.1.2.9")))

	g := startGateway(t, before)
	config := kubeconfig(g.kubeconfig)
	alone := startReady(t, settings{cluster: local("staleAfter: 10s", config)})
	backed := startReady(t, settings{cluster: local("staleAfter: 10s", config, central(startCentral(t)))})
	const restored = "restored.shop.svc.cluster.local."
	for _, n := range []*node{alone, backed} {
		n.expectSteady(t)
		n.expect(t, expectedAnswer{"later-499.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.98.1.250"}, expectedAnswer{restored, dns.TypeA, "NXDOMAIN"})
	}
	g.refuse()
	g.forwardTo(t, after)
	g.accept()
	changed := time.Now()
	backed.awaitNot(t, restored, "NXDOMAIN")
	if took := time.Since(changed); took > staleAfter+loadMargin {
		t.Errorf("a service was denied for %s, want not for longer than %s", took, staleAfter)
	}
	for _, n := range []*node{alone, backed} {
		n.awaitAnswer(t, restored, "NOERROR 10.96.5.1")
		n.awaitAnswer(t, "old.shop.svc.cluster.local.", "NXDOMAIN")
		n.awaitAnswer(t, "later-499.shop.svc.cluster.local.", "NXDOMAIN")
		n.awaitAnswer(t, setName, "NOERROR 10.1.2.9")
		n.expect(t, expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1"})
	}
	took := time.Since(changed)
	t.Logf("healed after %s", took)
	if took > 4*staleAfter {
		t.Errorf("healed after %s, want within %s", took, 4*staleAfter)
	}
	deleteService(t, after, "restored")
	for _, n := range []*node{alone, backed} {
		n.awaitAnswer(t, restored, "NXDOMAIN")
	}
}

// awaitNot asks for the IPv4 addresses until the answer is another.
func (n *node) awaitNot(t *testing.T, name, unwanted string) {
	t.Helper()
	proctest.Eventually(t, limit, fmt.Sprintf("%s is no longer %q", name, unwanted), func() bool { return n.answerText(name, dns.TypeA) != unwanted })
}
