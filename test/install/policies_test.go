// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// denied denies all traffic of a direction to or from the pods of a namespace.
const denied = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "denied", "namespace": "%s"},
  "spec": {"podSelector": {}, "policyTypes": ["%s"]}}`

// asker is a pod in a namespace of its own, which asks the agent all the time.
const asker = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "namespace": "shop"},
  "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "asks", "image": "` + kubenode.BusyboxImage + `", "command": ["/bin/pod", "ask", "-server=` + agentAddr + `", "-every=50ms"]}]}}
`

// TestNetworkPolicies applies each template of daemonset/network-policies where policies deny the traffic, as kube-router applies them. The
// kernel answers hits before the first policy.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	if !proctest.Soak() {
		t.Skip("builds a policy engine: make soak")
	}
	program, err := kubetest.Program(t.Context(), "policies")
	if err != nil {
		t.Fatal(err)
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables"})
	for _, n := range b.Nodes {
		if err := n.Start("policies", program, b.Kubeconfig(), n.Name, "10.96.0.0/16"); err != nil {
			t.Fatal(err)
		}
	}
	b.kubectlInput(t, asker, "apply", "-f", "-")
	b.kubectl(t, "-n", "shop", "wait", "--for=condition=Ready", "--timeout=90s", "pod/asks")
	pod := b.pods(t, "shop", "")[0]
	b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/base", "daemonset/components/kernel"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	expect := func(what string, answered bool) {
		t.Helper()
		began, n, last := time.Now(), b.answers(t, pod), time.Now()
		b.eventually(t, what, func() bool {
			if now := b.answers(t, pod); now > n {
				n, last = now, time.Now()
				return answered
			}
			return !answered && time.Since(last) > time.Second
		})
		proctest.Figure(t, "%s: last answer after %s", what, last.Sub(began).Round(10*time.Millisecond))
	}
	deny := func(namespace, direction string) {
		t.Helper()
		b.kubectlInput(t, strings.NewReplacer("%s", namespace).Replace(strings.Replace(denied, `["%s"]`, `["`+direction+`"]`, 1)), "apply", "-f", "-")
	}
	permit := func(file, namespace string) {
		t.Helper()
		b.runShell(t, "sed s/NAMESPACE/"+namespace+"/ daemonset/network-policies/"+file+" | kubectl apply -f -")
	}

	expect("a pod without policies is answered", true)
	b.eventually(t, "the kernel answers it", func() bool {
		return slices.ContainsFunc(b.agents(t), func(agent corev1.Pod) bool { return b.kernelStatus(t, &agent).Hits > 0 })
	})
	deny("shop", "Egress")
	expect("a pod is denied egress", false)
	permit("pods.yaml", "shop")
	expect("pods.yaml: the agent answers", true)

	b.kubectl(t, "delete", "-k", repository+"/daemonset/base")
	b.awaitNoAgents(t)
	expect("pods.yaml: the fallback answers", true)
	deny("kube-system", "Ingress")
	expect("the cluster's DNS is denied ingress", false)
	permit("kube-dns.yaml", "kube-system")
	expect("kube-dns.yaml: the fallback answers", true)

	b.kubectl(t, "-n", "kube-system", "delete", "networkpolicy/node-cache-kube-dns")
	b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/central")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "delete", "daemonset/node-cache") // an agent may query the pods of its own node in any case
	b.awaitNoAgents(t)
	expect("the central resolver is denied ingress", false)
	permit("resolver.yaml", "kube-system")
	expect("resolver.yaml: the central resolver answers as the fallback", true)
}

// answers returns how many queries of a pod that asks were answered.
func (b *harness) answers(t *testing.T, pod corev1.Pod) int {
	t.Helper()
	var c counts
	_, text := b.httpDo(t, http.MethodGet, "http://"+pod.Status.PodIP+":8080/counts")
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("the counts of %s: %v: %s", pod.Name, err, text)
	}
	return c.UDP.Answered
}
