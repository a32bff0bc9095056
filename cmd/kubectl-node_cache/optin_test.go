// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/intercept"
)

// optedPod returns a pod with the agent's address, or another.
func optedPod(namespace string, policy corev1.DNSPolicy, nameserver string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: policy}}
	p.Namespace = namespace
	if nameserver != "" {
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{nameserver}}
	}
	if change != nil {
		change(&p)
	}
	return p
}

func TestStatusOptIn(t *testing.T) {
	t.Parallel()
	const agent = "169.254.20.10"
	label := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{optInLabel: value} }
	}
	s := apiServer{
		daemonSet: daemonSet(1), pods: []corev1.Pod{agentPod("a", "node1", 1)}, namespaces: []string{"shop", "empty"}, policy: true,
		run: func(_, command string, stdout, _, _ io.Writer) int {
			if command == "/node-cache doctor" {
				_, _ = io.WriteString(stdout, "ok    link\n")
				return 0
			}
			return writeJSON(stdout, status.Status{State: "ready", Version: "v0.7.0", Node: &status.Node{Intercept: &status.Intercept{
				Leases: []intercept.LeaseStats{{Address: netip.MustParseAddr(agent), Held: true}},
			}}})
		},
		optedPods: []corev1.Pod{
			optedPod("shop", corev1.DNSNone, agent, nil),
			optedPod("shop", corev1.DNSNone, agent, label("on")),
			optedPod("shop", corev1.DNSNone, agent, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			optedPod("shop", corev1.DNSClusterFirst, "", nil),
			optedPod("shop", corev1.DNSClusterFirst, agent, nil), // it asks the cluster's DNS first
			optedPod("shop", corev1.DNSNone, "192.0.2.1", nil),
			optedPod("shop", corev1.DNSDefault, "", nil),
			optedPod("shop", corev1.DNSClusterFirst, "", label("off")),
			optedPod("shop", corev1.DNSClusterFirst, "", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			optedPod("shop", corev1.DNSClusterFirst, "", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }),
			optedPod("shop", corev1.DNSClusterFirst, "", func(p *corev1.Pod) {
				p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
			}),
			optedPod("other", corev1.DNSNone, agent, func(p *corev1.Pod) { label("on")(p); p.Spec.NodeName = "node1" }),
			optedPod("other", corev1.DNSClusterFirst, "", label("on")),
			optedPod("other", corev1.DNSClusterFirst, "", nil), // its namespace is out
		},
	}
	flag := s.start(t)
	got := command("status", flag)
	assert.Same(t, "table", `NODE   VERSION  READY  HITS  LEASES  PROBLEMS
node1  v0.7.0   yes    -     1/1     -

NAMESPACE  PODS IN  TO RECREATE  LEFT ALONE
empty      0        0            0
other      1        1            0
shop       2        2            6
`, got.Stdout)
	assert.Equal(t, "exit code", cli.ExitOK, got.Code)
	var page struct{ Namespaces []optIn }
	assert.NoError(t, json.Unmarshal([]byte(command("status", flag, "-o", "json").Stdout), &page))
	if diff := cmp.Diff([]optIn{{"empty", 0, 0, 0}, {"other", 1, 1, 0}, {"shop", 2, 2, 6}}, page.Namespaces); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	got = command("doctor", "node1", flag)
	assert.Same(t, "doctor", `ok    link

NAMESPACE  PODS IN  TO RECREATE  LEFT ALONE
empty      0        0            0
other      1        0            0
shop       0        0            0
`, got.Stdout)
	assert.Equal(t, "exit code", cli.ExitOK, got.Code)
	s.policy = false
	got = command("status", flag)
	assert.Same(t, "without a policy", `node-cache: namespaces or pods have the label node-cache.io/dns=on, and there is no MutatingAdmissionPolicy node-cache-dns
hint: install component opt-in, or remove the label: docs/opt-in.md
`, got.Stderr)
	assert.Equal(t, "exit code", cli.ExitFailed, got.Code)
}
