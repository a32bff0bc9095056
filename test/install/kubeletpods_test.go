// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
)

// testKubeletPods takes the node's pods from the kubelet, and restarts the agent while there is no API server. It uses the pods of
// testSearchPath and deletes them.
func (b *harness) testKubeletPods(t *testing.T) {
	t.Helper()
	node, agent := b.Nodes[0], b.agents(t)[0]
	pod := b.pods(t, "default", "app=search")[0]
	if pod.Spec.NodeName != node.Name || agent.Spec.NodeName != node.Name {
		t.Fatalf("%s runs on %s, %s on %s", pod.Name, pod.Spec.NodeName, agent.Name, agent.Spec.NodeName)
	}
	container := func(id string) string { return strings.TrimPrefix(id, "containerd://") }
	read := func(command string, to any) bool {
		const agent = "pid=$(pidof -s node-cache) && exec /proc/$pid/exe %s -o json --admin unix:/proc/$pid/root/run/pod/admin.sock"
		text, err := node.Output(t.Context(), "sh", "-c", fmt.Sprintf(agent, command))
		return err == nil && json.Unmarshal([]byte(text), to) == nil // else it starts
	}
	// known reports whether an agent has the pods of the kubelet, and names the pod that has asked it.
	known := func(queries int, up float64) bool {
		s, asked := status.Status{Cluster: new(status.Cluster)}, top.Page{}
		if !read("status", &s) || !read("top", &asked) || s.Up > up || s.Cluster.NodePods == nil {
			return false
		}
		own := s.Cluster.NodePods
		for _, p := range asked.Pods {
			if p.Pod == pod.Name && int(p.Queries) >= queries {
				return own.Source == "kubelet" && own.Synced && !own.Stale && own.LastError == ""
			}
		}
		return false
	}
	b.runShell(t, "kubectl -n kube-system edit configmap node-cache", "KUBE_EDITOR=sed -i 's/identity: api/identity: kubelet/'")
	b.eventually(t, "the pods come from the kubelet", func() bool { return known(0, 1e9) })

	if err := b.Control.Kill("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if out, err := node.Output(t.Context(), "ctr", "tasks", "kill", "--signal", "TERM", container(agent.Status.ContainerStatuses[0].ContainerID)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	proctest.Eventually(t, limit, "a new agent knows the pods", func() bool { return known(0, time.Since(began).Seconds()) })
	proctest.Figure(t, "without an API server a new agent knows the pods of its node %s after the end of the old one", since(began))
	proctest.Eventually(t, limit, "the new agent names the pod", func() bool { // until it has the lease, the fallback answers
		_, err := node.Output(t.Context(), "ctr", "tasks", "exec", "--exec-id", "lookup",
			container(pod.Status.ContainerStatuses[0].ContainerID), "glibc", "www.example.com")
		return err == nil && known(1, time.Since(began).Seconds())
	})
	if err := b.Control.Restart("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the API server serves", func() bool {
		_, err := b.Kubectl(t.Context(), "", "delete", "pod", "-l", "app=search")
		return err == nil
	})
}
