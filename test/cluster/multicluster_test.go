// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// clusterSetLine is the line of the cluster section.
const clusterSetLine = "clusterSet: clusterset.local"

// TestMultiCluster has its steps with one API server. Each needs those before it.
func TestMultiCluster(t *testing.T) { //nolint:tparallel // its steps share a cluster
	t.Parallel()
	m := multiCluster{kubetest.Start(t, kubetest.Options{Users: []string{account}})}
	m.serve(t, "v1beta1", "v1alpha1")
	m.openSet(t, "v1beta1")
	t.Run("conformance", m.testConformance)
	t.Run("forbidden", m.testForbidden)
	t.Run("events", m.testEvents)
	t.Run("invalid", m.testInvalid)
}

// testConformance has the DNS specs of the conformance suite of sigs.k8s.io/mcs-api, by their names, in a set
// of two clusters, one after the other. The suite itself is no released module, and asks from pods.
func (m multiCluster) testConformance(t *testing.T) {
	t.Helper()
	const web, db = "web.shop.svc.clusterset.local.", "db.shop.svc.clusterset.local."
	for _, cluster := range []struct{ name, web, local string }{
		{"west", "10.97.0.7", "NXDOMAIN"}, {"east", "10.97.0.1", "NOERROR 10.96.1.1"},
	} {
		t.Run(cluster.name, func(t *testing.T) {
			m.putImport(t, "v1beta1", "web", "ClusterSetIP", []string{cluster.web}, importPort("http", 80))
			if cluster.name == "east" {
				kubetest.Apply(t, m.Cluster, shopService("web", "10.96.1.1"))
			}
			n := startReady(t, settings{cluster: local(clusterSetLine, kubeconfig(m.Kubeconfig(kubetest.Admin)))})
			for _, spec := range []struct {
				name string
				expectedAnswer
			}{
				{"a DNS lookup of a ClusterIP service should resolve to the clusterset IP", expectedAnswer{web, dns.TypeA, "NOERROR " + cluster.web}},
				{"a DNS SRV query of a ClusterIP service should return valid SRV records", expectedAnswer{web, dns.TypeSRV, "NOERROR 0 100 80 " + web}},
				{"DNS lookups of cluster.local should only resolve local services", expectedAnswer{webName, dns.TypeA, cluster.local}},
				{"a DNS query of a headless service should return the ready endpoint addresses of all the backing pods", expectedAnswer{db, dns.TypeA, "NOERROR 10.1.0.1 10.1.0.2 10.2.0.1"}},
				{"a DNS query of <hostname>.<clusterid> of a StatefulSet should return the requested pod's address", expectedAnswer{"db-0.west." + db, dns.TypeA, "NOERROR 10.2.0.1"}},
				{"a DNS SRV query of a headless service should return valid SRV records", expectedAnswer{
					"_sql._tcp." + db, dns.TypeSRV, "NOERROR 0 33 5432 db-0.east." + db + " 0 33 5432 db-0.west." + db + " 0 33 5432 db-1.east." + db,
				}},
			} {
				assert.Equal(t, spec.name, spec.want, n.answerText(spec.expectedAnswer.name, spec.qtype))
			}
		})
	}
}

