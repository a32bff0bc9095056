// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/metrics"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/watch"
)

// Status returns the agent's status, with the timeline.
func (a *Agent) Status() status.Status {
	s := a.status()
	a.timeline.Describe(&s)
	return s
}

// watchProblems passes the problems and the failed queries to the timeline, until ctx ends. A successor observes its own.
func (a *Agent) watchProblems(ctx context.Context) {
	tick := time.NewTicker(timeline.Interval)
	defer tick.Stop()
	panicked := panicProblem{seen: panics.Total()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.handover.handedOver():
			return
		case now := <-tick.C:
			s := a.status()
			a.timeline.Observe(ctx, now, slices.Concat(s.Problems, status.Notices(&s), panicked.update(panics.Total(), now)), failuresOf(a.running.Load(), a.resolver.TakeFailures()))
		}
	}
}

// panicShown is how long a panic counts as a problem.
const panicShown = time.Minute

// A panicProblem is the problem that panics were recovered lately.
type panicProblem struct {
	seen uint64    // panics so far
	last time.Time // when that changed
}

// update takes the number of panics so far, and returns the problem, if there is one.
func (p *panicProblem) update(total uint64, now time.Time) []status.Problem {
	if total != p.seen {
		p.seen, p.last = total, now
	}
	if p.last.IsZero() || now.Sub(p.last) > panicShown {
		return nil
	}
	return []status.Problem{{
		Reason: status.Panicked, Where: "node-cache", What: fmt.Sprintf("%d panics recovered since the start", total),
		Hint: "each failed one unit of work, such as a query; report it with the stack trace in the log",
	}}
}

// failuresOf returns the failed queries under the keys of r that configure their upstreams.
func failuresOf(r *generation, failed []resolve.RouteFailures) (list []timeline.Failures) {
	for _, f := range failed {
		where := status.Forward(f.Zone)
		if r.cluster.Central != nil && r.route(f.Zone) == nil {
			where = status.CentralKey
		}
		clients := make([]status.FailedClient, 0, len(f.Clients))
		for _, c := range f.Clients {
			clients = append(clients, status.FailedClient{Client: cmp.Or(c.Pod, c.Addr.String()), Name: c.Name})
		}
		list = append(list, timeline.Failures{Where: where, Queries: f.Queries, Clients: clients})
	}
	return list
}

// status returns the agent's status without the timeline.
func (a *Agent) status() status.Status {
	r, now := a.running.Load(), time.Now()
	watched := cmp.Or(r.cluster.SourceStats(), new(watch.Stats))
	s := status.Status{
		State: "ready", Version: a.options.Version, NodeName: nodeName(), ClusterName: r.config.Admin.ClusterName, Up: *status.Seconds(now.Sub(a.started).Truncate(time.Second)),
		Foreign:  a.servers.foreign.Status(),
		Config:   a.config.status(r.needRestart),
		Queries:  status.QueriesOf(a.resolver.Stats()),
		Cache:    status.CacheOf(r.cache.Stats(), r.keep.Answers(now)),
		Static:   r.localDataStats(),
		Block:    r.blockStats(now),
		Etcd:     r.etcdStats(),
		Push:     pushStats(a.push, r),
		Snapshot: status.SnapshotOf(a.snapshots.statsFor(r), now),
		Memory:   a.memory.Status(),
		Cluster:  r.cluster.Status(&r.config, watched, now),
		Node:     a.node.Status(),
		Handover: status.HandoverOf(a.handover.path, a.handover.stats(), now),
		Kernel:   a.kernel.status(),
	}
	s.Config.Standby = r.config.Standby
	if err := a.notReady(); err != nil {
		s.State = "not ready: " + err.Error()
	}
	for _, addr := range a.Addrs() {
		s.Addresses = append(s.Addresses, addr.String())
	}
	var empty []string
	for _, route := range r.routes {
		servers := status.ServersOf(route.pool.Stats())
		for _, server := range servers {
			s.Upstreams = append(s.Upstreams, status.Upstream{Zone: route.Zone, Server: server})
		}
		if route.HasUpstream() && route.pool.Empty() { // its configured upstream, such as a resolv.conf, has no server
			empty = append(empty, route.Zone)
		}
	}
	if r.fallback != nil {
		for _, server := range status.ServersOf(r.fallback.Stats()) {
			if server.Requests > 0 { // else it is listed under cluster.central
				s.Upstreams = append(s.Upstreams, status.Upstream{Zone: status.FallbackZone, Server: server})
			}
		}
	}
	for _, p := range r.probes {
		st := p.Stats()
		s.Probes = append(s.Probes, status.ProbeOf(&st))
	}
	if a.handover.hasHandedOver() {
		return s // the successor's problems are not this agent's
	}
	s.Problems = status.Problems(&s, watched, &r.config.Cluster, empty, append(a.gate.problems(), a.memory.Problems()...))
	return s
}

