// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/snapshot"
)

// A Status is the response of /status.
type Status struct {
	State       string           `json:"state"` // "ready", or "not ready: " and the reason
	Version     string           `json:"version"`
	NodeName    string           `json:"nodeName"`
	ClusterName string           `json:"clusterName,omitempty"` // admin.clusterName
	Up          float64          `json:"upSeconds"`             // since the start
	Addresses   []string         `json:"addresses"`
	Foreign     []Socket         `json:"foreignSockets,omitempty"` // sockets of other processes at these addresses
	Problems    []Problem        `json:"problems,omitempty"`       // problems for the operator
	Timeline    []TimelineEntry  `json:"timeline,omitempty"`       // problems of the last hour, the latest first
	Config      Config           `json:"config"`
	Queries     Queries          `json:"queries"`
	Cache       Cache            `json:"cache"`
	Static      *localdata.Stats `json:"static,omitempty"`   // nil: there are neither hosts nor templates
	Block       *blocklist.Stats `json:"block,omitempty"`    // nil: there are no block lists
	Etcd        *etcd.Stats      `json:"etcd,omitempty"`     // nil: etcd.endpoints is not set
	Push        *push.Stats      `json:"push,omitempty"`     // nil: push.clients is not set
	Snapshot    *Snapshot        `json:"snapshot,omitempty"` // nil: snapshot.folder is not set
	Memory      Memory           `json:"memory"`
	Upstreams   []Upstream       `json:"upstreams"`
	Probes      []Probe          `json:"probes,omitempty"`
	Handover    *Handover        `json:"handover,omitempty"` // nil: handover.socket is not set
	Kernel      *Kernel          `json:"kernel,omitempty"`   // nil: kernel.hits was off at the start
	Node        *Node            `json:"node,omitempty"`     // nil: neither link nor interception is managed
	Cluster     *Cluster         `json:"cluster,omitempty"`  // nil: cluster.resolver is none
}

// A TimelineEntry is a problem, or something that the operator may want to know, from its begin to its end.
type TimelineEntry struct {
	Reason  Reason         `json:"reason"`
	Where   string         `json:"where"`
	Subject string         `json:"subject,omitempty"`
	What    string         `json:"what"`                    // as last seen
	Since   string         `json:"since"`                   // RFC 3339
	Until   string         `json:"until,omitempty"`         // RFC 3339; empty: it lasts
	Times   int            `json:"again,omitempty"`         // how often it began again within a minute of its end
	Failed  uint64         `json:"failedQueries,omitempty"` // SERVFAIL replies meanwhile, for the names of that place
	Clients []FailedClient `json:"clients,omitempty"`       // the first clients that got these, at most 16
}

// Key returns the key of the problem.
func (e *TimelineEntry) Key() Key { return Key{e.Reason, e.Where, e.Subject} }

// HideClients removes what only clients with the token may see.
func (s *Status) HideClients() {
	for i := range s.Timeline {
		s.Timeline[i].Clients = nil
	}
}

// A FailedClient got SERVFAIL.
type FailedClient struct {
	Client string `json:"client"` // the pod, as namespace/name, else the address
	Name   string `json:"name"`   // the first name, with a final dot
}

// Config describes the configuration in use and the latest reload.
type Config struct {
	Source   string    `json:"source"`             // one of configsource.Kinds
	File     string    `json:"file"`               // path; empty: not in a file
	Object   string    `json:"object,omitempty"`   // the ConfigMap, as namespace/name
	KubeDNS  string    `json:"kubeDNS,omitempty"`  // folder of a kube-dns ConfigMap that is merged into it
	Unread   *Unread   `json:"unread,omitempty"`   // why the source is unreadable now; nil: it is readable
	LastGood *LastGood `json:"lastGood,omitempty"` // nil: not kept

	Generation uint64 `json:"generation"`
	Applied    string `json:"applied"` // RFC 3339
	LastOK     bool   `json:"lastOk"`
	Refused    uint64 `json:"refused"`             // configurations refused since the start
	LastError  string `json:"lastError,omitempty"` // why the latest one was refused

	Standby     bool     `json:"standby,omitempty"`     // the configuration has standby
	NeedRestart []string `json:"needRestart,omitempty"` // changed keys that are not in use yet
}

