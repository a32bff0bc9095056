// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
)

// wayOf returns where a query of a pod goes.
func wayOf(m *fakeHost, cfg *config.Config) intercepttest.Decision {
	return m.kernel.Route(intercepttest.Packet{Network: "udp", To: netip.AddrPortFrom(cfg.Listen.Addresses[0], cfg.Listen.Port)}).Decision
}

// standbyProblem returns the text of the problem about standby, if there is one.
func standbyProblem(a *Agent) string {
	list := a.Status().Problems
	if i := slices.IndexFunc(list, func(p status.Problem) bool { return p.Reason == status.Standby }); i >= 0 {
		return list[i].What
	}
	return ""
}

// TestStandby reloads an agent into standby and back. It stays ready, and others see it.
func TestStandby(t *testing.T) {
	t.Parallel()
	m, cfg := newFakeHost(), nodeConfig(t)
	a, _ := serveOnHost(t, m, cfg)
	off := cfg
	off.Standby = true
	reload(t, a, off)
	until(t, "the fallback answers", func() bool { return wayOf(m, &cfg) == intercepttest.ToFallback })
	if err := a.notReady(); err != nil || !answers(t, a) {
		t.Errorf("not ready: %v; or it does not answer what still arrives", err)
	}
	if got := standbyProblem(a); !strings.HasPrefix(got, "the fallback answers all queries") || len(a.Status().Problems) != 1 {
		t.Errorf("problems: %+v", a.Status().Problems)
	}
	reload(t, a, cfg)
	until(t, "the agent answers again", func() bool { return wayOf(m, &cfg) == intercepttest.ToAgent && standbyProblem(a) == "" })
}

// TestStandbyAtStart starts an agent in standby: it never takes the lease. Without a fallback it answers on.
func TestStandbyAtStart(t *testing.T) {
	t.Parallel()
	m, cfg := newFakeHost(), nodeConfig(t)
	cfg.Standby = true
	_, stop := serveOnHost(t, m, cfg)
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := m.lines(); slices.Contains(got, "lease") {
		t.Errorf("done to the node: %v, want no lease", got)
	}
	m, cfg = newFakeHost(), nodeConfig(t)
	cfg.Standby = true
	cfg.Intercept.Fallback = config.Fallback{Central: true} // its endpoints are not known
	cfg.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
	cfg.Cluster.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}"
	assert.NoError(t, os.WriteFile(cfg.Cluster.Kubeconfig, []byte(text), 0o600))
	a := agentOnHost(t, m, cfg)
	runNode(t, a)
	until(t, "the agent answers", func() bool { return wayOf(m, &cfg) == intercepttest.ToAgent }) // after zoneWait
	if got := standbyProblem(a); !strings.Contains(got, "no fallback is known") {
		t.Errorf("problem %q", got)
	}
}
