// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
)

// nodePod returns a running pod of node1 with these addresses.
func nodePod(name string, addrs ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.PodSpec{NodeName: "node1", RestartPolicy: corev1.RestartPolicyAlways},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, addr := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr})
	}
	return p
}

// watchPods makes the watch fill an index with the pods of node1, and nothing else.
func (h *harness) watchPods() *pods.Index {
	index := pods.NewIndex(90*time.Second, nil)
	h.config.OwnPods, h.config.NodeName, h.config.Store = index, "node1", nil
	return index
}

// owner returns whose an address is: the pod's name and workload, stale, or unknown.
func owner(index *pods.Index, addr string) string {
	p, stale := index.Of(netip.MustParseAddr(addr), time.Now())
	if p == nil {
		return "unknown"
	}
	text := strings.TrimSpace(p.Name + " " + p.Workload)
	if stale {
		text += " stale"
	}
	return text
}

func wantOwner(t *testing.T, index *pods.Index, addr, want string) {
	t.Helper()
	assert.Equal(t, addr, want, owner(index, addr))
}

// TestOwnPods shows which states of a pod give its addresses a name.
func TestOwnPods(t *testing.T) {
	isTrue, now := true, metav1.Now()
	controlledBy := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Node", Name: "x"}, {Kind: kind, Name: name, Controller: &isTrue}}
	}
	terminated := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	tests := []struct {
		name   string
		change func(p *corev1.Pod)
		want   string
	}{
		{"running", func(*corev1.Pod) {}, "web"},
		{"without an address", func(p *corev1.Pod) { p.Status.PodIPs = nil }, "unknown"},
		{"on the host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "unknown"},
		{"on another node", func(p *corev1.Pod) { p.Spec.NodeName = "node2" }, "unknown"},
		{"being deleted", func(p *corev1.Pod) { p.DeletionTimestamp = &now }, "unknown"},
		{"succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "unknown"},
		{"without a sandbox", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}
		}, "unknown"},
		{"of a Job, all containers terminated", func(p *corev1.Pod) {
			p.Spec.RestartPolicy, p.Status.ContainerStatuses = corev1.RestartPolicyNever, []corev1.ContainerStatus{terminated, terminated}
		}, "unknown"},
		{"of a Job, one container terminated", func(p *corev1.Pod) {
			p.Spec.RestartPolicy, p.Status.ContainerStatuses = corev1.RestartPolicyNever, []corev1.ContainerStatus{terminated, running}
		}, "web"},
		{"restarted", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{terminated} }, "web"},
		{"with a name that has an escape sequence", func(p *corev1.Pod) { p.Name = "web\x1b[2J" }, "unknown"},
		{"with three addresses", func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "10.1.9.1"}) }, "unknown"},
		{"of a Deployment", func(p *corev1.Pod) {
			p.Labels, p.OwnerReferences = map[string]string{"pod-template-hash": "5d4f"}, controlledBy("ReplicaSet", "front-5d4f")
		}, "web Deployment/front"},
		{"of a ReplicaSet", func(p *corev1.Pod) { p.OwnerReferences = controlledBy("ReplicaSet", "front-5d4f") }, "web ReplicaSet/front-5d4f"},
		{"of a StatefulSet", func(p *corev1.Pod) { p.OwnerReferences = controlledBy("StatefulSet", "db") }, "web StatefulSet/db"},
		{"of an owner with an escape sequence", func(p *corev1.Pod) { p.OwnerReferences = controlledBy("StatefulSet", "db\x1b[2J") }, "web"},
		{"of an owner of such a kind", func(p *corev1.Pod) { p.OwnerReferences = controlledBy("Job\n", "db") }, "web"},
		{"of an owner with a name of 1 MiB", func(p *corev1.Pod) { p.OwnerReferences = controlledBy("StatefulSet", strings.Repeat("x", 1<<20)) }, "web"},
	}
	withHarness(t, func(h *harness) {
		index := h.watchPods()
		for i, tt := range tests {
			p := nodePod("web", fmt.Sprintf("10.1.0.%d", i), fmt.Sprintf("fd00::%d", i))
			p.Namespace = fmt.Sprintf("ns%d", i)
			tt.change(p)
			h.server.Put(p)
		}
		h.start()
		for i, tt := range tests {
			for _, addr := range []string{fmt.Sprintf("10.1.0.%d", i), fmt.Sprintf("fd00::%d", i)} {
				if got := owner(index, addr); got != tt.want {
					t.Errorf("%s, %s: got %q, want %q", tt.name, addr, got, tt.want)
				}
			}
		}
		// A server that ignores the selector.
		h.server.Send("ADDED", func() *corev1.Pod {
			p := nodePod("other", "10.1.9.9")
			p.Spec.NodeName, p.ResourceVersion = "node2", "1000"
			return p
		}())
		h.pass(settleTime)
		wantOwner(t, index, "10.1.9.9", "unknown")
	})
}

