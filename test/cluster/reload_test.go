// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// testReload changes the cluster section of a running agent, while names are asked for that no change may touch.
func testReload(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	pod := kubetest.Pod{Namespace: "shop", Name: "web-1", Node: "node-1", IPs: addrs("10.1.3.1")}.Object()
	kubetest.Apply(t, c, kubetest.Namespace("garden"))
	kubetest.Apply(t, c, newService("garden", "gate", at("10.96.3.1"), ports("http:80")), pod,
		newSlice("web", "web-1", slicePorts("http:8080"), endpoint("10.1.3.1")))
	const (
		gateName  = "gate.garden.svc.cluster.local."
		behindWeb = "10-1-3-1." + webName
		podName   = "10-1-3-1.shop.pod.cluster.local."
		noPodName = "10-1-3-9.shop.pod.cluster.local."
	)
	own := kubeconfig(c.Kubeconfig(kubetest.Admin))
	n := startReady(t, settings{cluster: local(own)})
	steps := []struct {
		name  string
		lines []string
		want  []expectedAnswer
	}{
		{"one namespace", []string{own, "namespaces: [shop]"}, []expectedAnswer{
			{gateName, dns.TypeA, "NXDOMAIN"}, {"garden.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, {behindWeb, dns.TypeA, "NXDOMAIN"},
		}},
		{"all of them again", []string{own}, []expectedAnswer{{gateName, dns.TypeA, "NOERROR 10.96.3.1"}}},
		{"all endpoints", []string{own, "endpoints: all"}, []expectedAnswer{{behindWeb, dns.TypeA, "NOERROR 10.1.3.1"}}},
		{"no pods", []string{own, "pods: disabled"}, []expectedAnswer{{podName, dns.TypeA, "NXDOMAIN"}, {behindWeb, dns.TypeA, "NXDOMAIN"}}},
		{"true pods", []string{own, "pods: verified"}, []expectedAnswer{
			{podName, dns.TypeA, "NOERROR 10.1.3.1"}, {noPodName, dns.TypeA, "NXDOMAIN"},
		}},
		{"any pods", []string{own, "pods: insecure"}, []expectedAnswer{{noPodName, dns.TypeA, "NOERROR 10.1.3.9"}}},
		{"namespaces of a label", []string{own, "namespaceSelector: kubernetes.io/metadata.name in (shop)"}, []expectedAnswer{
			{gateName, dns.TypeA, "NXDOMAIN"}, {podName, dns.TypeA, "NOERROR 10.1.3.1"},
		}},
	}
	held := startLoad(t, n.settings.addr, inTurn(steady()...))
	for _, step := range steps {
		before := n.status(t).Config.Generation
		n.settings.cluster = local(step.lines...)
		n.write(t)
		proctest.Eventually(t, limit, step.name+": applied", func() bool { return n.status(t).Config.Generation > before })
		for _, s := range step.want {
			if got := n.answerText(s.name, s.qtype); got != s.want {
				t.Errorf("%s: %s: %q, want %q", step.name, s.name, got, s.want)
			}
		}
	}
	n.reloadTTL(t)
	n.reloadAway(t, c)
	held.end(t)
}

// reloadTTL asks for another TTL and for nothing else, for which the API server need not be asked.
func (n *node) reloadTTL(t *testing.T) {
	t.Helper()
	before := n.status(t)
	n.settings.cluster = append(n.settings.cluster, "ttl: 30s")
	n.write(t)
	proctest.Eventually(t, limit, "a TTL of 30 s", func() bool {
		m, err := exchange(n.settings.addr, webName, dns.TypeA)
		return err == nil && len(m.Answer) == 1 && m.Answer[0].Header().Ttl == 30
	})
	proctest.Eventually(t, limit, "it is counted", func() bool { return n.status(t).Config.Generation > before.Config.Generation }) // which is done last
	if got := n.status(t).Cluster.Requests - before.Cluster.Requests; got < 0 || got > 3 {
		t.Errorf("%d requests to the API server for another TTL, want none but those that were due", got)
	}
}

// reloadAway names an API server that cannot be reached.
func (n *node) reloadAway(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	before := n.status(t)
	n.settings.cluster = local(kubeconfig(unreachable(t, c)))
	n.write(t)
	proctest.Eventually(t, limit, "the file is refused", func() bool {
		now := n.status(t).Config
		return now.Refused > before.Config.Refused && !now.LastOk
	})
	s := n.status(t)
	if s.Config.Generation != before.Config.Generation || s.Config.LastOk || !strings.Contains(s.Config.LastError, "not synced after") {
		t.Errorf("/status after a file that leads nowhere: %+v", s.Config)
	}
	if len(s.Problems) == 0 || s.Problems[0].Where != "config" {
		t.Errorf("/status names no problem of the configuration: %+v", s.Problems)
	}
	if !n.ready() {
		t.Error("not ready after a file that was refused")
	}
	kubetest.Apply(t, c, shopService("reloaded", "10.96.3.2"))
	n.awaitAnswer(t, "reloaded.shop.svc.cluster.local.", "NOERROR 10.96.3.2")
}

// unreachable is a kubeconfig that leads to a port where no process listens.
func unreachable(t *testing.T, c *kubetest.Cluster) string {
	t.Helper()
	path, err := c.KubeconfigAt(kubetest.Admin, proctest.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
