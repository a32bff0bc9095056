// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A topology is the topology zone and the region of a node. Empty: unknown.
type topology struct{ zone, region string }

// A location is where this node is.
type location struct {
	learned atomic.Pointer[topology] // read from the API server; nil: not read yet, or not needed
}

// place returns the topology of this node: the one read from the API server, else that of the environment.
func (l *location) place() topology {
	if learned := l.learned.Load(); learned != nil {
		return *learned
	}
	return topology{os.Getenv("NODE_ZONE"), os.Getenv("NODE_REGION")}
}

// TopologyZone returns the zone of this node: the setting, unless that is auto. "" means unknown.
func (l *location) TopologyZone(setting string) string {
	if setting != "auto" {
		return setting
	}
	return l.place().zone
}

// federations returns the federations of cfg. Their aliases are known once this node's topology is.
func (c *Cluster) federations(cfg *config.Cluster) (list []zone.Federation) {
	for _, f := range cfg.Federations {
		at := c.place()
		suffix := at.zone + "." + at.region + "." + f.Domain
		if _, err := wireName(suffix); err != nil {
			suffix = ""
		}
		list = append(list, zone.Federation{Name: f.Name, Suffix: suffix})
	}
	return list
}

// FederationStatus describes the federations of cfg.
func (c *Cluster) FederationStatus(cfg *config.Cluster) (list []status.Federation) {
	for i, f := range c.federations(cfg) {
		list = append(list, status.Federation{Name: f.Name, Domain: cfg.Federations[i].Domain, Suffix: f.Suffix})
	}
	return list
}

// LearnTopology reads this node's topology from the API server, if it is needed and not yet known, and reports whether it did.
func (c *Cluster) LearnTopology(ctx context.Context, cfg *config.Cluster, now func() time.Time, log *slog.Logger) (found bool, err error) {
	read := c.topologyReader(cfg, now)
	if read == nil {
		return false, nil
	}
	name, region, err := read(ctx)
	if err != nil {
		return false, err
	}
	c.learned.Store(&topology{name, region})
	log.InfoContext(ctx, "topology zone found", "zone", cmp.Or(name, "none"), "region", cmp.Or(region, "none"))
	return true, nil
}

// topologyReader returns what reads this node's topology from the API server, nil if that is not needed or not possible.
func (c *Cluster) topologyReader(cfg *config.Cluster, now func() time.Time) func(context.Context) (zone, region string, err error) {
	federated := len(cfg.Federations) > 0
	needed := (cfg.NodeZone == "auto" || federated) && os.Getenv("NODE_ZONE") == "" || federated && os.Getenv("NODE_REGION") == ""
	used := c.Store != nil || c.Central != nil && c.Endpoints != nil
	if !needed || !used || os.Getenv("NODE_NAME") == "" || c.learned.Load() != nil {
		return nil
	}
	if w, ok := c.Source.(*watch.Watch); ok {
		return w.NodeTopology
	}
	if c.Source == nil { // the endpoints are found by DNS
		return func(ctx context.Context) (zone, region string, err error) {
			return watch.NodeTopology(ctx, watch.Config{Kubeconfig: cfg.Kubeconfig, Context: cfg.Context, NodeName: os.Getenv("NODE_NAME"), Now: now})
		}
	}
	return nil
}
