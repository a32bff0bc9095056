// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestOverlays applies those that the README leaves out, with kube-proxy in its other mode.
func TestOverlays(t *testing.T) {
	t.Parallel()
	b := newHarness(t, kubenode.Options{ProxyMode: "nftables"})
	before := b.nodeStates(t)
	for _, step := range []struct {
		name string
		step func(*testing.T)
	}{
		{"transparent", b.testTransparent},
		{"transparent leaves nothing", func(t *testing.T) {
			t.Helper()
			b.awaitClean(t, before)
		}},
		{"components", b.testComponents},
		{"helm", b.testHelm},
		{"helm leaves nothing", func(t *testing.T) {
			t.Helper()
			b.runCleanup(t, "daemonset/uninstall")
			b.awaitClean(t, before)
			b.expectNoFiles(t)
		}},
		{"central", b.testCentral},
	} {
		if !t.Failed() {
			t.Run(step.name, step.step)
		}
	}
}

// testCentral has the agents ask a Deployment of the same program for the cluster's names, and replaces its pods under load.
func (b *harness) testCentral(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/central")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	for _, n := range b.Nodes {
		if err := n.SetDNS(netip.MustParseAddr("169.254.20.10")); err != nil {
			t.Fatal(err)
		}
	}
	clients := b.startClients(t, "central")
	got := measure(t, clients, 2*time.Second, "by the central resolver")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	// The agents keep answers for 5 s, so that the resolvers are asked while they are replaced.
	began := time.Now()
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "deployment/node-cache-resolver")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.eventually(t, "the old resolvers are gone", func() bool {
		return len(b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver")) == 2
	})
	took := since(began)
	time.Sleep(6 * time.Second)
	got = takeCounts(t, clients)
	proctest.Figure(t, "2 resolvers replaced in %s: %s", took, got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.awaitAgentsReady(t)
}

// testComponents has the agents follow the ConfigMap by the API in place of a folder, which takes no kubelet, follow a ConfigMap
// of kube-dns that comes later, and be reached by Prometheus.
func (b *harness) testComponents(t *testing.T) {
	t.Helper()
	company := b.startCompanyDNS(t)
	b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/base",
		"daemonset/components/config-map", "daemonset/components/kube-dns", "daemonset/components/metrics"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	for _, n := range b.Nodes {
		if status, text := b.httpDo(t, http.MethodGet, "http://"+n.Addr.String()+":9253/metrics"); status != http.StatusOK || !strings.Contains(text, "nodecache_build_info{") {
			t.Errorf("the metrics of %s from another machine: %d\n%s", n.Name, status, text)
		}
		if addr := b.lookupFromNode(t, n, "early."+companyZone); addr != "" {
			t.Errorf("%s knows %s before its server is configured: %s", n.Name, companyZone, addr)
		}
	}
	before := []int{b.generation(t, b.Nodes[0]), b.generation(t, b.Nodes[1])}
	b.runShell(t, "kubectl -n kube-system edit configmap node-cache", "KUBE_EDITOR=sed -i 's/size: 64Mi/size: 48Mi/'")
	took := b.eventually(t, "both agents have taken the change", func() bool {
		return b.generation(t, b.Nodes[0]) > before[0] && b.generation(t, b.Nodes[1]) > before[1]
	})
	proctest.Figure(t, "both agents run with a change of the ConfigMap %s after kubectl edit", took.Round(time.Millisecond))

	b.applyStubDomains(t, company)
	number := 0
	took = b.eventually(t, "both agents know the stub domain", func() bool {
		number++ // another name each time: what was denied is kept for some seconds
		name := fmt.Sprintf("w%d.%s", number, companyZone)
		return b.lookupFromNode(t, b.Nodes[0], name) == companyAddr && b.lookupFromNode(t, b.Nodes[1], name) == companyAddr
	})
	proctest.Figure(t, "both agents answer for a stub domain %s after a ConfigMap of kube-dns is made", took.Round(time.Millisecond))
	b.awaitAgentsReady(t)
	b.kubectl(t, "delete", "-k", repository+"/daemonset/base", "--ignore-not-found")
	b.awaitNoAgents(t)
}

// generation is the number of the configuration that the agent of a node runs with, asked as a program of the node does.
func (b *harness) generation(t *testing.T, n *kubenode.Node) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://169.254.20.10:9253/status", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var c config
	if err := json.NewDecoder(answer.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c.Config.Generation
}