// sample reads all counters for one scrape.
func (a *Agent) sample() metrics.Sample {
	r := a.running.Load()
	s := metrics.Sample{
		Version:   a.options.Version,
		Commit:    a.options.Commit,
		Node:      nodeName(),
		Cluster:   r.config.Admin.ClusterName,
		NotReady:  a.notReady(),
		Problems:  a.timeline.Current(),
		Resolve:   a.resolver.Stats(),
		Cache:     r.cache.Stats(),
		Keep:      r.keep.Answers(time.Now()),
		Static:    r.localDataStats(),
		Block:     r.blockStats(time.Now()),
		Etcd:      r.etcdStats(),
		Push:      pushStats(a.push, r),
		Snapshot:  a.snapshots.statsFor(r),
		Memory:    a.memory.Status(),
		Routes:    routeStats(r),
		Link:      a.node.LinkStats(),
		Intercept: a.node.InterceptStats(),
		Mode:      r.config.Intercept.Mode,
		Foreign:   len(a.servers.foreign.Sockets()),
		Config: metrics.Config{
			Generation:  a.config.generation.Load(),
			LastOK:      a.config.lastError.Load() == nil,
			NeedRestart: len(r.needRestart) > 0,
			Succeeded:   a.config.good.Load(),
			Failed:      a.config.bad.Load(),
			LastSuccess: time.Unix(0, a.config.lastSuccess.Load()),
			Panics:      a.builder.panics.Load(),
		},
		Source:    configsource.Status{Kind: configsource.KindNone, Reachable: true},
		Handover:  a.handover.stats(),
		Zone:      r.cluster.Held(),
		Watch:     r.cluster.SourceStats(),
		Discovery: r.cluster.Discovery.Stats(),
		Subscribe: r.cluster.PushStats(),
		Kernel:    a.kernel.status(),
		Admin:     a.servers.admin.Stats(),
		Reviews:   a.servers.tls.stats(),
	}
	if index := r.cluster.Pods; index != nil {
		s.Pods = index.Namespaces()
	}
	if r.config.Log.Dnstap != "" {
		sent := a.builder.tap.Stats()
		s.Dnstap = &sent
	}
	if c := r.cluster; c.Notifier != nil {
		sent := c.Notifier.Stats()
		s.Notify = &sent
	}
	for _, p := range r.probes {
		s.Probes = append(s.Probes, p.Stats())
	}
	for i := range a.servers.udp {
		s.UDP, s.TCP = append(s.UDP, a.servers.udp[i].Stats()), append(s.TCP, a.servers.tcp[i].Stats())
	}
	if a.config.source != nil {
		s.Source = a.config.source.Status()
	}
	return s
}

// routeStats returns the upstreams of all routes, of the central resolver, and of the fallback.
func routeStats(r *generation) []metrics.Route {
	stats := make([]metrics.Route, 0, len(r.routes)+2)
	for _, route := range r.routes {
		stats = append(stats, metrics.Route{Zone: route.Zone, Stats: route.pool.Stats()})
	}
	if c := r.cluster; c.Central != nil { // no configured route has the cluster domain as its zone
		stats = append(stats, metrics.Route{
			Zone: r.config.ClusterDomain, Service: r.config.Cluster.Central.Endpoints().String(), Stats: c.Central.Stats(),
		})
	}
	if r.fallback != nil {
		stats = append(stats, metrics.Route{Zone: status.FallbackZone, Service: r.fallback.service, Stats: r.fallback.Stats()})
	}
	return stats
}

// The kubelet's probes call the functions below. They must not fail under load: none blocks, takes a lock of
// the query path, or sends a query.

// hangThreshold is how long one batch of queries takes when its reader counts as hung. A batch normally takes a millisecond; a
// reader that waits a minute for a CPU is on a host with other problems.
const hangThreshold = time.Minute

// notReady returns why the agent must not receive queries, nil if it may.
func (a *Agent) notReady() error {
	if err := a.handover.notReady(); err != nil {
		return err
	}
	select {
	case <-a.ready:
	default:
		return errors.New("starting")
	}
	if err := a.gate.notReady(); err != nil {
		return err
	}
	if err := a.running.Load().cluster.NotReady(time.Now()); err != nil {
		return err
	}
	return a.node.NotReady()
}

// notAlive returns why a restart is needed, nil if it is not.
func (a *Agent) notAlive() error { return hangError(a.servers.longestBatch()) }

func hangError(busy time.Duration) error {
	if busy < hangThreshold {
		return nil
	}
	return fmt.Errorf("a reader hangs: it has spent %s on one batch of queries", busy.Round(time.Second))
}

// checks lists the results of the probes for /healthcheck/.
func (a *Agent) checks() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, p := range a.running.Load().probes {
			if !yield(p.Label, p.Result()) {
				return
			}
		}
	}
}

// etcdStats returns the stats of etcd; nil: it is not used.
func (r *generation) etcdStats() *etcd.Stats {
	if r.etcd == nil {
		return nil
	}
	return new(r.etcd.Stats())
}
