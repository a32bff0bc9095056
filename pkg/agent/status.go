// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// A Status is the agent at a glance, as /status gives it.
type Status struct {
	State     string           `json:"state"` // "ready", or "not ready: " and why
	Version   string           `json:"version"`
	Up        string           `json:"up"` // how long
	Addresses []string         `json:"addresses"`
	Foreign   []ForeignSocket  `json:"foreignSockets,omitempty"` // of other processes at these addresses
	Problems  []Problem        `json:"problems,omitempty"`       // what somebody should see to
	Config    ConfigStatus     `json:"config"`
	Queries   QueryStatus      `json:"queries"`
	Cache     CacheStatus      `json:"cache"`
	Static    *StaticStatus    `json:"static,omitempty"`   // nil: there are neither hosts nor templates
	Snapshot  *SnapshotStatus  `json:"snapshot,omitempty"` // nil: there is no snapshot.folder
	Memory    MemoryStatus     `json:"memory"`
	Upstreams []UpstreamStatus `json:"upstreams"`
	Probes    []ProbeStatus    `json:"probes,omitempty"`
	Handover  *HandoverStatus  `json:"handover,omitempty"` // nil: there is no handover.socket
	Node      *NodeStatus      `json:"node,omitempty"`     // nil: neither link nor interception is managed
	Cluster   *ClusterStatus   `json:"cluster,omitempty"`  // nil: cluster.resolver is none
}

// ConfigStatus says which configuration is in use and what became of the last one.
type ConfigStatus struct {
	SourceStatus
	Generation uint64 `json:"generation"`
	Applied    string `json:"applied"` // RFC 3339
	LastOK     bool   `json:"lastOk"`
	Refused    uint64 `json:"refused"`             // files since the start
	LastError  string `json:"lastError,omitempty"` // why the last one was
}

// QueryStatus sums up what was asked and answered.
type QueryStatus struct {
	Total    uint64            `json:"total"`
	HitRatio string            `json:"hitRatio"` // part answered on the node; "unknown" before the first answer
	BySource map[string]uint64 `json:"bySource"`
	ByRcode  map[string]uint64 `json:"byRcode"`
	Inflight int               `json:"inflight"`
	Waiting  int               `json:"waiting"`
	Shed     uint64            `json:"shed"`
	ShedBy   map[string]uint64 `json:"shedBy,omitempty"` // reason
}

// CacheStatus is how full the cache is.
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

// where is the key of the configuration that names the upstream.
func (u *UpstreamStatus) where() string {
	if u.Zone == fallbackZone {
		return "intercept.fallback"
	}
	return "forward " + u.Zone
}

// Status gathers the status.
func (a *Agent) Status() Status {
	r := a.running.Load()
	s := Status{State: "ready", Version: a.options.Version, Up: time.Since(a.started).Round(time.Second).String()}
	if err := a.notReady(); err != nil {
		s.State = "not ready: " + err.Error()
	}
	for _, addr := range a.Addrs() {
		s.Addresses = append(s.Addresses, addr.String())
	}
	s.Foreign = a.foreign.status()
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
			if server.Requests > 0 { // else cluster.central says it all
				s.Upstreams = append(s.Upstreams, UpstreamStatus{Zone: fallbackZone, ServerStatus: server})
			}
		}
	}
	told := r.cluster.told()
	s.Cluster = clusterStatus(r, &told)
	s.Node = a.node.status()
	s.Probes = probeStatuses(r.probes)
	s.Handover = a.hand.status(time.Now())
	if a.hand.gave() {
		return s // nothing is wrong with what another agent does now
	}
	s.Problems = append(problems(r, &told, &s), a.memoryProblems()...)
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
		s.shed(resolve.Sheds()[reason], n)
	}
	s.HitRatio = hitRatio(&st)
	return s
}

// shed adds what was turned away for a reason.
func (s *QueryStatus) shed(reason string, n uint64) {
	if n == 0 {
		return
	}
	if s.ShedBy == nil {
		s.ShedBy = map[string]uint64{}
	}
	s.Shed += n
	s.ShedBy[reason] = n
}

// hitRatio is the part of the answers that took no question to another server:
// those from the zone, the cache and the configuration, among all that had to be found. An answer past its
// time is no hit: it took a question, in vain. Nor is a SERVFAIL, wherever it was made.
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
