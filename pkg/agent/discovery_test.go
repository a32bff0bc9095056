// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// putResolvers writes the headless Service of the resolvers and a slice of it, in a namespace.
func putResolvers(t *testing.T, dir, namespace, addr string) {
	t.Helper()
	putManifest(t, dir, namespace, "apiVersion: v1\nkind: Service\nmetadata: {name: resolvers, namespace: "+namespace+"}\n"+
		"spec: {clusterIP: None, ports: [{name: dns-tcp, port: 53}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: resolvers-1, namespace: "+namespace+", labels: {kubernetes.io/service-name: resolvers, service.kubernetes.io/headless: \"\"}}\n"+
		"addressType: IPv4\nports: [{name: dns-tcp, port: 53}]\nendpoints: [{addresses: ["+addr+"], zone: a}]\n")
}

// TestDiscovery has an agent find the endpoints of its central resolver by DNS, through a change of them and a restart without a resolver.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	putResolvers(t, dir, "kube-system", "192.0.2.1")
	putResolvers(t, dir, "tenant", "192.0.2.66") // of the same name
	resolver := pushConfig(t, dir)
	central, stopCentral := start(t, agent.Options{Config: &resolver, Log: &journal{}})
	cfg := local(t, upstreamtest.New(upstreamtest.Zone("www.example.com. 30 IN A 192.0.2.1")).Listen(t))
	cfg.Cluster.Resolver, cfg.Cluster.NodeZone = config.ResolverCentral, "b"
	cfg.Cluster.Central.Addresses, cfg.Cluster.Central.Headless = []netip.AddrPort{central.Addrs()[0]}, config.ServiceName{Namespace: "kube-system", Name: "resolvers"}
	cfg.Snapshot.Folder = t.TempDir()
	a, stop := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	await := func(a *agent.Agent, endpoint string) {
		t.Helper()
		want := []string{"tcp://" + endpoint + ":53 far", "tcp://" + central.Addrs()[0].String() + " last"}
		proctest.Eventually(t, time.Minute, "the endpoints are not those of "+endpoint, func() bool {
			var got []string
			for _, e := range statusOf(t, a).Cluster.Central.Endpoints {
				got = append(got, e.Address+map[bool]string{true: " far"}[e.Far]+map[bool]string{true: " last"}[e.Last])
			}
			return slices.Equal(want, got)
		})
	}
	await(a, "192.0.2.1")
	putResolvers(t, dir, "kube-system", "192.0.2.2")
	await(a, "192.0.2.2")
	s := statusOf(t, a).Cluster
	assert.Same(t, "in sync", true, s.Central.InSync)
	assert.Same(t, "Service", "kube-system/resolvers", s.Central.Service)
	assert.Same(t, "requests to an API server", uint64(0), s.Requests)

	stop()
	stopCentral()
	next, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	await(next, "192.0.2.2")
	proctest.Eventually(t, time.Minute, "/status does not say that no server can be reached", func() bool {
		s := statusOf(t, next).Cluster.Central
		return !s.InSync && s.Discovery.LastError != ""
	})
}
