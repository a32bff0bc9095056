// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"sync/atomic"

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
func (c *Cluster) LearnTopology(ctx context.Context, cfg *config.Cluster, log *slog.Logger) (found bool, err error) {
	w, ok := c.topologyWatch(cfg)
	if !ok {
		return false, nil
	}
	name, region, err := w.NodeTopology(ctx)
	if err != nil {
		return false, err
	}
	c.learned.Store(&topology{name, region})
	log.InfoContext(ctx, "topology zone found", "zone", cmp.Or(name, "none"), "region", cmp.Or(region, "none"))
	return true, nil
}

// topologyWatch returns the watch that can read this node's topology, if that is needed.
func (c *Cluster) topologyWatch(cfg *config.Cluster) (*watch.Watch, bool) {
	federated := len(cfg.Federations) > 0
	needed := (cfg.NodeZone == "auto" || federated) && os.Getenv("NODE_ZONE") == "" || federated && os.Getenv("NODE_REGION") == ""
	if !needed || os.Getenv("NODE_NAME") == "" {
		return nil, false
	}
	w, ok := c.Source.(*watch.Watch)
	return w, ok && c.learned.Load() == nil && (c.Store != nil || c.Central != nil && c.Endpoints != nil)
}