// TestMultiClusterVersions has an API server without the CRD, with either version of it, with the other one in its place,
// and without it again. The agent follows without a restart, and is ready all the time.
func TestMultiClusterVersions(t *testing.T) {
	t.Parallel()
	m := multiCluster{kubetest.Start(t, kubetest.Options{Audit: true})}
	kubetest.Apply(t, m.Cluster, kubetest.Namespace("shop"))
	n := startReady(t, settings{cluster: local(clusterSetLine, "staleAfter: 10s", kubeconfig(m.Kubeconfig(kubetest.Admin)))}) // half a minute otherwise
	const web, db = "web.shop.svc.clusterset.local.", "db.shop.svc.clusterset.local."
	n.expect(t,
		expectedAnswer{web, dns.TypeA, "NXDOMAIN"}, expectedAnswer{"shop.svc.clusterset.local.", dns.TypeA, "NOERROR"},
		expectedAnswer{"dns-version.clusterset.local.", dns.TypeTXT, `NOERROR "1.0.0"`})
	if s := n.status(t); len(s.Problems) > 0 || !s.kind(t, "serviceimport").Synced {
		t.Errorf("/status without the CRD: %+v, want no problem", s)
	}
	notFound := func(resource string) (n int) {
		requests, err := m.Audit()
		assert.NoError(t, err)
		for _, r := range requests {
			if r.Resource == resource && r.Code == 404 && strings.HasPrefix(r.Agent, "node-cache") {
				n++
			}
		}
		return n
	}
	proctest.Eventually(t, limit, "the versions are asked for", func() bool { return notFound("") > 1 })
	if n := notFound("serviceimports"); n != 2 {
		t.Errorf("%d requests for a CRD that is missing, want one for each version", n)
	}
	for i, step := range []struct {
		name   string
		served []string
	}{
		{"the CRD appears, as v1alpha1", []string{"v1alpha1"}},
		{"v1beta1 in its place", []string{"v1beta1"}},
		{"both", []string{"v1beta1", "v1alpha1"}},
		{"v1alpha1 again", []string{"v1alpha1"}},
	} {
		ip := fmt.Sprintf("10.97.1.%d", i)
		m.serve(t, step.served...)
		m.openSet(t, step.served[0])
		m.putImport(t, step.served[0], "web", "ClusterSetIP", []string{ip})
		began := time.Now()
		n.awaitAnswer(t, web, "NOERROR "+ip)
		n.awaitAnswer(t, db, "NOERROR 10.1.0.1 10.1.0.2 10.2.0.1")
		proctest.Figure(t, "%s: served after %s", step.name, time.Since(began).Round(time.Millisecond))
	}
	m.remove(t, crdPath)
	n.awaitAnswer(t, web, "NXDOMAIN")
	n.awaitAnswer(t, db, "NXDOMAIN")
	if !n.ready() {
		t.Error("the agent is not ready")
	}
}

// testEvents changes objects one at a time: each event makes the answers right, and drops the answers that a
// central resolver gave before.
func (m multiCluster) testEvents(t *testing.T) {
	t.Helper()
	m.serve(t, "v1beta1")
	m.openSet(t, "v1beta1")
	n := startReady(t, settings{cluster: local(clusterSetLine, "ranges: [10.0.0.0/8]", kubeconfig(m.Kubeconfig(kubetest.Admin)))})
	const web, db = "web.shop.svc.clusterset.local.", "db.shop.svc.clusterset.local."
	var took times
	change := func(what, name string, qtype uint16, want string, do func()) {
		do()
		began := time.Now()
		proctest.Eventually(t, limit, what, func() bool { return n.answerText(name, qtype) == want }, func() string { return n.answerText(name, qtype) })
		took.add(time.Since(began))
	}
	put := func(ips ...string) func() {
		return func() { m.putImport(t, "v1beta1", "web", "ClusterSetIP", ips, importPort("http", 80)) }
	}
	slice := func(service, cluster, ip, host string) func() {
		return func() { kubetest.Apply(t, m.Cluster, importedSlice(service, cluster, endpoint(ip, named(host)))) }
	}
	change("another address", web, dns.TypeA, "NOERROR 10.97.0.2", put("10.97.0.2"))
	change("its reverse name", "2.0.97.10.in-addr.arpa.", dns.TypePTR, "NOERROR "+web, put("10.97.0.2"))
	change("no address", web, dns.TypeA, "NOERROR", put())
	change("the reverse name is gone", "2.0.97.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN", put())
	change("an endpoint of a third cluster", "db-9.north."+db, dns.TypeA, "NOERROR 10.3.0.1", slice("db", "north", "10.3.0.1", "db-9"))
	change("in the set", db, dns.TypeA, "NOERROR 10.1.0.1 10.1.0.2 10.2.0.1 10.3.0.1", func() {})
	change("an endpoint of the cluster itself has the address", "1.0.3.10.in-addr.arpa.", dns.TypePTR, "NOERROR own.own-set.shop.svc.cluster.local.", func() {
		own := shopSet("own-set-1", endpoint("10.3.0.1", named("own")))
		own.Labels[discoveryv1.LabelServiceName] = "own-set"
		kubetest.Apply(t, m.Cluster, newService("shop", "own-set", headless(corev1.IPv4Protocol), ports("http:80")), own)
	})
	change("the slice is gone", "db-9.north."+db, dns.TypeA, "NXDOMAIN", func() {
		assert.NoError(t, m.Client().DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "db-north", metav1.DeleteOptions{}))
	})
	change("the import is gone", db, dns.TypeA, "NXDOMAIN", func() { m.remove(t, importPath+"v1beta1/namespaces/shop/serviceimports/db") })
	proctest.Figure(t, "an event of a cluster set: right after %s", took.spread())
}

