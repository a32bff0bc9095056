// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestOverlays applies those that the README leaves out, with kube-proxy in its other mode.
func TestOverlays(t *testing.T) {
	b := newBed(t, kubenode.Options{ProxyMode: "nftables"})
	before := b.nodes(t)
	for _, step := range []struct {
		name string
		step func(*testing.T)
	}{
		{"transparent", b.transparent},
		{"transparent leaves nothing", func(t *testing.T) {
			t.Helper()
			b.clean(t, before)
		}},
		{"the ConfigMap by the API", b.watches},
		{"central", b.central},
	} {
		if !t.Failed() {
			t.Run(step.name, step.step)
		}
	}
}

// central has the agents ask a Deployment of the same program for the cluster's names, and replaces its pods under load.
func (b *bed) central(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/central")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.agentsReady(t)
	for _, n := range b.Nodes {
		if err := n.SetDNS(t.Context(), netip.MustParseAddr("169.254.20.10")); err != nil {
			t.Fatal(err)
		}
	}
	clients := b.clients(t, "central")
	got := watch(t, clients, 2*time.Second, "by the central resolver")
	wantNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	// The agents keep answers for 5 s, so that the resolvers are asked while they are replaced.
	began := time.Now()
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "deployment/node-cache-resolver")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.eventually(t, "the old resolvers are gone", func() bool {
		return len(b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver")) == 2
	})
	took := since(began)
	time.Sleep(6 * time.Second)
	got = take(t, clients)
	proctest.Figure(t, "2 resolvers replaced in %s: %s", took, got)
	wantNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.agentsReady(t)
}

// watches has the agents follow the ConfigMap by the API in place of a folder, which takes no kubelet.
func (b *bed) watches(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/base", "daemonset/components/config-map"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.agentsReady(t)
	before := []int{b.generation(t, b.Nodes[0]), b.generation(t, b.Nodes[1])}
	b.shell(t, "kubectl -n kube-system edit configmap node-cache", "KUBE_EDITOR=sed -i 's/size: 64Mi/size: 48Mi/'")
	took := b.eventually(t, "both agents have taken the change", func() bool {
		return b.generation(t, b.Nodes[0]) > before[0] && b.generation(t, b.Nodes[1]) > before[1]
	})
	proctest.Figure(t, "both agents run with a change of the ConfigMap %s after kubectl edit", took.Round(time.Millisecond))
	b.kubectl(t, "delete", "-k", repository+"/daemonset/base", "--ignore-not-found")
	b.gone(t)
}

// generation is the number of the configuration that the agent of a node runs with, asked as a program of the node does.
func (b *bed) generation(t *testing.T, n *kubenode.Node) int {
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