// TestOwnPodsDNS shows what the index takes of a pod's DNS settings.
func TestOwnPodsDNS(t *testing.T) {
	options := func(ndots ...string) *corev1.PodDNSConfig {
		c := &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: new("1")}, {Name: "ndots"}}}
		for _, n := range ndots {
			c.Options = append(c.Options, corev1.PodDNSConfigOption{Name: "ndots", Value: &n})
		}
		return c
	}
	tests := []struct {
		name   string
		change func(p *corev1.Pod)
		want   pods.DNS
	}{
		{"none", func(*corev1.Pod) {}, pods.DNS{}},
		{"ClusterFirst", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSClusterFirst }, pods.DNS{}},
		{"None with searches", func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Searches: []string{"corp.test", "lab.test"}}
		}, pods.DNS{Policy: "None", Searches: []string{"corp.test", "lab.test"}}},
		{"ndots", func(p *corev1.Pod) { p.Spec.DNSConfig = options("2", "3") }, pods.DNS{Ndots: 3}},
		{"ndots that is no number", func(p *corev1.Pod) { p.Spec.DNSConfig = options("2x") }, pods.DNS{}},
		{"ndots 0", func(p *corev1.Pod) { p.Spec.DNSConfig = options("0") }, pods.DNS{Skip: true}},
		{"the label", func(p *corev1.Pod) { p.Labels = map[string]string{"node-cache.io/search-path": "off"} }, pods.DNS{Skip: true}},
		{"33 searches", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: make([]string, 33)}
		}, pods.DNS{Skip: true}},
		{"an unknown policy", func(p *corev1.Pod) { p.Spec.DNSPolicy = "x" }, pods.DNS{}},
		{"1 MiB of searches", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{strings.Repeat("x", 1<<20)}}
		}, pods.DNS{Skip: true}},
	}
	withHarness(t, func(h *harness) {
		index := h.watchPods()
		for i, tt := range tests {
			p := nodePod(fmt.Sprint("web", i), fmt.Sprintf("10.1.0.%d", i))
			tt.change(p)
			h.server.Put(p)
		}
		h.start()
		for i, tt := range tests {
			p, _ := index.Of(netip.MustParseAddr(fmt.Sprintf("10.1.0.%d", i)), time.Now())
			assert.Same(t, tt.name, tt.want, p.DNS)
		}
	})
}

// TestOwnPodsReuse follows an address from one pod to the next.
func TestOwnPodsReuse(t *testing.T) {
	withHarness(t, func(h *harness) {
		index := h.watchPods()
		h.start()
		const addr = "10.1.0.1"
		first, second := nodePod("first", addr), nodePod("second")
		h.server.Put(first)
		h.server.Put(second)
		h.pass(settleTime)
		wantOwner(t, index, addr, "first")
		second.Status.PodIPs = first.Status.PodIPs // the end of the first is not known yet
		h.server.Put(second)
		h.pass(settleTime)
		wantOwner(t, index, addr, "unknown")
		h.server.Delete(first)
		h.pass(settleTime)
		wantOwner(t, index, addr, "second")
		now := metav1.Now()
		second.DeletionTimestamp = &now
		h.server.Put(second)
		h.pass(settleTime)
		wantOwner(t, index, addr, "unknown")
		h.server.Put(nodePod("third", addr))
		h.pass(settleTime)
		wantOwner(t, index, addr, "third")
		// The end comes with a list: the history was lost.
		h.server.Refuse("pods", 503)
		h.server.CloseWatches()
		h.server.Delete(nodePod("third"))
		h.server.Forget()
		h.server.Refuse("pods", 0)
		h.pass(10 * time.Second)
		wantOwner(t, index, addr, "unknown")
	})
}

// TestOwnPodsWithoutServer shows what is known while the API server does not answer.
func TestOwnPodsWithoutServer(t *testing.T) {
	withHarness(t, func(h *harness) {
		index := h.watchPods()
		h.server.Put(nodePod("web", "10.1.0.1"))
		h.start()
		assert.Equal(t, "ready", true, h.isReady())
		assert.Equal(t, "requests at the start", 1, len(h.server.Requests("")))
		h.pass(4 * time.Minute)
		wantOwner(t, index, "10.1.0.1", "web")
		h.server.Kill()
		h.pass(100 * time.Second)
		wantOwner(t, index, "10.1.0.1", "web stale")
		h.server.Revive()
		h.pass(10 * time.Second)
		wantOwner(t, index, "10.1.0.1", "web")
		h.server.Refuse("pods", 403)
		h.server.CloseWatches()
		h.pass(10 * time.Second)
		if got := h.watch.Stats().OwnPods.LastError; !strings.HasPrefix(got, "forbidden: ") {
			t.Errorf("LastError: %q", got)
		}
	})
}
