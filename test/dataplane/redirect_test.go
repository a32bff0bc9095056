// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestLocalRedirectPolicy has Cilium send the queries to the Service to the agent, which is an ordinary pod without a link and rules, while
// that is ready. The test is the kubelet, which finds that it is not.
func TestLocalRedirectPolicy(t *testing.T) {
	r := newRig(t, currentCilium, strings.Fields(replace+" "+native+" "+noL7+" "+masquerade+" --enable-local-redirect-policy=true "+sockets)...)
	policy, err := os.ReadFile(filepath.Join("..", "..", "daemonset", "overlays", "cilium", "policy.yaml"))
	assert.NoError(t, err)
	agent := kubetest.Pod{
		Namespace: metav1.NamespaceSystem, Name: "node-cache", Labels: map[string]string{"app.kubernetes.io/name": "node-cache"},
		Node: nodeName, NotReady: true,
		Ports: []corev1.ContainerPort{
			{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", ContainerPort: 53, Protocol: corev1.ProtocolTCP},
		},
	}
	p := r.addPod(t, agent)
	agent.IPs, r.host, r.kubeconfig = []netip.Addr{p.ip}, p.Host, r.kubeconfigOn(t, p.Host)
	setReady := func(ready bool) {
		agent.NotReady = !ready
		kubetest.Apply(t, r.cluster, agent.Object())
	}
	r.configure(t, netip.IPv4Unspecified(), "")
	r.target = netip.AddrPortFrom(serviceAddr, 53)
	client := r.newPod(t, "client")
	m := r.startMeter(t, client)
	if _, ok := awaitAnswers(m, byFallback, time.Now(), limit); !ok {
		t.Fatalf("without a policy: %s", m.Stop())
	}
	r.launch(t)
	r.awaitListening(t)
	setReady(true)
	assert.NoError(t, r.apply(t, "/apis/cilium.io/v2/namespaces/kube-system/ciliumlocalredirectpolicies/node-cache", string(policy)))
	if _, ok := awaitAnswers(m, byAgent, time.Now(), limit); !ok {
		t.Fatalf("with a policy: %s", m.Stop())
	}
	r.expectAnswers(t, client)
	r.agent.Kill()
	gone := time.Now()
	setReady(false)
	at, ok := awaitAnswers(m, byFallback, gone, limit)
	if took := at.Sub(gone); !ok || took > redirectLimit {
		t.Errorf("the fallback answers %s after the agent's pod is not ready, want %s", ms(took), redirectLimit)
	} else {
		proctest.Figure(t, "the fallback answers %s after the agent's pod is not ready", ms(took))
	}
	r.launch(t)
	r.awaitListening(t)
	before := time.Now()
	setReady(true)
	if _, ok := awaitAnswers(m, byAgent, before, limit); !ok {
		t.Errorf("the agent is not back: %s", m.Report().Between(before, time.Now()))
	}
	if back := m.Stop().Between(before, time.Now()); back.Lost() > 0 {
		t.Errorf("from the fallback back to the agent: %s", back)
	}
}

// awaitListening waits until the agent answers on its own host.
func (r *rig) awaitListening(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "the agent answers itself", func() bool {
		who, _ := nodetest.Ask(r.host, netip.MustParseAddrPort("127.0.0.1:53"), "udp")
		return who == byAgent
	})
}

// redirectLimit is what Cilium may take to send queries elsewhere.
const redirectLimit = 1500 * time.Millisecond