// Unread says why the source of the configuration is unreadable.
type Unread struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Hint  string `json:"hint"`
}

// LastGood describes the last good configuration.
type LastGood struct {
	Folder    string `json:"folder"`
	InUse     bool   `json:"inUse"`          // this configuration is in use: the source had no good one at the start
	Kept      string `json:"kept,omitempty"` // when it was last saved, RFC 3339; empty: not since the start
	LastError string `json:"lastError,omitempty"`
}

// SetSource describes the source of the configuration.
func (c *Config) SetSource(st configsource.Status) {
	c.Source, c.KubeDNS = st.Kind, st.KubeDNS
	if st.Kind == configsource.KindFile {
		c.File = st.Name
	} else {
		c.Object = st.Name
	}
	if st.Problem != nil {
		c.Unread = &Unread{Where: "config", What: st.Problem.Error(), Hint: st.Problem.Hint}
	}
	if st.LastGood != "" {
		c.LastGood = &LastGood{Folder: st.LastGood, InUse: st.LastGoodInUse, LastError: st.SaveError}
		if !st.Saved.IsZero() {
			c.LastGood.Kept = st.Saved.UTC().Format(time.RFC3339)
		}
	}
}

// Queries summarizes queries and answers.
type Queries struct {
	Total    uint64            `json:"total"`
	HitRatio *float64          `json:"hitRatio,omitempty"` // share of answers that needed no upstream, 0 to 1; nil: there was no answer
	BySource map[string]uint64 `json:"bySource"`
	ByRcode  map[string]uint64 `json:"byRcode"`
	Inflight int               `json:"inflight"`
	Waiting  int               `json:"waiting"`
	Shed     uint64            `json:"shed"`
	ShedBy   map[string]uint64 `json:"shedBy,omitempty"` // number by reason
}

// QueriesOf summarizes the resolver's counters.
func QueriesOf(st resolve.Stats) Queries {
	s := Queries{Total: Total(&st), BySource: map[string]uint64{}, ByRcode: map[string]uint64{}, Inflight: st.Inflight, Waiting: st.Waiting}
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
func (s *Queries) addShed(reason string, n uint64) {
	if n == 0 {
		return
	}
	if s.ShedBy == nil {
		s.ShedBy = map[string]uint64{}
	}
	s.Shed += n
	s.ShedBy[reason] = n
}

// Total returns the number of queries.
func Total(st *resolve.Stats) (n uint64) {
	for _, families := range st.Queries {
		for _, types := range families {
			for _, count := range types {
				n += count
			}
		}
	}
	return n
}

// Hits returns the number of hits, which are answers that needed no upstream, and that of all answers. Hits are from the zone,
// the cache, the configuration, etcd, or their copies in the kernel. A stale answer is no hit, because a query to an upstream
// failed before it. A SERVFAIL is no hit either.
func Hits(st *resolve.Stats) (hits, all uint64) {
	for _, source := range [...]resolve.Source{
		resolve.SourceZone, resolve.SourceCache, resolve.SourceStatic, resolve.SourceEtcd, resolve.SourceBlock, resolve.SourceKernel,
		resolve.SourceStale, resolve.SourceUpstream, resolve.SourceFailure,
	} {
		here := source != resolve.SourceStale && source != resolve.SourceUpstream && source != resolve.SourceFailure
		for rcode, n := range st.Responses[source] {
			all += n
			if here && resolve.Rcodes()[rcode] != "SERVFAIL" {
				hits += n
			}
		}
	}
	return hits, all
}

// hitRatio returns the share of hits, from 0 to 1; nil: there was no answer.
func hitRatio(st *resolve.Stats) *float64 {
	hits, all := Hits(st)
	if all == 0 {
		return nil
	}
	return new(math.Round(1000*float64(hits)/float64(all)) / 1000)
}

// Cache is the fill state of the cache.
type Cache struct {
	Entries   int64  `json:"entries"`
	Bytes     int64  `json:"bytes"`
	Capacity  int64  `json:"capacityBytes"`
	Evictions uint64 `json:"evictions"`

	Keep []KeepAnswer `json:"keep,omitempty"` // two for each name of cache.keep
}

// A KeepAnswer is what the agent has for a name of cache.keep.
type KeepAnswer struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	State string `json:"state"`                 // see [refresh.Answer]
	Age   int64  `json:"ageSeconds,omitempty"`  // since upstream gave the answer
	Left  int64  `json:"leftSeconds,omitempty"` // until it expires; negative: since then

	lost bool // asked for more than once, and there is no answer that survives an outage of upstreams
}

