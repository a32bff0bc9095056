// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

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

// testPermissions has an agent that may read services only, and then grants the rest as docs/cluster.md lists it.
func testPermissions(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	grant(t, c, rule("", "services"))
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(account)))})
	n.expect(t,
		expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.1.1"},
		expectedAnswer{webName, dns.TypeAAAA, "NOERROR"},
		expectedAnswer{webReverse, dns.TypePTR, "NOERROR " + webName},
		expectedAnswer{absentName, dns.TypeA, "NXDOMAIN"},
		expectedAnswer{setName, dns.TypeA, "SERVFAIL ede=14"},
		expectedAnswer{"absent.svc.cluster.local.", dns.TypeA, "SERVFAIL ede=14"},
	)
	s := n.status(t)
	for kind, resource := range map[string]string{"endpointslice": "endpointslices", "namespace": "namespaces"} {
		if k := s.kind(t, kind); k.Synced || !strings.HasPrefix(k.LastError, "forbidden: ") || !strings.Contains(k.LastError, resource) {
			t.Errorf("/status says of %s %+v, want forbidden", kind, k)
		}
		if !namesProblem(s, kind, resource) {
			t.Errorf("/status names no problem with %s: %+v", kind, s.Problems)
		}
		proctest.Eventually(t, limit, "the log says that "+resource+" are forbidden", func() bool {
			log := n.Stderr.String()
			return strings.Contains(log, "reason=forbidden") && strings.Contains(log, "resource="+resource)
		})
	}
	if k := s.kind(t, "service"); !k.Synced || k.LastError != "" {
		t.Errorf("/status says of services %+v, want them in sync", k)
	}
	grant(t, c, rule("", "services", "namespaces"), rule("discovery.k8s.io", "endpointslices"))
	n.awaitAnswer(t, setName, "NOERROR 10.1.2.1 10.1.2.2")
	n.awaitAnswer(t, "absent.svc.cluster.local.", "NXDOMAIN")
	if s := n.status(t); len(s.Problems) > 0 {
		t.Errorf("/status after the grant: %+v, want no problems", s.Problems)
	}
}

// namesProblem reports whether a problem of the part is listed with a hint about the resource.
func namesProblem(s status, where, resource string) bool {
	for _, p := range s.Problems {
		if p.Where == where && strings.HasPrefix(p.What, "not synced: forbidden") && strings.Contains(p.Hint, resource) {
			return true
		}
	}
	return false
}
