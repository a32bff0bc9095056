// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// denied denies all traffic of a direction to or from the pods of a namespace.
const denied = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "denied", "namespace": "%s"},
  "spec": {"podSelector": {}, "policyTypes": ["%s"]}}`

// asker is a pod in a namespace of its own.
const asker = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "namespace": "shop"},
  "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "asks", "image": "` + kubenode.BusyboxImage + `", "command": ["sleep", "36000"]}]}}
`

// TestNetworkPolicies applies each template of daemonset/network-policies where policies deny the traffic, as kube-router applies them.
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
	b.kubectl(t, "apply", "-k", repository+"/daemonset/base")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	expect := func(what string, answered bool) {
		t.Helper()
		took := b.eventually(t, what, func() bool {
			_, err := b.Kubectl(t.Context(), "", "-n", "shop", "exec", "asks", "--", "nslookup", "-type=a", "kubernetes.default.svc.cluster.local.", agentAddr)
			return (err == nil) == answered
		})
		proctest.Figure(t, "%s after %s", what, took)
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
