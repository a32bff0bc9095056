// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/server"
)

// metricsHandler serves the agent's series.
func (a *Agent) metricsHandler() (http.Handler, error) {
	return metrics.Handler(metrics.New(metrics.Config{
		Resolve:  a.resolver.Stats,
		Cache:    func() cache.Stats { return a.running.Load().cache.Stats() },
		Upstream: a.upstreamStats,
		UDP:      a.udpStats,
		TCP:      a.tcpStats,
		Admin:    func() admin.Stats { return a.admin.Stats() },
		Config:   a.configState,
		Version:  a.options.Version,
	}), a.log)
}

func (a *Agent) upstreamStats() []metrics.Route {
	routes := a.running.Load().routes
	stats := make([]metrics.Route, 0, len(routes))
	for _, r := range routes {
		stats = append(stats, metrics.Route{Zone: r.zone, Stats: r.pool.Stats()})
	}
	return stats
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

func (a *Agent) configState() metrics.ConfigState {
	return metrics.ConfigState{
		Generation:  a.reloads.generation.Load(),
		LastOK:      a.reloads.lastError.Load() == nil,
		Succeeded:   a.reloads.good.Load(),
		Failed:      a.reloads.bad.Load(),
		LastSuccess: time.Unix(0, a.reloads.lastSuccess.Load()),
	}
}
