// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// rolledOut waits for the rollout of the agents.
const rolledOut = "kubectl -n kube-system rollout status daemonset/node-cache --timeout=3m"

// TestStaged changes a staged configuration: one that is valid, and breaks a name, stops at the first node, and undo removes it; a
// good one is on both nodes without a lost query. Then it types off and on, which replace no pod.
func TestStaged(t *testing.T) {
	t.Parallel()
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables"})
	good := strings.Replace(stagedText(t), "cache:\n", "requiredNames: [kubernetes.default.svc.cluster.local, www.example.com]\ncache:\n", 1)
	b.kubectl(t, "apply", "-k", stagedKustomization(t, good))
	b.runShell(t, rolledOut)
	b.awaitAgentsReady(t)
	b.setDNS(t, "169.254.20.10")
	clients := b.startClients(t, "staged")
	before := b.agents(t)
	for _, step := range []struct {
		name string
		step func(*testing.T)
	}{
		{"a valid configuration that breaks a name", func(t *testing.T) {
			t.Helper()
			began := time.Now()
			b.kubectl(t, "apply", "-k", stagedKustomization(t, strings.Replace(good, "/etc/resolv.conf", "192.0.2.77", 1)))
			b.eventually(t, "a new agent that says which name fails", func() bool {
				return strings.Contains(b.waiting(t, before), "www.example.com. has no address: SERVFAIL")
			})
			proctest.Figure(t, "%s after kubectl apply: %s", since(began), b.waiting(t, before))
			b.eventually(t, "an Event", func() bool { return len(b.events(t, "RequiredNameFails", began)) > 0 })
			proctest.Figure(t, "Event: %s", b.events(t, "RequiredNameFails", began)[0])
			time.Sleep(20 * time.Second) // twice minReadySeconds: for what should not happen
			b.expectOnly(t, before, 1)
			b.expectAnswered(t, clients, "while the rollout stands")
		}},
		{"undo", func(t *testing.T) {
			t.Helper()
			b.runShell(t, "kubectl -n kube-system rollout undo daemonset/node-cache && "+rolledOut)
			b.eventually(t, "the new agent is gone", func() bool { return len(b.agents(t)) == 2 })
			b.expectOnly(t, before, 0)
			b.expectAnswered(t, clients, "while the rollout is undone")
		}},
		{"a good configuration", func(t *testing.T) {
			t.Helper()
			began := time.Now()
			b.kubectl(t, "apply", "-k", stagedKustomization(t, strings.Replace(good, "size: 64Mi", "size: 48Mi", 1)))
			b.runShell(t, rolledOut)
			b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == 2 })
			proctest.Figure(t, "a change is on both nodes %s after kubectl apply", since(began))
			b.awaitAgentsReady(t)
			for i, pod := range b.agents(t) {
				var c config
				if b.status(t, pod, &c); pod.UID == before[i].UID || c.Cache.CapacityBytes >= 64<<20-1<<20 {
					t.Errorf("%s has not got the change: %+v", pod.Name, c)
				}
			}
			b.expectAnswered(t, clients, "while the agents are replaced")
		}},
		{"off and on", func(t *testing.T) {
			t.Helper()
			b.testStagedStandby(t, clients)
		}},
	} {
		if !t.Failed() {
			t.Run(step.name, step.step)
		}
	}
}

// testStagedStandby types off and on. Neither replaces a pod.
func (b *harness) testStagedStandby(t *testing.T, clients []client) {
	t.Helper()
	before, folder := b.agents(t), t.TempDir()
	b.runShell(t, "tar -C "+folder+" -xf "+filepath.Join(images, "kubectl-node_cache-linux-"+runtime.GOARCH+".tar.gz"))
	for _, command := range []string{"off", "on"} {
		began := time.Now()
		b.runShell(t, "PATH=$PATH:"+folder+" kubectl node-cache "+command)
		proctest.Figure(t, "kubectl node-cache %s: %s", command, since(began))
	}
	b.expectOnly(t, before, 0)
	b.expectAnswered(t, clients, "meanwhile")
}

// expectAnswered fails the test if a query since the last call was lost.
func (b *harness) expectAnswered(t *testing.T, clients []client, when string) {
	t.Helper()
	got := takeCounts(t, clients)
	proctest.Figure(t, "%s: %s", when, got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}

// newcomers are the agents that are not among those before, and are not being deleted.
func (b *harness) newcomers(t *testing.T, before []corev1.Pod) (list []corev1.Pod) {
	t.Helper()
	for _, pod := range b.agents(t) {
		if pod.DeletionTimestamp == nil && pod.UID != before[0].UID && pod.UID != before[1].UID {
			list = append(list, pod)
		}
	}
	return list
}

// waiting is the state of a new agent that runs, as its own client shows it.
func (b *harness) waiting(t *testing.T, before []corev1.Pod) string {
	t.Helper()
	for _, pod := range b.newcomers(t, before) {
		out, err := b.Kubectl(t.Context(), "", "-n", "kube-system", "exec", pod.Name, "--", "/node-cache", "status", "--output=json")
		var s struct{ State string }
		if err == nil && json.Unmarshal([]byte(out), &s) == nil {
			return pod.Spec.NodeName + ": " + s.State
		}
	}
	return ""
}

// expectOnly fails the test unless the agents are those before, ready, and so many more, not ready.
func (b *harness) expectOnly(t *testing.T, before []corev1.Pod, more int) {
	t.Helper()
	ready := func(pod corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready
	}
	same := 0
	for _, pod := range b.agents(t) {
		if pod.UID == before[0].UID || pod.UID == before[1].UID {
			same++
			if !ready(pod) {
				t.Errorf("%s is not ready\n%s", pod.Name, b.state(t))
			}
		}
	}
	list := b.newcomers(t, before)
	for _, pod := range list {
		if ready(pod) {
			t.Errorf("%s is ready", pod.Name)
		}
	}
	if same != 2 || len(list) != more {
		t.Errorf("%d of 2 agents are left, and %d are new, want %d\n%s", same, len(list), more, b.state(t))
	}
}

// stagedText is the configuration of daemonset/base.
func stagedText(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, "daemonset/base/configmap.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := yaml.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m.Data["node-cache.yaml"]
}

// stagedKustomization makes the one of docs/staged.md with a configuration, and returns its folder.
func stagedKustomization(t *testing.T, text string) string {
	t.Helper()
	dir := kustomization(t, "daemonset/base")
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	if root, err = filepath.Rel(dir, root); err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(corev1.ConfigMap{Data: map[string]string{"node-cache.yaml": text}})
	if err != nil {
		t.Fatal(err)
	}
	patch = []byte(strings.Replace(string(patch), `"metadata":{}`, `"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"node-cache","namespace":"kube-system"}`, 1))
	proctest.WriteFile(t, filepath.Join(dir, "config.yaml"), string(patch))
	proctest.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), "resources: ["+filepath.Join(root, "daemonset/base")+"]\n"+
		"patches: [{path: config.yaml}]\ntransformers: ["+filepath.Join(root, "daemonset/staged")+"]\n")
	return dir
}
