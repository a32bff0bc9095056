// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
)

// TestKernelTarget has the address of the DNS service change, which the agent learns from the API server. The kernel then answers at
// the new one, and lets queries to the old one pass. The rules stay.
func TestKernelTarget(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	b := newHarness(t, options{
		transparent: true, extra: withKernelHits + "cluster: {resolver: central, central: {service: kube-system/kube-dns}, kubeconfig: " + kubeconfig + "}\n",
	})
	n := &truth{Network: b.Network, api: watchtest.New(time.Now)}
	proctest.WriteFile(t, kubeconfig, strings.ReplaceAll(plainKubeconfig, "URL", "http://"+n.serveAPI(t)))
	text := b.configText()
	start := strings.Index(text, "  services: ")
	b.writeConfig(t, text[:start]+text[start+strings.Index(text[start:], "\n")+1:])
	setAddress := func(addr netip.Addr) {
		s := clusterService("kube-dns", addr.String())
		s.Namespace, s.Spec.Ports[0].Name, s.Spec.Ports[0].Port = "kube-system", "dns-tcp", 53
		n.api.Put(s)
	}
	old, other := b.dnsAddrs[0], netip.MustParseAddrPort("10.96.0.11:53")
	setAddress(old.Addr())
	b.launch(t)
	proctest.Eventually(t, time.Minute, "the agent serves its pages", func() bool {
		_, err := nodetest.Fetch(t.Context(), b.Node, "GET", "http://"+agentIPv4.String()+":9253/metrics")
		return err == nil
	})
	b.awaitKernelHits(t, b.Pods[0], 0)
	setAddress(other.Addr())
	inKernel := b.replies(t, "kernel")
	proctest.Eventually(t, time.Minute, "the kernel answers at the new address", func() bool {
		_, _ = nodetest.Ask(b.Pods[0], old, "udp") // the rules bring it to the agent, whose answer permits more of the kernel
		_, err := nodetest.Ask(b.Pods[0], other, "udp")
		return err == nil && b.replies(t, "kernel") > inKernel
	})
	before := b.replies(t, "cache")
	for range 3 {
		_, err := nodetest.Ask(b.Pods[0], old, "udp")
		assert.NoError(t, err)
	}
	assert.Equal(t, "answers of the process at the old address", before+3, b.replies(t, "cache"))
}
