// SPDX-License-Identifier: Apache-2.0

package top

// A Page is what the pods of a node have asked: the response of /top.
type Page struct {
	Stale   bool   `json:"stale"`           // the pods were not confirmed for cluster.staleAfter
	Pods    []Row  `json:"pods"`            // in order of namespace and name
	Unknown Counts `json:"unknown"`         // counts of clients without a pod
	Names   []Name `json:"names,omitempty"` // at most 2,048, those with the most queries first; only with by=name
}

// A Name is one name, with a final dot.
type Name struct {
	Name string `json:"name"`
	Counts
}

// A Row is one pod.
type Row struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Workload  string `json:"workload"` // its controller, such as Deployment/web; empty: none
	Counts
}

// Counts are counts of queries since the agent knows the pod, or counts the name.
type Counts struct {
	Queries  uint64  `json:"queries"`
	Upstream uint64  `json:"upstream"` // answered by an upstream, not from memory
	NXDomain uint64  `json:"nxdomain"`
	Search   uint64  `json:"search"`        // NXDOMAIN of names in the cluster domain: most are a name with a search suffix
	Failed   uint64  `json:"failed"`        // SERVFAIL
	Shed     uint64  `json:"shed"`          // a limit was reached
	Bytes    uint64  `json:"bytes"`         // bytes of the replies
	Waited   float64 `json:"waitedSeconds"` // time until the replies, which is 0 for those from memory
}

// Recent is what clients have asked in the last ten minutes: the response of /top?by=recent. Each list has the most queries first.
// Hits are sampled while there are many.
type Recent struct {
	Stale   bool        `json:"stale,omitempty"` // the pods were not confirmed for cluster.staleAfter
	Clients []RecentRow `json:"clients"`
	Names   []RecentRow `json:"names"`
	Pairs   []RecentRow `json:"pairs"` // a client's queries for a name
	Slow    []SlowReply `json:"slow"`  // the slowest reply of each minute of the last hour, the slowest first
}

// A SlowReply is the slowest reply of a minute.
type SlowReply struct {
	Time   string  `json:"time"` // RFC 3339
	Took   float64 `json:"tookSeconds"`
	Client string  `json:"client"` // as in RecentRow
	Name   string  `json:"name"`
	Failed bool    `json:"failed,omitempty"` // SERVFAIL
}

// A RecentRow is a client, a name, or both.
type RecentRow struct {
	Client   string  `json:"client,omitempty"`   // its pod as namespace/name, else its address
	Workload string  `json:"workload,omitempty"` // the pod's controller, such as Deployment/web
	Name     string  `json:"name,omitempty"`     // with a final dot
	Queries  uint32  `json:"queries"`
	Upstream uint32  `json:"upstream"` // answered by an upstream, not from memory
	Search   uint32  `json:"search"`   // NXDOMAIN of names in the cluster domain: most are a name with a search suffix
	Failed   uint32  `json:"failed"`   // SERVFAIL
	Slowest  float64 `json:"slowestSeconds"`
}
