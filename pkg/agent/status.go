// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// A Status is the response of /status.
type Status struct {
	State     string           `json:"state"` // "ready", or "not ready: " and the reason
	Version   string           `json:"version"`
	Up        string           `json:"up"` // time since the start
	Addresses []string         `json:"addresses"`
	Foreign   []ForeignSocket  `json:"foreignSockets,omitempty"` // of other processes at these addresses
	Problems  []Problem        `json:"problems,omitempty"`       // problems for the operator
	Config    ConfigStatus     `json:"config"`
	Queries   QueryStatus      `json:"queries"`
	Cache     CacheStatus      `json:"cache"`
	Static    *StaticStatus    `json:"static,omitempty"`   // nil: there are neither hosts nor templates
	Snapshot  *SnapshotStatus  `json:"snapshot,omitempty"` // nil: snapshot.folder is not set
	Memory    MemoryStatus     `json:"memory"`
	Upstreams []UpstreamStatus `json:"upstreams"`
	Probes    []ProbeStatus    `json:"probes,omitempty"`
	Handover  *HandoverStatus  `json:"handover,omitempty"` // nil: handover.socket is not set
	Node      *NodeStatus      `json:"node,omitempty"`     // nil: neither link nor interception is managed
	Cluster   *ClusterStatus   `json:"cluster,omitempty"`  // nil: cluster.resolver is none
}

// ConfigStatus describes the configuration in use and the latest reload.
type ConfigStatus struct {
	SourceStatus
	Generation uint64 `json:"generation"`
	Applied    string `json:"applied"` // RFC 3339
	LastOK     bool   `json:"lastOk"`
	Refused    uint64 `json:"refused"`             // configurations refused since the start
	LastError  string `json:"lastError,omitempty"` // why the latest one was refused
}

// QueryStatus summarizes queries and answers.
type QueryStatus struct {
	Total    uint64            `json:"total"`
	HitRatio string            `json:"hitRatio"` // answers given without an upstream; "unknown" before the first answer
	BySource map[string]uint64 `json:"bySource"`
	ByRcode  map[string]uint64 `json:"byRcode"`
	Inflight int               `json:"inflight"`
	Waiting  int               `json:"waiting"`
	Shed     uint64            `json:"shed"`
	ShedBy   map[string]uint64 `json:"shedBy,omitempty"` // by reason
}

// CacheStatus is the fill state of the cache.
type CacheStatus struct {
	Entries   int64  `json:"entries"`
	Bytes     int64  `json:"bytes"`
	Capacity  int64  `json:"capacity"`
	Evictions uint64 `json:"evictions"`
}

// UpstreamStatus is one upstream of a route.
type UpstreamStatus struct {
	Zone string `json:"zone"`
	ServerStatus
}

// where returns the configuration key that names the upstream.
func (u *UpstreamStatus) where() string {
	if u.Zone == fallbackZone {
		return "intercept.fallback"
	}
	return "forward " + u.Zone
}

