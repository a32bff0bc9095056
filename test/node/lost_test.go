// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
)

// TestLostOnCilium: an agent that sees the link of Cilium reads from the API server that no query of a pod can arrive. It says so and is
// not ready, until one arrives all the same, because Cilium is not really there.
func TestLostOnCilium(t *testing.T) {
	t.Parallel()
	const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:8001"}}]
contexts: [{name: a, context: {cluster: a}}]
current-context: a
`
	path := proctest.WriteFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfig)
	b := newHarness(t, options{extra: fmt.Sprintf("cluster: {resolver: local, kubeconfig: %q}\n", path)})
	api := watchtest.New(time.Now)
	answer := func(resource, body string) {
		api.Answer(resource, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	answer("daemonsets", `{"spec": {"template": {"spec": {"containers": [{"name": "cilium-agent", "image": "quay.io/cilium/cilium:v1.15.19"}]}}}}`)
	answer("configmaps", `{"data": {"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"}}`)
	assert.NoError(t, b.Node.Do(func() error {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:8001")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		return nil
	}))
	b.run(t, "ip", "link", "add", "cilium_host", "type", "bridge")
	b.launch(t)
	const lost = "queries of pods are lost: Cilium 1.15.19"
	proctest.Eventually(t, time.Minute, "the agent is not ready", func() bool { return strings.Contains(b.adminPage(t, "/readyz"), lost) },
		func() string { return b.adminPage(t, "/readyz") })
	if page := b.adminPage(t, "/status"); !strings.Contains(page, `set Cilium's option local-max-addr-scope: \"254\"`) {
		t.Errorf("the status does not name the setting: %s", page)
	}
	if page := b.adminPage(t, "/metrics"); !strings.Contains(page, `lease_held{family="ipv4"} 1`) {
		t.Error("the lease is not held")
	}
	who, err := nodetest.Ask(b.Pods[0], b.dnsAddrs[0], "udp")
	if err != nil || who != byAgent {
		t.Fatalf("a pod asks: %q, %v", who, err)
	}
	b.run(t, "nft", "flush", "chain", "inet", "node-cache", "fallback") // the agent repairs it, and looks at all else
	proctest.Eventually(t, time.Minute, "the agent is ready", func() bool { return !strings.Contains(b.adminPage(t, "/readyz"), "lost") },
		func() string { return b.adminPage(t, "/status") })
	if page := b.adminPage(t, "/status"); strings.Contains(page, "local-max-addr-scope") {
		t.Errorf("the status still names the setting: %s", page)
	}
}
