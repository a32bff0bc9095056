// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// publishedDaemons is Cilium's DaemonSet, as far as the agent reads it. No controller makes pods of it here.
const publishedDaemons = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: cilium}}
  template:
    metadata: {labels: {k8s-app: cilium}}
    spec:
      containers: [{name: cilium-agent, image: "quay.io/cilium/cilium:%s"}]
`

// publish gives the API server what Cilium's chart gives it: its version and its options.
func (c *cilium) publish(t *testing.T) {
	t.Helper()
	_, version, _ := strings.Cut(c.sources, "cilium@")
	const base = "/namespaces/kube-system/"
	assert.NoError(t, c.rig.apply(t, "/apis/apps/v1"+base+"daemonsets/cilium", fmt.Sprintf(publishedDaemons, version)))
	options := map[string]string{"enable-ipv6": "false"}
	for _, f := range c.flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
		options[name] = value
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "cilium-config", "namespace": "kube-system"}, "data": options,
	})
	assert.NoError(t, err)
	assert.NoError(t, c.rig.apply(t, "/api/v1"+base+"configmaps/cilium-config", string(text)))
}

// expectLost: the agent reads from the API server that no query of a pod arrives, and is not ready.
func (r *rig) expectLost(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "the agent is not ready, and its fallback broken", func() bool {
		return strings.Contains(r.adminPage(t, "/readyz"), "queries of pods are lost: Cilium 1.15.19") && strings.Contains(r.adminPage(t, "/status"), `"broken"`)
	}, func() string { return r.adminPage(t, "/readyz") + r.adminPage(t, "/status") })
}

// expectNotLost: the agent has read the settings, and is ready.
func (r *rig) expectNotLost(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "the agent is ready", func() bool {
		return strings.HasPrefix(r.adminPage(t, "/readyz"), "ok")
	}, func() string { return r.adminPage(t, "/readyz") })
	if status := r.adminPage(t, "/status"); strings.Contains(status, "queries of pods are lost") {
		t.Errorf("the agent answers, but calls its queries lost: %s", status)
	}
}
