// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"os"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// ClusterStatus is the agent's knowledge of the cluster.
type ClusterStatus struct {
	Domain     string            `json:"domain"`
	Resolver   string            `json:"resolver"` // cluster.resolver
	Source     string            `json:"source"`   // where the cluster data comes from; empty: not needed
	InSync     bool              `json:"inSync"`   // the source has delivered a full list at least once
	WaitsFor   string            `json:"waitsFor,omitempty"`
	NodeZone   string            `json:"nodeZone"` // topology zone whose endpoints are preferred; empty: none
	Serial     uint32            `json:"serial"`   // of the zone's SOA record
	IndexBytes int64             `json:"indexBytes"`
	Requests   uint64            `json:"requests"` // to the API server
	Kinds      []KindStatus      `json:"kinds"`    // kinds watched
	Manifests  []ManifestProblem `json:"manifestProblems,omitempty"`
	Central    *CentralStatus    `json:"central,omitempty"` // nil: there is no central resolver
}

// KindStatus is the state of one kind of objects.
type KindStatus struct {
	Kind      string `json:"kind"`
	Synced    bool   `json:"synced"`
	Age       string `json:"age"` // since the objects were last confirmed fresh; "unknown" before the first list
	Objects   int64  `json:"objects"`
	Bytes     int64  `json:"bytes"`
	Refused   int64  `json:"refused,omitempty"` // objects over their namespace's memory limit
	Last      string `json:"lastRefused,omitempty"`
	Events    uint64 `json:"events"`
	Restarts  uint64 `json:"restarts"`
	Failures  uint64 `json:"failures"`
	LastError string `json:"lastError,omitempty"` // empty once the objects are confirmed fresh again
	Restored  bool   `json:"restored,omitempty"`  // from a snapshot and not synced yet: Age includes the snapshot's
}

// A ManifestProblem is one problem in the folder of manifests.
type ManifestProblem struct {
	File     string `json:"file"`
	Document int    `json:"document"` // from 1; 0: the whole file
	Line     int    `json:"line"`     // from 1; 0: unknown
	What     string `json:"what"`
	Hint     string `json:"hint,omitempty"`
}

// CentralStatus is the central resolver.
type CentralStatus struct {
	Service   string         `json:"service"` // whose endpoints are watched; empty: the addresses are configured
	InSync    bool           `json:"inSync"`  // the endpoints are known or configured
	Endpoints []ServerStatus `json:"endpoints"`
}

// sourceStats returns the stats of the cluster's source.
func (c *cluster) sourceStats() watch.Stats {
	if c == nil || c.source == nil {
		return watch.Stats{}
	}
	return c.source.Stats()
}

// clusterStatus returns nil without a cluster.
func clusterStatus(r *generation, stats *watch.Stats) *ClusterStatus {
	c := r.cluster
	if c == nil {
		return nil
	}
	s := &ClusterStatus{
		Domain: r.config.ClusterDomain, Resolver: r.config.Cluster.Resolver.String(), Source: c.sourceName(&r.config.Cluster),
		InSync: c.synced(), NodeZone: c.topologyZone(r.config.Cluster.NodeZone), Requests: stats.Requests,
	}
	if !s.InSync {
		s.WaitsFor = c.syncProblem()
	}
	var held zone.Stats
	if c.events != nil {
		held = c.events.Stats()
		s.Serial, s.IndexBytes = held.Serial, held.Index
	}
	for i := range stats.Kinds {
		k := &stats.Kinds[i]
		s.Kinds = append(s.Kinds, kindStatus(k, held.Kinds[k.Kind]))
		if held.Kinds[k.Kind].Restored {
			s.Kinds[i].Age = c.events.Age(k.Kind, time.Now()).Round(100 * time.Millisecond).String()
		}
	}
	if m, ok := c.source.(*watch.Manifests); ok {
		for _, p := range m.Problems() {
			s.Manifests = append(s.Manifests, ManifestProblem{File: p.File, Document: p.Document, Line: p.Line, What: p.What, Hint: p.Hint})
		}
	}
	if c.central != nil {
		service := r.config.Cluster.Central.Service.String()
		s.Central = &CentralStatus{
			Service: service, InSync: service == "" || stats.ServiceWatch.Synced, Endpoints: serverStatuses(c.central),
		}
	}
	return s
}

func kindStatus(stats *watch.KindStats, held zone.KindStats) KindStatus {
	s := KindStatus{
		Kind: zone.Kinds()[stats.Kind], Synced: stats.Synced, Age: "unknown", Restored: held.Restored,
		Objects: held.Objects, Bytes: held.Bytes, Refused: held.Refused, Last: held.LastRefused,
		Events: stats.Events, Restarts: stats.Restarts, Failures: stats.Failures, LastError: stats.LastError,
	}
	if stats.Synced {
		s.Age = stats.Age.Round(100 * time.Millisecond).String()
	}
	return s
}

// sourceName returns where the cluster data comes from.
func (c *cluster) sourceName(cfg *config.Cluster) string {
	switch {
	case c.source == nil:
		return ""
	case cfg.Manifests != "":
		return "folder " + cfg.Manifests
	case cfg.Kubeconfig != "":
		return "API server of " + cfg.Kubeconfig
	}
	return "API server https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
}
