// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// limit bounds each wait for the cluster. A machine that runs other tests is slow.
const limit = time.Minute

// account is a user with the permissions that a test gives it, as the service account of a pod.
const account = "system:serviceaccount:kube-system:node-cache"

// The names that the tests of faults ask for.
const (
	webName    = "web.shop.svc.cluster.local."
	setName    = "db.shop.svc.cluster.local."
	absentName = "absent.shop.svc.cluster.local."
	webReverse = "1.1.96.10.in-addr.arpa."
)

// shopService has an address.
func shopService(name, ip string) *corev1.Service {
	return newService("shop", name, at(ip), ports("http:80"))
}

// shopSet is a slice of the headless service db, with the label that the controller would give it.
func shopSet(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := newSlice("db", name, slicePorts("sql:5432"), endpoints...)
	s.Labels[corev1.IsHeadlessService] = ""
	return s
}

// openShop makes the objects that the tests of faults begin with.
func openShop(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	kubetest.Apply(t, c, kubetest.Namespace("shop"))
	kubetest.Apply(t, c, shopService("web", "10.96.1.1"), shopService("old", "10.96.1.9"),
		newService("shop", "db", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("db")),
		shopSet("db-1", endpoint("10.1.2.1"), endpoint("10.1.2.2")))
}

// deleteService deletes a service of namespace shop.
func deleteService(t *testing.T, c *kubetest.Cluster, name string) {
	t.Helper()
	assert.NoError(t, c.Client().CoreV1().Services("shop").Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// steady are right answers whatever becomes of the API server, as long as the view is not stale.
func steady() []expectedQuery {
	return []expectedQuery{
		{webName, dns.TypeA, []string{"NOERROR 10.96.1.1"}},
		{setName, dns.TypeA, []string{"NOERROR 10.1.2.1 10.1.2.2"}},
		{absentName, dns.TypeA, []string{"NXDOMAIN"}},
		{webReverse, dns.TypePTR, []string{"NOERROR " + webName}},
		{"_http._tcp." + webName, dns.TypeSRV, []string{"NOERROR 0 100 80 " + webName}},
	}
}

// startCentral stands for a central resolver that gives every name the same address, so that its answers are known.
func startCentral(t *testing.T) netip.AddrPort {
	t.Helper()
	return serveAddress(t, func() string { return "1 IN A 192.0.2.7" })
}

// serveAddress gives every name the address record, without its owner, that record returns.
func serveAddress(t *testing.T, record func() string) netip.AddrPort {
	t.Helper()
	return serve(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			rr, err := dns.NewRR(q.Question[0].Name + " " + record())
			if err != nil {
				panic(err) // the name was parsed already
			}
			m.Answer = []dns.RR{rr}
		}
		return m
	})
}

// fromCentral is what startCentral's resolver says.
const fromCentral = "NOERROR 192.0.2.7"

// serve answers over UDP and TCP until the test ends.
func serve(t *testing.T, answer func(q *dns.Msg) *dns.Msg) netip.AddrPort {
	t.Helper()
	return proctest.StartDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := answer(q)
		if w.LocalAddr().Network() == "udp" {
			m.Truncate(1232)
		}
		_ = w.WriteMsg(m) // a client may be gone
	})
}

// grant gives the account a cluster role of that name, or changes what is in it.
func grant(t *testing.T, c *kubetest.Cluster, rules ...rbacv1.PolicyRule) {
	t.Helper()
	kubetest.Apply(t, c,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "node-cache"}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "node-cache"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "node-cache"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: account}},
		})
}

// rule allows what a watch needs.
func rule(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
}

// TestServerFaults takes the API server away in every way that a machine can.
func TestServerFaults(t *testing.T) { //nolint:tparallel // the one server has its faults one after the other
	t.Parallel()
	f := &serverFaults{cluster: kubetest.Start(t, kubetest.Options{})}
	openShop(t, f.cluster)
	f.gateway = startGateway(t, f.cluster)
	f.testAbsentAtStart(t)
	if t.Failed() {
		return
	}
	t.Run("killed under load", f.testKilled)
	t.Run("silent", f.testSilent)
	t.Run("history lost", f.testHistoryLost)
}

