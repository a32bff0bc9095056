// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"

	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/watch"
)

// Cluster is the agent's knowledge of the cluster.
type Cluster struct {
	Domain     string          `json:"domain"`
	Domains    []string        `json:"domains,omitempty"`    // other domains with the same names
	ClusterSet string          `json:"clusterSet,omitempty"` // domain of multi-cluster names; empty: none are served
	External   []string        `json:"externalZones,omitempty"`
	Federated  []Federation    `json:"federations,omitempty"`
	Resolver   string          `json:"resolver"` // cluster.resolver
	Source     string          `json:"source"`   // where the cluster data comes from; empty: not needed
	InSync     bool            `json:"inSync"`   // the source has delivered a full list at least once
	WaitsFor   string          `json:"waitsFor,omitempty"`
	NodeZone   string          `json:"nodeZone"` // topology zone whose endpoints are preferred; empty: none
	Serial     uint32          `json:"serial"`   // serial of the zone's SOA record
	IndexBytes int64           `json:"indexBytes"`
	Requests   uint64          `json:"requests"` // requests to the API server
	Kinds      []Kind          `json:"kinds"`    // kinds watched
	Manifests  []watch.Problem `json:"manifestProblems,omitempty"`
	Central    *Central        `json:"central,omitempty"`  // nil: there is no central resolver
	NodePods   *NodePods       `json:"nodePods,omitempty"` // nil: they are not watched

	Secondaries []notify.Server `json:"secondaries,omitempty"`
}

// Federation is a federation of clusters, as kube-dns has them.
type Federation struct {
	Name   string `json:"name"`
	Domain string `json:"domain"`
	Suffix string `json:"suffix,omitempty"` // end of its aliases; empty: the topology of this node is not known
}

// NodePods are the pods of the node, by which queries are named.
type NodePods struct {
	Source string   `json:"source,omitempty"` // kubelet or API server; empty: the kubelet has sent no list yet
	Synced bool     `json:"synced"`
	Age    *float64 `json:"ageSeconds,omitempty"` // time since the pods were last confirmed fresh; nil: there was no list
	pods.Stats
	LastError string `json:"lastError,omitempty"`
}

// NodePodsOf describes the pods of the node, as watched and as held.
func NodePodsOf(stats *watch.Stats, held pods.Stats) *NodePods {
	own := stats.OwnPods
	s := &NodePods{Source: stats.PodSource, Synced: own.Synced, Stats: held, LastError: own.LastError}
	if own.Synced {
		s.Age = Seconds(own.Age)
	}
	return s
}

// Kind is the state of one kind of objects.
type Kind struct {
	Kind   string   `json:"kind"`
	Synced bool     `json:"synced"`
	Age    *float64 `json:"ageSeconds,omitempty"` // time since the objects were last confirmed fresh; nil: there was no list
	zone.KindStats
	Invalid   int    `json:"invalid,omitempty"` // objects that are not served in full
	Example   string `json:"firstInvalid,omitempty"`
	Events    uint64 `json:"events"`
	Restarts  uint64 `json:"restarts"`
	Failures  uint64 `json:"failures"`
	LastError string `json:"lastError,omitempty"` // empty once the objects are confirmed fresh again
	Restored  bool   `json:"restored,omitempty"`  // the objects are from a snapshot, not synced yet: Age includes the snapshot's
}

// Central is the central resolver.
type Central struct {
	Service   string   `json:"service"` // Service whose endpoints are followed; empty: the addresses are configured
	InSync    bool     `json:"inSync"`  // the endpoints are known or configured
	Endpoints []Server `json:"endpoints"`

	Discovery *discovery.Stats `json:"discovery,omitempty"` // how the endpoints are found by DNS; nil: they are not
	Push      *subscribe.Stats `json:"push,omitempty"`      // session that reports changes; nil: off
}

// KindOf describes the objects of one kind, as watched and as held.
func KindOf(stats *watch.KindStats, held zone.KindStats) Kind {
	s := Kind{
		Kind: zone.Kinds()[stats.Kind], Synced: stats.Synced, KindStats: held, Restored: held.Restored,
		Invalid: stats.Invalid, Example: stats.FirstInvalid,
		Events: stats.Events, Restarts: stats.Restarts, Failures: stats.Failures, LastError: stats.LastError,
	}
	if stats.Kind == zone.Pods {
		s.LastRefused, _, _ = strings.Cut(s.LastRefused, "/") // the page is open to all, and names no pod
	}
	if stats.Synced {
		s.Age = Seconds(stats.Age)
	}
	return s
}
