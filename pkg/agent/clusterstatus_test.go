// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A fakeSource is a source with the status that the test sets.
type fakeSource struct {
	ready chan struct{}
	stats watch.Stats
}

func (s *fakeSource) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (s *fakeSource) Ready() <-chan struct{} { return s.ready }

func (s *fakeSource) Stats() watch.Stats { return s.stats }

// after is a source that has reported the first state, with the status of kinds.
func after(kinds ...watch.KindStats) *fakeSource {
	s := &fakeSource{ready: make(chan struct{}), stats: watch.Stats{Kinds: kinds}}
	close(s.ready)
	return s
}

// before is a source that has not reported the first state yet.
func before(kinds ...watch.KindStats) *fakeSource {
	return &fakeSource{ready: make(chan struct{}), stats: watch.Stats{Kinds: kinds}}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		starting bool
		cluster  *cluster.Cluster
		want     string // empty: ready
	}{
		{name: "starting", starting: true, cluster: new(cluster.Cluster), want: "starting"},
		{name: "starting, in sync already", starting: true, cluster: &cluster.Cluster{Source: after()}, want: "starting"},
		{name: "no cluster", cluster: new(cluster.Cluster)},
		{name: "no response", cluster: &cluster.Cluster{Source: before()}, want: "the cluster zone is not synced: no response yet"},
		{
			name: "a kind that waits", want: "the cluster zone is not synced: endpointslice: unreachable: dial tcp",
			cluster: &cluster.Cluster{Source: before(
				watch.KindStats{Kind: zone.Services, Synced: true, LastError: "busy: a moment ago"},
				watch.KindStats{Kind: zone.Slices, LastError: "unreachable: dial tcp"},
			)},
		},
		{name: "in sync", cluster: &cluster.Cluster{Source: after(watch.KindStats{Kind: zone.Services, Synced: true})}},
		{
			name: "in sync, and old since", cluster: &cluster.Cluster{Source: after(
				watch.KindStats{Kind: zone.Services, Synced: true, Age: time.Hour, LastError: "unreachable: dial tcp"},
			)},
		},
		{
			name: "in sync but for what is forbidden", cluster: &cluster.Cluster{Source: after(
				watch.KindStats{Kind: zone.Services, Synced: true}, watch.KindStats{Kind: zone.Slices, LastError: "forbidden: not yours"},
			)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &Agent{node: new(node.Node), handover: new(socketHandover), ready: make(chan struct{}), gate: openGate()}
			if !tt.starting {
				close(a.ready)
			}
			a.running.Store(&generation{cluster: tt.cluster})
			got := ""
			if err := a.notReady(); err != nil {
				got = err.Error()
			}
			assert.Equal(t, "not ready for", tt.want, got)
		})
	}
}

// TestClusterStatus has a zone that holds two services, a source with a right missing, and a central resolver's service.
func TestClusterStatus(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795212600, 0)
	store := zone.NewStore()
	for _, name := range []string{"web", "api"} {
		store.PutService(zone.Service{
			Namespace: "shop", Name: name, Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, TTL: -1,
		}, now)
	}
	held := store.Stats()
	endpoints := new(upstream.Service)
	pool, err := upstream.New(upstream.Config{Endpoints: endpoints.Endpoints()})
	assert.NoError(t, err)
	source := before(
		watch.KindStats{Kind: zone.Services, Synced: true, Age: 12*time.Second + 345*time.Millisecond, Events: 2, Restarts: 1},
		watch.KindStats{Kind: zone.Slices, Failures: 3, LastError: "forbidden: not yours"},
	)
	source.stats.Requests = 7
	r := &generation{
		config: config.Config{ClusterDomain: "cluster.local.", Cluster: config.Cluster{
			Resolver: config.ResolverLocal, Kubeconfig: "/etc/kubeconfig", NodeZone: "zone-a", StaleAfter: 90 * time.Second,
			Central: config.Central{Service: config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}}, Domains: []string{"corp.k8s."}, External: config.External{Zones: []string{"example.org."}},
		}},
		cluster: &cluster.Cluster{Domains: [][]byte{[]byte("\x07cluster\x05local\x00")}, Store: store, Events: store, Source: source, Endpoints: endpoints, Central: pool},
	}
	current := func() *status.Cluster {
		stats := r.cluster.SourceStats()
		return r.cluster.Status(&r.config, stats, time.Now())
	}
	want := &status.Cluster{
		Domain: "cluster.local.", Domains: []string{"corp.k8s."}, External: []string{"example.org."}, Resolver: "local", Source: "API server of /etc/kubeconfig",
		WaitsFor: "endpointslice: forbidden: not yours", NodeZone: "zone-a",
		Serial: held.Serial, IndexBytes: held.Index, Requests: 7,
		Kinds: []status.Kind{
			{Kind: "service", Synced: true, Age: new(12.3), KindStats: held.Kinds[zone.Services], Events: 2, Restarts: 1},
			{Kind: "endpointslice", Failures: 3, LastError: "forbidden: not yours"},
		},
		Central: &status.Central{Service: "kube-system/kube-dns"},
	}
	assert.Same(t, "before the endpoints are known", want, current(), cmpopts.EquateEmpty())

	endpoints.Set([]upstream.ServiceEndpoint{{Addr: netip.MustParseAddrPort("10.244.0.2:53")}}, []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")})
	source.stats.ServiceWatch.Synced = true
	source.stats.Kinds[1] = watch.KindStats{Kind: zone.Slices, Synced: true, Failures: 3}
	close(source.ready)
	want.InSync, want.WaitsFor = true, ""
	want.Kinds[1] = status.Kind{Kind: "endpointslice", Synced: true, Age: new(0.0), Failures: 3}
	want.Central.InSync = true
	want.Central.Endpoints = []status.Server{
		{Address: "tcp://10.244.0.2:53", State: "good"},
		{Address: "tcp://10.96.0.10:53", State: "good", Last: true},
	}
	assert.Same(t, "once all is known", want, current(), cmpopts.EquateEmpty())
}
