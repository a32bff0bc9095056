// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestInstall goes with a user from the first command of the README to the last. Each step needs those before it.
func TestInstall(t *testing.T) {
	b := newBed(t, kubenode.Options{ProxyMode: "iptables"})
	blocks := readme(t)
	before := b.nodes(t)
	ok := func(name string, step func(*testing.T)) {
		if !t.Failed() {
			t.Run(name, step)
		}
	}
	ok("agents on every node", func(t *testing.T) {
		t.Helper()
		began := time.Now()
		b.follow(t, blocks[stepAgents])
		b.agentsReady(t)
		proctest.Figure(t, "2 agents ready %s after kubectl apply", since(began))
	})
	ok("a pod that asks it", func(t *testing.T) {
		t.Helper()
		b.follow(t, blocks[stepTry])
	})
	ok("kubelets name it", func(t *testing.T) {
		t.Helper()
		b.follow(t, blocks[stepKubelet])
		b.resolves(t)
	})
	ok("headless names follow a Deployment", b.scales)
	ok("tune it", func(t *testing.T) {
		t.Helper()
		b.tunes(t, blocks[stepTune])
	})
	ok("a bad change is refused", b.refuses)
	ok("probes under load", b.floods)
	ok("a rolling update under load", b.rolls)
	ok("Prometheus", b.monitors)
	ok("the DaemonSet is deleted", b.deletes)
	ok("take it away", func(t *testing.T) {
		t.Helper()
		b.follow(t, blocks[stepKubeletBack])
		b.follow(t, blocks[stepRemove])
		b.clean(t, before)
		b.noFiles(t)
	})
	ok("transparent", b.transparent)
	ok("transparent leaves nothing", func(t *testing.T) {
		t.Helper()
		b.clean(t, before)
	})
}

// resolves shows that pods on both nodes resolve by what the kubelet gives them, which is the agent.
func (b *bed) resolves(t *testing.T) {
	t.Helper()
	clients := b.clients(t, "asks")
	for _, c := range clients {
		if conf := c.exec(t, "cat", "/etc/resolv.conf"); !strings.Contains(conf, "nameserver 169.254.20.10\n") {
			t.Errorf("%s: resolv.conf:\n%s", c.name, conf)
		}
		// By the search list, as programs do.
		if out := c.exec(t, "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(out, "10.96.0.1") {
			t.Errorf("%s: %s", c.name, out)
		}
	}
	got := watch(t, clients, 3*time.Second, "on both nodes, half of the names the cluster's")
	wantNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}