// CacheOf returns the fill state of a cache, and its answers to the names of cache.keep.
func CacheOf(st cache.Stats, keep []refresh.Answer) Cache {
	c := Cache{Entries: st.Entries, Bytes: st.Bytes + st.Fixed, Capacity: st.Capacity, Evictions: st.Evictions}
	for _, a := range keep {
		c.Keep = append(c.Keep, KeepAnswer{
			Name: a.Name, Type: TypeName(a.Type), State: a.State, Age: int64(a.Age / time.Second), Left: secondsLeft(a.Left), lost: !a.Held && a.Asked > 1,
		})
	}
	return c
}

// Memory is the memory that the agent may use, in bytes, as in /status and the metrics.
type Memory struct {
	Cgroup   int64 `json:"cgroupBytes,omitempty"`   // the container's limit; 0: none
	GoLimit  int64 `json:"goLimitBytes,omitempty"`  // the Go runtime's limit; 0: none
	GoUsed   int64 `json:"goUsedBytes"`             // used by the Go runtime
	Cache    int64 `json:"cacheBytes"`              // cache.size
	Snapshot int64 `json:"snapshotBytes,omitempty"` // used by snapshots if their folder is in memory
	// By names the origin of GoLimit: "cgroup", "GOMEMLIMIT" (the environment), or "no limit".
	By string `json:"by"`
	// Inflight and Waiting are the bounds in use: the configured ones if the memory allows.
	Inflight int `json:"inflight"`
	Waiting  int `json:"waiting"`
}

// NoLimit is the value of [Memory.By] without a limit.
const NoLimit = "no limit"

// Snapshot describes the snapshots since the start.
type Snapshot struct {
	Loaded    string   `json:"loaded"`                    // outcome at the start: an Outcome constant of snapshot
	Refused   string   `json:"refused,omitempty"`         // why it was refused
	Age       *float64 `json:"ageSeconds,omitempty"`      // age of the loaded snapshot at the start; nil: none was loaded
	Answers   int      `json:"answers"`                   // answers restored
	Objects   int      `json:"objects"`                   // cluster objects restored
	Saved     *float64 `json:"savedAgoSeconds,omitempty"` // time since the last save; nil: there was none
	Bytes     int64    `json:"bytes"`                     // size of the last saved snapshot
	Failed    uint64   `json:"failed"`                    // failed saves since the start
	LastError string   `json:"lastError,omitempty"`
}

// SnapshotOf returns nil if there are no snapshots.
func SnapshotOf(st *snapshot.Stats, now time.Time) *Snapshot {
	if st == nil {
		return nil
	}
	s := &Snapshot{
		Loaded: cmp.Or(st.Loaded.Outcome, snapshot.OutcomeNone), Refused: st.Loaded.Reason,
		Answers: st.Loaded.Entries, Objects: st.Loaded.Objects,
		Bytes: st.Bytes, Failed: st.Failed, LastError: st.LastError,
	}
	if s.Loaded == snapshot.OutcomeLoaded {
		s.Age = Seconds(st.Loaded.Age)
	}
	if !st.LastSaved.IsZero() {
		s.Saved = Seconds(now.Sub(st.LastSaved))
	}
	return s
}

// Handover describes the takeover at the start and the handover to a successor.
type Handover struct {
	Socket    string   `json:"socket"`
	Listening bool     `json:"listening"`                 // a successor can request the sockets
	Taken     string   `json:"taken"`                     // outcome at the start: an Outcome constant of handover
	From      string   `json:"from,omitempty"`            // token of the predecessor
	Why       string   `json:"why,omitempty"`             // why the predecessor refused
	WaitsFor  string   `json:"waitsFor,omitempty"`        // what the start waits for
	To        string   `json:"to,omitempty"`              // token of the successor
	Given     *float64 `json:"givenAgoSeconds,omitempty"` // time since the handover; nil: there was none
	Asked     uint64   `json:"asked"`                     // agents that requested the sockets
	Abandoned uint64   `json:"abandoned"`                 // agents that received the sockets and ended before they took over
	LastError string   `json:"lastError,omitempty"`
}