// serverFaults is a cluster whose API server fails, and who depends on it.
type serverFaults struct {
	cluster *kubetest.Cluster
	gateway *gateway
	alone   *node // has no other agent
	backed  *node // has a central resolver
	behind  *node // reaches the API server through the gateway
}

// restart starts the API server again.
func (f *serverFaults) restart(t *testing.T) {
	t.Helper()
	assert.NoError(t, f.cluster.StartAPIServer(t.Context()))
}

// testAbsentAtStart starts agents while there is no API server.
func (f *serverFaults) testAbsentAtStart(t *testing.T) {
	t.Helper()
	f.cluster.KillAPIServer()
	direct := kubeconfig(f.cluster.Kubeconfig(kubetest.Admin))
	outside := startUpstream(t)
	f.alone = startNode(t, settings{root: outside, cluster: local(direct)})
	f.backed = startNode(t, settings{root: outside, cluster: local(direct, central(startCentral(t)))})
	f.behind = startNode(t, settings{root: outside, cluster: local(kubeconfig(f.gateway.kubeconfig))})
	resolver := startNode(t, settings{command: "resolver", root: outside, cluster: []string{direct}})
	for _, n := range []*node{f.alone, f.behind, resolver} {
		n.expect(t,
			expectedAnswer{webName, dns.TypeA, "SERVFAIL ede=14"},
			expectedAnswer{absentName, dns.TypeA, "SERVFAIL ede=14"},
			expectedAnswer{setName, dns.TypeSRV, "SERVFAIL ede=14"},
			expectedAnswer{"absent.svc.cluster.local.", dns.TypeA, "SERVFAIL ede=14"},
			expectedAnswer{"www.example.com.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
			expectedAnswer{"dns-version.cluster.local.", dns.TypeTXT, `NOERROR "1.1.0"`},
			expectedAnswer{"large.example.test.", dns.TypeMX, "NOERROR"},
		)
	}
	f.backed.expect(t, expectedAnswer{webName, dns.TypeA, fromCentral}, expectedAnswer{absentName, dns.TypeA, fromCentral}, expectedAnswer{setName, dns.TypeA, fromCentral})
	all := []*node{f.alone, f.backed, f.behind, resolver}
	for _, n := range all {
		proctest.Eventually(t, limit, "/readyz says 503 and why", func() bool { // it says that it starts at first
			code, body, err := n.Get("/readyz")
			return err == nil && code == 503 && strings.Contains(body, "not synced")
		})
		if s := n.status(t); s.Cluster.InSync || len(s.Problems) == 0 {
			t.Errorf("/status without an API server shows no problem: %+v", s)
		}
	}
	f.restart(t)
	began := time.Now()
	for _, n := range all {
		n.awaitReady(t)
		n.expectSteady(t)
	}
	limit := proctest.OrdinaryOrSoak(time.Minute, 20*time.Second) // other tests have the processors
	if took := time.Since(began); took > limit {
		t.Errorf("in sync %s after the API server was ready, want within %s", took, limit)
	}
}

// expectSteady asks each of [steady] once.
func (n *node) expectSteady(t *testing.T) {
	t.Helper()
	for _, q := range steady() {
		n.expect(t, expectedAnswer{q.name, q.qtype, q.right[0]})
	}
}

// staleAfter is the limit of freshness in these tests, and loadMargin what a busy machine may add to it.
const (
	staleAfter = 10 * time.Second
	loadMargin = 5 * time.Second
)

// outage is how long the API server stays away.
const outage = 12 * time.Second

// testKilled has the API server end and come again while names are asked for.
func (f *serverFaults) testKilled(t *testing.T) {
	nodes := []*node{f.alone, f.backed, f.behind}
	var loads []*load
	for _, n := range nodes {
		loads = append(loads, startLoad(t, n.settings.addr, inTurn(steady()...)))
	}
	before := f.alone.status(t).Cluster.Requests
	killed := time.Now()
	f.cluster.KillAPIServer()
	time.Sleep(outage)
	// Three kinds: services, slices and namespaces. An attempt that finds no server counts too.
	if got, most := f.alone.status(t).Cluster.Requests-before, 3*(int(outage.Seconds())+2); got > most {
		t.Errorf("%d requests in an outage of %s, want at most %d", got, outage, most)
	}
	f.restart(t)
	kubetest.Apply(t, f.cluster, shopService("new", "10.96.1.2"))
	for _, n := range nodes {
		n.awaitAnswer(t, "new.shop.svc.cluster.local.", "NOERROR 10.96.1.2")
	}
	length := time.Since(killed)
	for _, l := range loads {
		l.end(t)
	}
	tries := map[string]int{}
	for _, r := range f.gateway.since(killed) {
		tries[r.resource]++
	}
	for _, resource := range []string{"services", "endpointslices", "namespaces"} {
		if most := int(length.Seconds()) + 2; tries[resource] < 1 || tries[resource] > most {
			t.Errorf("%d requests for %s within %s, want 1 to %d", tries[resource], resource, length, most)
		}
	}
	t.Logf("requests within %.0f s: %v", length.Seconds(), tries)
}

// testSilent has the API server stop while its connections stay open. What was known is given with a mark once it is older than
// the limit, what was not known is asked of the central resolver, and afterwards all is as before.
func (f *serverFaults) testSilent(t *testing.T) {
	direct := kubeconfig(f.cluster.Kubeconfig(kubetest.Admin))
	alone := startReady(t, settings{cluster: local("staleAfter: 10s", direct)})
	backed := startReady(t, settings{cluster: local("staleAfter: 10s", direct, central(startCentral(t)))})
	f.cluster.SignalAPIServer(syscall.SIGSTOP)
	silent := time.Now()
	backed.awaitAnswer(t, absentName, fromCentral)
	alone.awaitAnswer(t, absentName, "NXDOMAIN ede=19")
	if took := time.Since(silent); took > staleAfter+loadMargin {
		t.Errorf("denied without a mark for %s, want not for longer than %s", took, staleAfter)
	}
	for _, n := range []*node{alone, backed} {
		n.expect(t, expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1 ede=3"}, expectedAnswer{setName, dns.TypeA, "NOERROR 10.1.2.1 10.1.2.2 ede=3"})
		if s := n.status(t); len(s.Problems) < 3 || !strings.HasPrefix(s.Problems[0].What, "not confirmed fresh for ") {
			t.Errorf("/status of an old view: %+v", s.Problems)
		}
	}
	f.cluster.SignalAPIServer(syscall.SIGCONT)
	resumed := time.Now()
	kubetest.Apply(t, f.cluster, shopService("heard", "10.96.1.4"))
	for _, n := range []*node{alone, backed} {
		n.awaitAnswer(t, "heard.shop.svc.cluster.local.", "NOERROR 10.96.1.4")
		n.awaitAnswer(t, absentName, "NXDOMAIN")
	}
	if took := time.Since(resumed); took > staleAfter+loadMargin {
		t.Errorf("healed %s after the API server, want within %s", took, staleAfter)
	}
}

// testHistoryLost has the API server forget what happened since the agent last heard: it says 410 Gone.
func (f *serverFaults) testHistoryLost(t *testing.T) {
	f.gateway.refuse()
	deleteService(t, f.cluster, "old")
	kubetest.Apply(t, f.cluster, shopService("fresh", "10.96.1.3"), shopSet("db-1", endpoint("10.1.2.2"), endpoint("10.1.2.3")))
	f.cluster.KillAPIServer()
	f.restart(t)
	f.behind.expect(t, expectedAnswer{"old.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.1.9"})
	accepted := time.Now()
	f.gateway.accept()
	f.behind.awaitAnswer(t, "old.shop.svc.cluster.local.", "NXDOMAIN")
	f.behind.awaitAnswer(t, "fresh.shop.svc.cluster.local.", "NOERROR 10.96.1.3")
	f.behind.awaitAnswer(t, setName, "NOERROR 10.1.2.2 10.1.2.3")
	f.behind.expect(t, expectedAnswer{"9.1.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"}, expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1"})
	lists := map[string]int{}
	for _, r := range f.gateway.since(accepted) {
		if r.first {
			lists[r.resource]++
		}
	}
	for _, resource := range []string{"services", "endpointslices"} {
		if lists[resource] < 1 || lists[resource] > 2 {
			t.Errorf("%s were listed %d times, want once, or twice at the most: was the history lost?", resource, lists[resource])
		}
	}
}
