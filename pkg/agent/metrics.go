// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	origin "github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/static"
)

// metricsHandler serves the agent's metrics.
func (a *Agent) metricsHandler() (http.Handler, error) {
	return metrics.Handler(metrics.New(metrics.Config{
		Ready:    a.notReady,
		Resolve:  a.resolver.Stats,
		Cache:    func() cache.Stats { return a.running.Load().cache.Stats() },
		Snapshot: a.snapshotStats,
		Memory:   a.memoryStats,
		Upstream: a.upstreamStats,
		Cluster:  a.clusterStats,
		Node:     a.nodeStats,
		Static:   func() *static.Stats { return a.running.Load().staticStats() },
		Probes:   a.probeStats,
		Foreign:  func() int { return len(a.foreignSockets.sockets()) },
		UDP:      a.udpStats,
		TCP:      a.tcpStats,
		Admin:    func() admin.Stats { return a.admin.Stats() },
		Config:   a.configState,
		Source:   a.originStats,
		Handover: a.handoverStats,
		Version:  a.options.Version,
	}), a.log)
}

func (a *Agent) upstreamStats() []metrics.Route {
	r := a.running.Load()
	stats := make([]metrics.Route, 0, len(r.routes)+2)
	for _, route := range r.routes {
		stats = append(stats, metrics.Route{Zone: route.Zone, Stats: route.pool.Stats()})
	}
	if c := r.cluster; c != nil && c.central != nil { // no route has this zone too
		stats = append(stats, metrics.Route{
			Zone: r.config.ClusterDomain, Service: r.config.Cluster.Central.Service.String(), Stats: c.central.Stats(),
		})
	}
	if r.fallback != nil {
		stats = append(stats, metrics.Route{Zone: fallbackZone, Service: r.fallback.service, Stats: r.fallback.Stats()})
	}
	return stats
}

func (a *Agent) clusterStats() metrics.Cluster {
	var stats metrics.Cluster
	c := a.running.Load().cluster
	if c == nil {
		return stats
	}
	if c.events != nil {
		held := c.events.Stats()
		stats.Zone = &held
	}
	if c.source != nil {
		sourceStats := c.source.Stats()
		stats.Source = &sourceStats
	}
	return stats
}

// snapshotStats returns nil if there are no snapshots.
func (a *Agent) snapshotStats() *snapshot.Stats {
	if a.Config().Snapshot.Folder == "" {
		return nil
	}
	stats := a.snapshots.read()
	return &stats
}

func (a *Agent) memoryStats() metrics.Memory {
	m := a.memoryStatus()
	return metrics.Memory{Container: m.Cgroup, GoLimit: m.GoLimit, GoUsed: m.GoUsed, Snapshot: m.Snapshot, Inflight: m.Inflight, Waiting: m.Waiting}
}

func (a *Agent) nodeStats() metrics.Node {
	return metrics.Node{Link: a.node.linkStats(), Intercept: a.node.keeperStats(), Mode: a.Config().Intercept.Mode.String()}
}

func (a *Agent) udpStats() []server.UDPStats {
	stats := make([]server.UDPStats, 0, len(a.udp))
	for _, u := range a.udp {
		stats = append(stats, u.Stats())
	}
	return stats
}

func (a *Agent) tcpStats() []server.TCPStats {
	stats := make([]server.TCPStats, 0, len(a.tcp))
	for _, t := range a.tcp {
		stats = append(stats, t.Stats())
	}
	return stats
}

// originStats returns the stats of the configuration's source. Without a source its kind is none.
func (a *Agent) originStats() origin.Stats {
	if a.source == nil {
		return origin.Stats{Kind: origin.KindNone, Reachable: true}
	}
	return a.source.Stats()
}

func (a *Agent) configState() metrics.ConfigState {
	return metrics.ConfigState{
		Generation:  a.reloads.generation.Load(),
		LastOK:      a.reloads.lastError.Load() == nil,
		Succeeded:   a.reloads.good.Load(),
		Failed:      a.reloads.bad.Load(),
		LastSuccess: time.Unix(0, a.reloads.lastSuccess.Load()),
		Panics:      a.panics.Load(),
	}
}
