// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/watch"
)

// SourceStats returns the stats of the source; nil: there is none.
func (c *Cluster) SourceStats() *watch.Stats {
	if c.Source == nil {
		return nil
	}
	return new(c.Source.Stats())
}

// Held returns what the stores hold; nil: there are none.
func (c *Cluster) Held() *zone.Stats {
	if c.Events == nil {
		return nil
	}
	held := c.Events.Stats()
	if c.Set != nil {
		held.AddClusterSet(c.Set.Stats())
	}
	return &held
}

// age returns the time since the objects of a kind were last confirmed.
func (c *Cluster) age(kind zone.Kind, now time.Time) time.Duration {
	switch kind {
	case zone.Imports:
		return c.Set.Age(zone.Services, now)
	case zone.ImportSlices:
		return c.Set.Age(zone.Slices, now)
	default:
		return c.Events.Age(kind, now)
	}
}

// View says how far this process is with the objects of each kind.
func (c *Cluster) View(now time.Time) dso.View {
	v := dso.View{Age: dso.Never}
	if c.Source == nil || c.Store == nil {
		return v
	}
	v.Age = 0
	for _, k := range c.Source.Stats().Kinds {
		age := dso.Never
		if k.Synced {
			age = c.age(k.Kind, now)
		}
		v.Age = max(v.Age, age)
		v.Kinds = append(v.Kinds, dso.Versions{Newest: k.Newest, UpTo: k.UpTo})
	}
	return v
}

// PushStats returns the state of the session that reports changes; nil: there is none.
func (c *Cluster) PushStats() *subscribe.Stats {
	if c.Push == nil {
		return nil
	}
	return new(c.Push.Stats())
}

// Status describes the cluster of cfg. It returns nil without one.
func (c *Cluster) Status(cfg *config.Config, stats *watch.Stats, now time.Time) *status.Cluster {
	if c.Domains == nil {
		return nil
	}
	s := &status.Cluster{
		Domain: cfg.ClusterDomain, Domains: cfg.Cluster.Domains, ClusterSet: cfg.Cluster.ClusterSet,
		External: cfg.Cluster.External.Zones, Federated: c.FederationStatus(&cfg.Cluster), Resolver: cfg.Cluster.Resolver, Source: c.sourceName(cfg),
		InSync: c.Synced(), NodeZone: c.TopologyZone(cfg.Cluster.NodeZone), Requests: stats.Requests,
	}
	if !s.InSync {
		s.WaitsFor = c.syncProblem()
	}
	var held zone.Stats
	if all := c.Held(); all != nil {
		held = *all
		s.Serial, s.IndexBytes = held.Serial, held.Index
	}
	for i := range stats.Kinds {
		k := &stats.Kinds[i]
		s.Kinds = append(s.Kinds, status.KindOf(k, held.Kinds[k.Kind]))
		if held.Kinds[k.Kind].Restored {
			s.Kinds[i].Age = status.Seconds(c.age(k.Kind, now))
		}
	}
	if c.Notifier != nil {
		s.Secondaries = c.Notifier.Stats().Servers
	}
	if m, ok := c.Source.(*watch.Manifests); ok {
		s.Manifests = m.Problems()
	}
	if c.Pods != nil {
		s.NodePods = status.NodePodsOf(stats, c.Pods.Stats(now))
	}
	if c.Central != nil {
		service := cfg.Cluster.Central.Endpoints().String()
		s.Central = &status.Central{
			Service: service, InSync: service == "" || stats.ServiceWatch.Synced, Endpoints: status.ServersOf(c.Central.Stats()),
			Discovery: c.Discovery.Stats(), Push: c.PushStats(),
		}
		if s.Central.Discovery != nil {
			s.Central.InSync = s.Central.Discovery.Synced
		}
	}
	return s
}
