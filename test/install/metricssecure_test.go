// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
)

// TestMetricsSecure reads metrics of agents with component metrics-secure as its clients may and may not.
func TestMetricsSecure(t *testing.T) { //nolint:tparallel // its steps share a cluster
	t.Parallel()
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables"})
	var objects []string
	for text := range strings.SplitSeq(b.kubectl(t, "kustomize", kustomization(t, "daemonset/base", "daemonset/components/metrics-secure")), "\n---\n") {
		if !strings.Contains(text, "\nkind: ServiceMonitor\n") { // this cluster has no operator
			objects = append(objects, text)
		}
	}
	b.kubectlInput(t, strings.Join(objects, "\n---\n"), "apply", "-f", "-")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	for _, name := range []string{"prometheus", "other"} {
		b.kubectl(t, "create", "serviceaccount", name)
	}
	b.kubectl(t, "create", "clusterrolebinding", "prometheus-node-cache", "--clusterrole=node-cache-metrics-reader", "--serviceaccount=default:prometheus")
	agents := b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache")
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as Prometheus does
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return b.Nodes[0].Dial(ctx, network, addr)
		},
	}}
	for _, tt := range []struct {
		name, account, url string
		want               int
	}{
		{"no token", "", "https://%/metrics", http.StatusUnauthorized},
		{"an account without the permission", "other", "https://%/metrics", http.StatusForbidden},
		{"Prometheus", "prometheus", "https://%/metrics", http.StatusOK},
		{"another page", "prometheus", "https://%/status", http.StatusForbidden},
		{"no TLS", "prometheus", "http://%/metrics", http.StatusBadRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, agent := range agents {
				q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(tt.url, "%", net.JoinHostPort(agent.Status.PodIP, "9254"), 1), http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				if tt.account != "" {
					q.Header.Set("Authorization", "Bearer "+strings.TrimSpace(b.kubectl(t, "create", "token", tt.account)))
				}
				r, err := client.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(r.Body) // without TLS the connection is reset
				_ = r.Body.Close()
				if r.StatusCode != tt.want || strings.Contains(string(text), "\nnodecache_ready ") != (tt.want == http.StatusOK) {
					t.Errorf("%s: status %d, want %d\n%.300s", q.URL, r.StatusCode, tt.want, text)
				}
			}
		})
	}
}
