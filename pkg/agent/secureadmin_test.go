// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestSecureAdmin scrapes an agent over TLS, with a token that its API server knows and one that it does not.
func TestSecureAdmin(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			_, _ = io.WriteString(w, `{"status": {"authenticated": `+map[bool]string{true: "true", false: "false"}[strings.Contains(string(body), `"good"`)]+`, "user": {"username": "prometheus"}}}`)
			return
		}
		_, _ = io.WriteString(w, `{"status": {"allowed": true}}`)
	}))
	t.Cleanup(api.Close)
	cfg := handingConfig(t)
	cfg.Admin.Address, cfg.Admin.TLSAddress = proctest.FreeAddr(t), proctest.FreeAddr(t)
	cfg.Cluster.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	proctest.WriteFile(t, cfg.Cluster.Kubeconfig, "clusters: [{name: c, cluster: {server: "+api.URL+"}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n")
	startHanding(t, newFakeHost(), cfg)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // self-signed
	get := func(url, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		assert.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		reply, err := client.Do(r)
		assert.NoError(t, err)
		defer func() { _ = reply.Body.Close() }()
		text, _ := io.ReadAll(reply.Body)
		return reply.StatusCode, string(text)
	}
	at := "https://" + cfg.Admin.TLSAddress.String()
	if code, text := get(at+"/metrics", "good"); code != 200 || !strings.Contains(text, `nodecache_admin_reviews_total{outcome="allowed"} 1`) {
		t.Errorf("%d %.300s", code, text)
	}
	if code, text := get(at+"/metrics", "bad"); code != 401 {
		t.Errorf("another token: %d %s", code, text)
	}
	if code, text := get("http://"+cfg.Admin.Address.String()+"/metrics", "good"); code != 403 {
		t.Errorf("without TLS: %d %s", code, text)
	}
	if code, text := get("http://"+cfg.Admin.Address.String()+"/livez", ""); code != 200 {
		t.Errorf("a probe: %d %s", code, text)
	}
}

// TestSecureAdminRefused has agents that cannot ask about tokens, or have no certificate.
func TestSecureAdminRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, cert, want string }{
		{"no API server", "", "admin.tls.address: no kubeconfig is set, and this process does not run in a pod"},
		{"no certificate", "/none.crt", "admin.tls: reading /none.crt: open /none.crt: no such file or directory"},
	} {
		cfg := handingConfig(t)
		cfg.Admin.TLSAddress, cfg.Admin.Cert, cfg.Admin.Key = proctest.FreeAddr(t), tt.cert, tt.cert
		if _, err := newSecureAdmin(&cfg, "", nil); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}