// Status returns the agent's status.
func (a *Agent) Status() Status {
	r := a.running.Load()
	s := Status{State: "ready", Version: a.options.Version, Up: time.Since(a.started).Round(time.Second).String()}
	if err := a.notReady(); err != nil {
		s.State = "not ready: " + err.Error()
	}
	for _, addr := range a.Addrs() {
		s.Addresses = append(s.Addresses, addr.String())
	}
	s.Foreign = a.foreignSockets.status()
	s.Config = a.configStatus()
	s.Queries = queryStatus(a.resolver.Stats())
	s.Cache = cacheStatus(r.cache.Stats())
	s.Static = staticStatus(r.staticStats())
	s.Snapshot = snapshotStatus(a.snapshotStats(), time.Now())
	s.Memory = a.memoryStatus()
	for _, route := range r.routes {
		for _, server := range serverStatuses(route.pool) {
			s.Upstreams = append(s.Upstreams, UpstreamStatus{Zone: route.Zone, ServerStatus: server})
		}
	}
	if r.fallback != nil {
		for _, server := range serverStatuses(r.fallback.Pool) {
			if server.Requests > 0 { // else it is listed under cluster.central
				s.Upstreams = append(s.Upstreams, UpstreamStatus{Zone: fallbackZone, ServerStatus: server})
			}
		}
	}
	clusterStats := r.cluster.sourceStats()
	s.Cluster = clusterStatus(r, &clusterStats)
	s.Node = a.node.status()
	s.Probes = probeStatuses(r.probes)
	s.Handover = a.handover.status(time.Now())
	if a.handover.hasHandedOver() {
		return s // the successor's problems are not this agent's
	}
	s.Problems = append(problems(r, &clusterStats, &s), a.memoryProblems()...)
	s.Problems = append(s.Problems, foreignProblems(s.Foreign)...)
	s.Problems = append(s.Problems, probeProblems(s.Probes)...)
	s.Problems = append(s.Problems, handoverProblems(s.Handover)...)
	return s
}

func (a *Agent) configStatus() ConfigStatus {
	s := ConfigStatus{
		SourceStatus: a.sourceStatus(),

		Generation: a.reloads.generation.Load(),
		Applied:    time.Unix(0, a.reloads.lastSuccess.Load()).UTC().Format(time.RFC3339),
		Refused:    a.reloads.bad.Load(),
		LastOK:     true,
	}
	if why := a.reloads.lastError.Load(); why != nil {
		s.LastOK, s.LastError = false, *why
	}
	return s
}

func queryStatus(st resolve.Stats) QueryStatus {
	s := QueryStatus{BySource: map[string]uint64{}, ByRcode: map[string]uint64{}, Inflight: st.Inflight, Waiting: st.Waiting}
	for _, families := range st.Queries {
		for _, types := range families {
			for _, n := range types {
				s.Total += n
			}
		}
	}
	for source, rcodes := range st.Responses {
		for rcode, n := range rcodes {
			if n > 0 {
				s.BySource[resolve.Sources()[source]] += n
				s.ByRcode[resolve.Rcodes()[rcode]] += n
			}
		}
	}
	for reason, n := range st.Shed {
		s.addShed(resolve.Sheds()[reason], n)
	}
	s.HitRatio = hitRatio(&st)
	return s
}

// addShed adds n queries shed for a reason.
func (s *QueryStatus) addShed(reason string, n uint64) {
	if n == 0 {
		return
	}
	if s.ShedBy == nil {
		s.ShedBy = map[string]uint64{}
	}
	s.Shed += n
	s.ShedBy[reason] = n
}

// hitRatio returns the part of the answers that needed no upstream: those from the zone, the cache, and the
// configuration. A stale answer is no hit, because it took a failed query to an upstream. A SERVFAIL is no
// hit either.
func hitRatio(st *resolve.Stats) string {
	var hits, all uint64
	for _, source := range []resolve.Source{
		resolve.SourceZone, resolve.SourceCache, resolve.SourceStatic, resolve.SourceStale, resolve.SourceUpstream, resolve.SourceFailure,
	} {
		here := source <= resolve.SourceCache || source == resolve.SourceStatic
		for rcode, n := range st.Responses[source] {
			all += n
			if here && resolve.Rcodes()[rcode] != "SERVFAIL" {
				hits += n
			}
		}
	}
	if all == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(hits)/float64(all))
}

func cacheStatus(st cache.Stats) CacheStatus {
	return CacheStatus{Entries: st.Entries, Bytes: st.Bytes + st.Fixed, Capacity: st.Capacity, Evictions: st.Evictions}
}

