// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestClusterSetReloaded turns the names of a cluster set on and off: what was cached of them before does not hide them.
func TestClusterSetReloaded(t *testing.T) {
	t.Parallel()
	const name, elsewhere = "web.shop.svc.clusterset.local.", "web.shop.svc.set.example."
	upstream := upstreamtest.New(upstreamtest.Zone(name+" 300 IN A 192.0.2.1", elsewhere+" 300 IN A 192.0.2.2"))
	dir := folder(t)
	putManifest(t, dir, "import", "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\nmetadata: {name: web, namespace: shop}\n"+
		"spec: {type: ClusterSetIP, ips: [10.97.0.1], ports: [{port: 80}]}\n")
	cfg := clusterConfig(t, dir, upstream.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	for _, step := range []struct {
		set, want, other string
		kinds            int
	}{
		{"", "192.0.2.1", "192.0.2.2", 3},
		{"clusterset.local.", "10.97.0.1", "192.0.2.2", 5},
		{"set.example.", "192.0.2.1", "10.97.0.1", 5},
		{"", "192.0.2.1", "192.0.2.2", 3},
	} {
		cfg.Cluster.ClusterSet, cfg.Cluster.Endpoints = step.set, config.EndpointsHeadless
		if _, err := a.Reload(cfg, nil); err != nil {
			t.Fatal(err)
		}
		assert.Equal(t, "the set "+step.set, step.want, addresses(ask(t, a, "udp", name)))
		assert.Equal(t, "the set "+step.set, step.other, addresses(ask(t, a, "udp", elsewhere)))
		s := statusOf(t, a)
		assert.Equal(t, "its domain in /status", step.set, s.Cluster.ClusterSet)
		assert.Equal(t, "kinds in /status", step.kinds, len(s.Cluster.Kinds))
		if len(s.Problems) > 0 {
			t.Errorf("problems: %+v", s.Problems)
		}
	}
	r := ask(t, a, "udp", "none.shop.svc.cluster.local.")
	assert.Equal(t, "a name that does not exist", dns.RcodeNameError, r.Rcode)
}
