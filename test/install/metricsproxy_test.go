// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestMetricsProxy reads metrics through component metrics-proxy as its clients may and may not.
func TestMetricsProxy(t *testing.T) { //nolint:tparallel // its steps share a cluster
	t.Parallel()
	if !proctest.Soak() {
		t.Skip("builds kube-rbac-proxy: make soak")
	}
	program, err := kubetest.Program(t.Context(), "metricsproxy")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "proxy.tar")
	image := kubenode.Image{Name: "quay.io/brancz/kube-rbac-proxy:v0.19.1", Files: map[string]string{"kube-rbac-proxy": program}, Entrypoint: []string{"/kube-rbac-proxy"}}
	if err := image.Archive(archive); err != nil {
		t.Fatal(err)
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables", Images: []string{archive}})
	b.kubectl(t, "apply", "-k", repository+"/daemonset/base")
	b.kubectl(t, "apply", "-f", repository+"/daemonset/components/metrics-proxy/proxy.yaml")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache-metrics", "--timeout=2m")
	for _, name := range []string{"prometheus", "other"} {
		b.kubectl(t, "create", "serviceaccount", name)
	}
	b.kubectl(t, "create", "clusterrolebinding", "prometheus-node-cache", "--clusterrole=node-cache-metrics-reader", "--serviceaccount=default:prometheus")

	proxies := b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-metrics")
	if len(proxies) != len(b.Nodes) {
		t.Fatalf("%d proxies on %d nodes", len(proxies), len(b.Nodes))
	}
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
		{"an account without the right", "other", "https://%/metrics", http.StatusForbidden},
		{"Prometheus", "prometheus", "https://%/metrics", http.StatusOK},
		{"another page", "prometheus", "https://%/status", http.StatusNotFound},
		{"no TLS", "prometheus", "http://%/metrics", http.StatusBadRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, proxy := range proxies {
				q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(tt.url, "%", net.JoinHostPort(proxy.Status.PodIP, "9254"), 1), http.NoBody)
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