// ServerStatus is one upstream server as this agent sees it.
type ServerStatus struct {
	Address     string            `json:"address"`
	Name        string            `json:"name,omitempty"`       // name in its certificate; empty: its address
	State       string            `json:"state"`                // an upstream.State
	Last        bool              `json:"lastResort,omitempty"` // asked only while no other server is usable
	Far         bool              `json:"far,omitempty"`        // in another topology zone
	Requests    uint64            `json:"requests"`
	Outstanding int               `json:"outstanding,omitempty"`
	Failures    map[string]uint64 `json:"failures,omitempty"`
	Latency     string            `json:"latency"`        // smoothed; "unknown" before the first answer
	Late        *LateStatus       `json:"late,omitempty"` // nil: no data yet
	Probes      uint64            `json:"probes,omitempty"`
	Open        *OpenStatus       `json:"open,omitempty"`        // nil: nothing was ever opened
	Limitations []string          `json:"limitations,omitempty"` // features that the server lacks
	LastError   string            `json:"lastError,omitempty"`   // why the latest connection ended without an answer
}

// LateStatus describes hedging: a second server is asked when the first is slow.
type LateStatus struct {
	After  string `json:"after"` // the delay before a hedge; "unknown" before there are enough answers
	Hedged uint64 `json:"hedged"`
	Won    uint64 `json:"won"`
}

// OpenStatus counts the sockets and connections to a server.
type OpenStatus struct {
	Sockets     int    `json:"sockets"` // UDP
	Connections int    `json:"connections"`
	Opened      uint64 `json:"opened"`
	Resumed     uint64 `json:"resumed"` // TLS resumptions among Opened
}

func serverStatuses(pool *upstream.Pool) []ServerStatus {
	stats := pool.Stats()
	list := make([]ServerStatus, 0, len(stats.Servers))
	for i := range stats.Servers {
		list = append(list, serverStatus(&stats.Servers[i]))
	}
	return list
}

func serverStatus(server *upstream.ServerStats) ServerStatus {
	s := ServerStatus{
		Address: server.Network + "://" + server.Addr.String(), Name: server.Name, State: server.State().String(),
		Last: server.LastResort, Far: server.Far,
		Requests: server.Requests, Outstanding: server.Outstanding, Latency: roundTrip(server.SRTT),
		Probes: server.Probes, Limitations: server.Limitations, LastError: server.LastError,
	}
	if server.P95 > 0 || server.Hedged > 0 || server.Won > 0 {
		s.Late = &LateStatus{After: roundTrip(server.P95), Hedged: server.Hedged, Won: server.Won}
	}
	if server.Sockets > 0 || server.Open > 0 || server.Opened > 0 {
		s.Open = &OpenStatus{Sockets: server.Sockets, Connections: server.Open, Opened: server.Opened, Resumed: server.Resumed}
	}
	for cause, n := range server.Failures {
		if n == 0 {
			continue
		}
		if s.Failures == nil {
			s.Failures = map[string]uint64{}
		}
		s.Failures[upstream.Cause(cause).String()] = n
	}
	return s
}

// roundTrip formats a round-trip time, "unknown" for 0.
func roundTrip(d time.Duration) string {
	if d <= 0 {
		return "unknown"
	}
	return d.Round(10 * time.Microsecond).String()
}

// serverProblems reports the servers that cannot be used now, and why. A failing server may recover by
// itself, so it is reported only if connections to it fail.
func serverProblems(where string, servers []ServerStatus) (list []Problem) {
	for i := range servers {
		s := &servers[i]
		switch {
		case s.State == "looped":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is left out: it forwards queries back to this agent", s.Address),
				Hint: "check where it forwards to; the agent retries by itself",
			})
		case s.State != "good" && s.LastError != "":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is %s: %s", s.Address, s.State, s.LastError),
				Hint: "check that it is reachable and that its certificate matches the configured name; the agent retries by itself",
			})
		case s.State == "down":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is down: its latest queries timed out", s.Address),
				Hint: "check that it runs and is reachable from this pod; the agent retries by itself",
			})
		}
	}
	return list
}
