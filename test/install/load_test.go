// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/handover"
)

// testProbesUnderFlood has a pod on each node query without a pause. Each probe runs in that time at least once; in a soak it is
// longer than the kubelet waits before it restarts an agent whose liveness probe fails, which is 60 s.
func (b *harness) testProbesUnderFlood(t *testing.T) {
	t.Helper()
	began := time.Now()
	clients := b.startClients(t, "floods", "-flood=16")
	measure(t, clients, proctest.OrdinaryOrSoak(12*time.Second, 65*time.Second), "two flooders and two clients")
	if unhealthy := b.events(t, "Unhealthy", began); len(unhealthy) > 0 {
		t.Errorf("probes failed:\n%s", strings.Join(unhealthy, "\n"))
	}
	b.awaitAgentsReady(t)
	proctest.Figure(t, "0 restarts, 0 failed probes")
}

// testRollingUpdate adds components metrics and kernel, and replaces the agents, while pods on both nodes ask them.
func (b *harness) testRollingUpdate(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "rolls", proctest.OrdinaryOrSoak("-every=20ms", "-every=5ms"), proctest.OrdinaryOrSoak("-flood=0", "-flood=2"))
	began := time.Now()
	b.kubectl(t, "apply", "-k", b.manifests(t, "daemonset/components/metrics", "daemonset/components/kernel"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == 2 })
	took := since(began)
	b.awaitKernelHits(t)
	got := takeCounts(t, clients)
	b.awaitAgentsReady(t)
	proctest.Figure(t, "2 agents replaced in %s: %s", took, got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	if got.Flood.Lost > 0 || got.Flood.Wrong > 0 {
		t.Errorf("flood: %d lost, %d wrong\n%s", got.Flood.Lost, got.Flood.Wrong, strings.Join(got.Flood.Failures, "\n"))
	}
	for _, pod := range b.agents(t) {
		var s struct{ Handover struct{ Taken, Why string } }
		b.status(t, pod, &s)
		if s.Handover.Taken != handover.OutcomeTaken {
			t.Errorf("%s has not got the sockets from the agent before it: %+v", pod.Name, s.Handover)
		}
	}
}
