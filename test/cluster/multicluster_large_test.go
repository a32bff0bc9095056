// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestMultiClusterLarge has 5,000 imports with 50,000 endpoints of three clusters, in the long form beside 11,000 services with
// 100,000 endpoints.
func TestMultiClusterLarge(t *testing.T) {
	t.Parallel()
	const imports, endpointsPer = 5000, 10
	mostTime := proctest.OrdinaryOrSoak(time.Hour, time.Second) // other tests have the processors: only a soak judges time
	mostBytes := proctest.OrdinaryOrSoak[int64](32<<20, 25<<20) // alone, the memory of the start is not shared with that of the cluster
	m := multiCluster{kubetest.Start(t, kubetest.Options{})}
	m.serve(t, "v1beta1")
	const headless, perHeadless = 1000, 100
	kubetest.Apply(t, m.Cluster, kubetest.Namespace("shop"))
	kubetest.Apply(t, m.Cluster, proctest.OrdinaryOrSoak(nil, kubetest.Large(10*headless, headless, perHeadless))...) // two minutes
	address := func(i, n int) string {
		return kubetest.EndpointAddr(headless*perHeadless + i*endpointsPer + n).String()
	}
	var group errgroup.Group
	group.SetLimit(64)
	var slices []runtime.Object
	for i := range imports {
		name, kind, ips := fmt.Sprintf("headless-%d", i), "Headless", []string(nil)
		if i%2 == 0 {
			name, kind, ips = fmt.Sprintf("set-%d", i), "ClusterSetIP", []string{fmt.Sprintf("10.97.%d.%d", i>>8, i&255)}
		}
		group.Go(func() error {
			return m.tryImport(t, "v1beta1", name, kind, ips, importPort("http", 80), importPort("metrics", 9090))
		})
		var endpoints []discoveryv1.Endpoint
		for n := range endpointsPer {
			endpoints = append(endpoints, endpoint(address(i, n), named(fmt.Sprintf("%s-%d", name, n)), in("zone-a")))
		}
		slices = append(slices, importedSlice(name, fmt.Sprintf("cluster-%d", i%3), endpoints...))
	}
	assert.NoError(t, group.Wait())
	kubetest.Apply(t, m.Cluster, slices...)
	measure := func(more ...string) (rss int64, took time.Duration, n *node) {
		rss, took = math.MaxInt64, math.MaxInt64
		for range 3 { // other tests may have the processors
			began := time.Now()
			n = startReady(t, settings{cluster: local(append(more, kubeconfig(m.Kubeconfig(kubetest.Admin)))...)})
			rss, took = min(rss, n.Usage(t).RSS), min(took, time.Since(began))
		}
		return rss, took, n
	}
	without, idle, _ := measure()
	with, took, n := measure(clusterSetLine)
	const mib = 1 << 20
	proctest.Figure(t, "%d imports with %d endpoints: %.1f MiB more than %.1f, ready after %s, without them after %s", imports, imports*endpointsPer,
		float64(with-without)/mib, float64(without)/mib, took.Round(time.Millisecond), idle.Round(time.Millisecond))
	if with-without > mostBytes || took-idle > mostTime {
		t.Errorf("%d bytes more, ready %s later; want at most %d and %s", with-without, took-idle, mostBytes, mostTime)
	}
	n.expect(t,
		expectedAnswer{"set-4998.shop.svc.clusterset.local.", dns.TypeA, "NOERROR 10.97.19.134"},
		expectedAnswer{"headless-4999-9.cluster-1.headless-4999.shop.svc.clusterset.local.", dns.TypeA, "NOERROR " + address(4999, 9)})
}