// HandoverOf describes the handovers over the unix socket at path. It returns nil if stats is nil.
func HandoverOf(path string, stats *handover.Stats, now time.Time) *Handover {
	if stats == nil {
		return nil
	}
	s := &Handover{
		Socket: path, Listening: stats.Listening, Taken: cmp.Or(stats.Taken, handover.OutcomeNone), From: stats.From, Why: stats.Why,
		WaitsFor: stats.WaitsFor, To: stats.To, Asked: stats.Asked, Abandoned: stats.Abandoned, LastError: stats.LastError,
	}
	if stats.Given {
		s.Given = Seconds(now.Sub(stats.GivenAt))
	}
	return s
}

// Probe is one configured probe.
type Probe struct {
	Label     string            `json:"label"`
	Server    string            `json:"server"`
	Question  string            `json:"question"`
	State     string            `json:"state"`                    // "good", "bad", or "unknown" before the first result
	Latency   *float64          `json:"latencySeconds,omitempty"` // response time of the latest good answer; nil: there was none
	Failures  map[string]uint64 `json:"failures,omitempty"`       // number by healthcheck.Reason
	Row       uint64            `json:"inARow,omitempty"`         // failures since the latest good answer
	LastError string            `json:"lastError,omitempty"`
}

// ProbeOf describes a probe.
func ProbeOf(st *healthcheck.Stats) Probe {
	s := Probe{
		Label: st.Label, Server: st.Server, Question: st.Question, State: "unknown", Latency: roundTrip(st.Last),
		Failures: counted[healthcheck.Reason](st.Failures[:]), Row: st.Row, LastError: st.LastError,
	}
	if st.Known {
		s.State = map[bool]string{true: "good", false: "bad"}[st.Up]
	}
	return s
}

// counted returns the counts above 0 by the text of their index; nil: there are none.
func counted[Index interface {
	~uint8
	String() string
}](counts []uint64) map[string]uint64 {
	var list map[string]uint64
	for i, n := range counts {
		if n == 0 {
			continue
		}
		if list == nil {
			list = map[string]uint64{}
		}
		list[Index(i).String()] = n
	}
	return list
}

// Node is the agent's state in the kernel.
type Node struct {
	Token     string       `json:"token"`               // the agent's owner token in the kernel
	Link      *netif.Stats `json:"link,omitempty"`      // nil: interface.manage is false
	Intercept *Intercept   `json:"intercept,omitempty"` // nil: intercept.manage is false
}

// Intercept is how the node's queries reach the agent.
type Intercept struct {
	Mode      string                 `json:"mode"`
	Backend   string                 `json:"backend"`
	DataPlane string                 `json:"dataPlane"` // Service implementation of the node; "none": not detected
	Note      string                 `json:"note,omitempty"`
	NotLocal  []netip.Addr           `json:"notLocal,omitempty"` // addresses that Cilium does not take for the node's, as far as its map or its settings say
	Lost      string                 `json:"lost,omitempty"`     // why no query of a pod arrives: a clause
	Leases    []intercept.LeaseStats `json:"leases"`
	Fallback  []netip.AddrPort       `json:"fallback"`               // where queries go while no lease is held
	From      string                 `json:"fallbackFrom,omitempty"` // intercept.fallback; empty where the data plane is the fallback
	Renewals  uint64                 `json:"renewals"`
	Repairs   uint64                 `json:"repairs"` // times that the rules had to be corrected
	LastError string                 `json:"lastError,omitempty"`
	StoodDown bool                   `json:"stoodDown,omitempty"` // the agent stopped managing the rules, because a newer agent owns them
	NewOwner  string                 `json:"newOwner,omitempty"`
	Standby   bool                   `json:"standby,omitempty"`  // the leases are released, because the configuration has standby
	Waiting   string                 `json:"waitsFor,omitempty"` // what must be known before the rules can be made
}

// A Socket is a socket of another process that is bound to the agent's address and port.
type Socket struct {
	Socket  string `json:"socket"`  // such as udp://169.254.20.10:53
	Process string `json:"process"` // or its user, if the process is not visible
	Inode   uint64 `json:"inode"`
}