// testInvalid writes objects that break the rules of the API, as far as the API server lets them through. They
// are counted and named, and the others are served.
func (m multiCluster) testInvalid(t *testing.T) {
	t.Helper()
	m.openSet(t, "v1beta1")
	n := startReady(t, settings{cluster: local(clusterSetLine, kubeconfig(m.Kubeconfig(kubetest.Admin)))})
	refused := 0
	for name, err := range map[string]error{
		"a type that is none":      m.tryImport(t, "v1beta1", "a-type", "Other", nil),
		"10,000 addresses":         m.tryImport(t, "v1beta1", "many", "ClusterSetIP", make([]string, 10_000)),
		"a port of 32 bits":        m.tryImport(t, "v1beta1", "b-port", "ClusterSetIP", []string{"10.97.3.1"}, importPort("http", 3_000_000_000)),
		"a port that is none":      m.tryImport(t, "v1beta1", "c-port", "ClusterSetIP", []string{"10.97.3.2"}, importPort("http", 70_000)),
		"an address that is none":  m.tryImport(t, "v1beta1", "d-address", "ClusterSetIP", []string{"10.97.3.3", "nowhere"}),
		"a name that is no label":  m.tryImport(t, "v1beta1", "e.name", "ClusterSetIP", []string{"10.97.3.4"}),
		"no ports, which is right": m.tryImport(t, "v1beta1", "portless", "ClusterSetIP", []string{"10.97.3.5"}),
	} {
		if err != nil {
			refused++
			t.Logf("the API server refuses %s: %v", name, err)
		}
	}
	kubetest.Apply(t, m.Cluster, importedSlice("db", "a.b", endpoint("10.9.0.1", named("db-0"))))
	n.awaitAnswer(t, "portless.shop.svc.clusterset.local.", "NOERROR 10.97.3.5")
	want := fmt.Sprintf("%d objects invalid and not served in full, the first is shop/", 6-refused)
	proctest.Eventually(t, limit, "/status names them", func() bool {
		found := 0
		for _, p := range n.status(t).Problems {
			if p.Where == "serviceimport" && strings.HasPrefix(p.What, want) || p.Where == "imported-endpointslice" && strings.Contains(p.What, `1 object invalid`) {
				found++
			}
		}
		return found == 2
	}, func() string { return fmt.Sprintf("%+v", n.status(t).Problems) })
	n.expect(t,
		expectedAnswer{"db.shop.svc.clusterset.local.", dns.TypeA, "NOERROR 10.1.0.1 10.1.0.2 10.2.0.1"},
		expectedAnswer{"web.shop.svc.clusterset.local.", dns.TypeA, "NOERROR 10.97.0.1"},
		expectedAnswer{"d-address.shop.svc.clusterset.local.", dns.TypeA, "NXDOMAIN"})
	m.putImport(t, "v1beta1", "d-address", "ClusterSetIP", []string{"10.97.3.3"})
	n.awaitAnswer(t, "d-address.shop.svc.clusterset.local.", "NOERROR 10.97.3.3")
}

// testForbidden has an agent without the permission: the names are not denied, and the cluster's are answered.
func (m multiCluster) testForbidden(t *testing.T) {
	t.Helper()
	grant(t, m.Cluster, rule("", "services", "namespaces"), rule("discovery.k8s.io", "endpointslices"))
	n := startReady(t, settings{cluster: local(clusterSetLine, kubeconfig(m.Kubeconfig(account)))})
	n.expect(t,
		expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1"},
		expectedAnswer{"web.shop.svc.clusterset.local.", dns.TypeA, "SERVFAIL ede=14"})
	s := n.status(t)
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Hint, "serviceimports.multicluster.x-k8s.io") {
		t.Errorf("/status: %+v, want the missing permission", s.Problems)
	}
	grant(t, m.Cluster, rule("", "services", "namespaces"), rule("discovery.k8s.io", "endpointslices"), rule("multicluster.x-k8s.io", "serviceimports"))
	n.awaitAnswer(t, "web.shop.svc.clusterset.local.", "NOERROR 10.97.0.1")
}
