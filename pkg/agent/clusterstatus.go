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

// ClusterStatus is what is known of the cluster, and from whom.
type ClusterStatus struct {
	Domain     string            `json:"domain"`
	Resolver   string            `json:"resolver"` // cluster.resolver
	Source     string            `json:"source"`   // who tells what is in the cluster; empty: nobody has to
	InSync     bool              `json:"inSync"`   // the source has told all there is, at least once
	WaitsFor   string            `json:"waitsFor,omitempty"`
	NodeZone   string            `json:"nodeZone"` // topology zone whose endpoints come first; empty: none
	Serial     uint32            `json:"serial"`   // of the zone's SOA record
	IndexBytes int64             `json:"indexBytes"`
	Requests   uint64            `json:"requests"` // to the API server
	Kinds      []KindStatus      `json:"kinds"`    // those that are watched
	Manifests  []ManifestProblem `json:"manifestProblems,omitempty"`
	Central    *CentralStatus    `json:"central,omitempty"` // nil: there is no central resolver
}

// KindStatus is what is known of one kind of objects.
type KindStatus struct {
	Kind      string `json:"kind"`
	Synced    bool   `json:"synced"`
	Age       string `json:"age"` // since the view was last proven right; "unknown" before the first list
	Objects   int64  `json:"objects"`
	Bytes     int64  `json:"bytes"`
	Refused   int64  `json:"refused,omitempty"` // of the objects, those that are more than their namespace may have
	Last      string `json:"lastRefused,omitempty"`
	Events    uint64 `json:"events"`
	Restarts  uint64 `json:"restarts"`
	Failures  uint64 `json:"failures"`
	LastError string `json:"lastError,omitempty"` // until the view is proven right again
	Restored  bool   `json:"restored,omitempty"`  // by a snapshot, and not synced yet: Age is since it was proven right then
}

// A ManifestProblem is one thing that is wrong with the folder of manifests.
type ManifestProblem struct {
	File     string `json:"file"`
	Document int    `json:"document"` // from 1; 0: the whole file
	Line     int    `json:"line"`     // from 1; 0: not known
	What     string `json:"what"`
	Hint     string `json:"hint,omitempty"`
}

// CentralStatus is the resolver that is asked for what is not known here.
type CentralStatus struct {
	Service   string         `json:"service"` // whose endpoints are followed; empty: the addresses are configured
	InSync    bool           `json:"inSync"`  // the endpoints were told, or are configured
	Endpoints []ServerStatus `json:"endpoints"`
}

// told is what the source says of itself.
func (c *cluster) told() watch.Stats {
	if c == nil || c.source == nil {
		return watch.Stats{}
	}
	return c.source.Stats()
}

// clusterStatus is nil without a cluster.
func clusterStatus(r *running, told *watch.Stats) *ClusterStatus {
	c := r.cluster
	if c == nil {
		return nil
	}
	s := &ClusterStatus{
		Domain: r.config.ClusterDomain, Resolver: r.config.Cluster.Resolver.String(), Source: c.sourceName(&r.config.Cluster),
		InSync: c.inSync(), NodeZone: c.topologyZone(r.config.Cluster.NodeZone), Requests: told.Requests,
	}
	if !s.InSync {
		s.WaitsFor = c.why()
	}
	var held zone.Stats
	if c.events != nil {
		held = c.events.Stats()
		s.Serial, s.IndexBytes = held.Serial, held.Index
	}
	for i := range told.Kinds {
		k := &told.Kinds[i]
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
			Service: service, InSync: service == "" || told.ServiceWatch.Synced, Endpoints: serverStatuses(c.central),
		}
	}
	return s
}

func kindStatus(told *watch.KindStats, held zone.KindStats) KindStatus {
	s := KindStatus{
		Kind: zone.Kinds()[told.Kind], Synced: told.Synced, Age: "unknown", Restored: held.Restored,
		Objects: held.Objects, Bytes: held.Bytes, Refused: held.Refused, Last: held.LastRefused,
		Events: told.Events, Restarts: told.Restarts, Failures: told.Failures, LastError: told.LastError,
	}
	if told.Synced {
		s.Age = told.Age.Round(100 * time.Millisecond).String()
	}
	return s
}

// sourceName says who tells what is in the cluster.
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
