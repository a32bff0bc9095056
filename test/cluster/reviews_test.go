// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/secure"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestReviews has a real API server decide about tokens of service accounts, for an agent with the permissions of component metrics-secure.
func TestReviews(t *testing.T) {
	t.Parallel()
	const space = metav1.NamespaceDefault
	c := kubetest.Start(t, kubetest.Options{Users: []string{account}})
	client, err := watch.NewClient(c.Kubeconfig(account), "test")
	if err != nil {
		t.Fatal(err)
	}
	status := func(r *secure.Reviews, token, page string) int {
		q := httptest.NewRequest(http.MethodGet, "https://node"+page, http.NoBody)
		q.Header.Set("Authorization", "Bearer "+token)
		return r.Authorize(q, netip.MustParseAddr("10.244.1.1")).Code
	}
	fresh := func() *secure.Reviews { return secure.New(client, slog.New(slog.DiscardHandler)) }
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	tokens := map[string]string{}
	for _, name := range []string{"prometheus", "other"} {
		kubetest.Apply(t, c, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}})
		made, err := c.Client().CoreV1().ServiceAccounts(space).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tokens[name] = made.Status.Token
	}
	expect("an agent without permissions", status(fresh(), tokens["prometheus"], "/metrics"), http.StatusServiceUnavailable)
	bind(t, c, "node-cache-metrics", rbacv1.Subject{Kind: rbacv1.UserKind, Name: account},
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}})
	bind(t, c, "node-cache-metrics-reader", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: space, Name: "prometheus"},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	kept := fresh()
	proctest.Eventually(t, time.Minute, "the API server has read the bindings", func() bool { return status(fresh(), tokens["prometheus"], "/metrics") == 0 })
	expect("an account with the ClusterRole", status(kept, tokens["prometheus"], "/metrics"), 0)
	expect("the same, another page", status(kept, tokens["prometheus"], "/status"), http.StatusForbidden)
	expect("another account", status(kept, tokens["other"], "/metrics"), http.StatusForbidden)
	kept = fresh() // the limit of the address
	expect("a made-up token", status(kept, "made-up", "/metrics"), http.StatusUnauthorized)
	expect("before the end", status(kept, tokens["prometheus"], "/metrics"), 0)

	if err := c.Client().CoreV1().ServiceAccounts(space).Delete(t.Context(), "prometheus", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("a token of a deleted account, from memory", status(kept, tokens["prometheus"], "/metrics"), 0)
	proctest.Eventually(t, time.Minute, "the API server refuses the token, after the 10 s that it keeps one", func() bool {
		return status(fresh(), tokens["prometheus"], "/metrics") == http.StatusUnauthorized
	})
	c.KillAPIServer()
	expect("no API server, from memory", status(kept, tokens["prometheus"], "/metrics"), 0)
	expect("no API server", status(kept, tokens["other"], "/metrics"), http.StatusServiceUnavailable)
}

// bind creates a ClusterRole and grants it.
func bind(t *testing.T, c *kubetest.Cluster, name string, to rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	kubetest.Apply(t, c,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{to},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		})
}
