// SPDX-License-Identifier: Apache-2.0

package install

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A helm is the program on the control machine.
type helm struct {
	harness *harness
	env     []string
}

// newHelm puts the program on the control machine's PATH, with its own files in a folder of the test.
func newHelm(t *testing.T, b *harness) helm {
	t.Helper()
	program, err := kubetest.Program(t.Context(), "helm")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Control.Link("helm", program); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return helm{harness: b, env: []string{"HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir}}
}

func (h helm) run(t *testing.T, command string) {
	t.Helper()
	h.harness.runShell(t, "helm "+command, h.env...)
}

// testHelm installs the packed chart of a release with the configuration by the API and a ConfigMap of kube-dns that comes later, tests it,
// upgrades it and takes it away, while pods on both nodes ask the agents.
func (b *harness) testHelm(t *testing.T) {
	t.Helper()
	h := newHelm(t, b)
	began := time.Now()
	h.run(t, "install node-cache "+filepath.Join(images, "node-cache-0.7.0.tgz")+" -n kube-system --set config.watch=api,config.kubeDNS=kube-dns "+
		"--set config.agent.kernel.hits=auto,config.agent.kernel.permit=1s --wait --timeout=3m")
	b.awaitAgentsReady(t)
	proctest.Figure(t, "2 agents ready %s after helm install", since(began))
	clients := b.startClients(t, "helm", "-server=169.254.20.10")
	got := measure(t, clients, 2*time.Second, "installed by helm")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.awaitKernelHits(t)
	b.testStubDomains(t)
	h.run(t, "test node-cache -n kube-system --logs --timeout=2m")
	b.testUpgrade(t, h, clients)

	resetCounts(t, clients)
	h.run(t, "uninstall node-cache -n kube-system --wait --timeout=3m")
	b.awaitNoAgents(t)
	got = takeCounts(t, clients)
	proctest.Figure(t, "while helm uninstalls it: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP}) // TCP sessions of the agents are reset: docs/node.md
	got = measure(t, clients, 2*time.Second, "answered by the fallback")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	const kinds = "daemonsets,deployments,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
	if left := b.kubectl(t, "get", kinds, "-A", "-l", "app.kubernetes.io/instance=node-cache", "-o", "name"); left != "" {
		t.Errorf("objects that helm has left:\n%s", left)
	}
}

// testUpgrade changes a value that is the ConfigMap's alone, which the running agents take.
func (b *harness) testUpgrade(t *testing.T, h helm, clients []client) {
	t.Helper()
	before, pods := b.configs(t), b.agents(t)
	began := time.Now()
	resetCounts(t, clients)
	h.run(t, "upgrade node-cache daemonset/chart -n kube-system --reuse-values --set config.agent.cache.minTTL=7s --wait --timeout=3m")
	b.eventually(t, "both agents have taken the change", func() bool {
		for i, c := range b.configs(t) {
			if c.Config.Generation <= before[i].Config.Generation {
				return false
			}
		}
		return true
	})
	took := since(began)
	got := takeCounts(t, clients)
	proctest.Figure(t, "both agents run with a change %s after helm upgrade: %s", took, got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	for i, pod := range b.agents(t) {
		if pod.UID != pods[i].UID {
			t.Errorf("%s was replaced for a change of the ConfigMap", pods[i].Name)
		}
	}
}
