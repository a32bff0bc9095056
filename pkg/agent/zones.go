// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/watch"
)

// newZones returns the zones that cfg makes of the stores.
func (c *cluster) newZones(cfg *config.Config) (zones zone.Zones, err error) {
	for _, settings := range c.zoneConfigs(cfg) {
		settings.Excluded = routedSubzones(cfg, settings.Domain)
		z, err := zone.New(settings)
		if err != nil {
			return nil, err
		}
		zones = append(zones, z)
	}
	return zones, nil
}

// zoneConfigs returns the zones of the domains, of the cluster set and of the external names.
func (c *cluster) zoneConfigs(cfg *config.Config) (list []zone.Config) {
	settings := zone.Config{
		Store: c.store, TTL: cfg.Cluster.TTL,
		Pods: map[string]zone.PodMode{
			config.PodsDisabled: zone.PodsDisabled,
			config.PodsInsecure: zone.PodsInsecure,
			config.PodsVerified: zone.PodsVerified,
		}[cfg.Cluster.Pods],
		PodNames: cfg.Cluster.PodNames, IgnoreEmpty: cfg.Cluster.IgnoreEmptyService,
		AllSlices:      cfg.Cluster.Endpoints == config.EndpointsAll,
		LabelledSlices: cfg.Cluster.Endpoints == config.EndpointsHeadless && cfg.Cluster.Manifests == "",
		NodeZone:       c.topologyZone(cfg.Cluster.NodeZone),
		ReverseZones:   reverseZones(cfg), Namespaces: cfg.Cluster.Namespaces,
		KnownNamespaces: cfg.Cluster.NamespaceSelector != "",
		Fallthrough:     cfg.Cluster.Fallthrough, Federations: c.federations(&cfg.Cluster),
		StaleAfter: cfg.Cluster.StaleAfter, Nameservers: listen.Global(cfg.Listen.Addresses),
	}
	if pool := c.central; pool != nil {
		settings.HasFallback = func() bool { return !pool.Empty() }
	}
	for _, domain := range cfg.Domains() {
		settings.Domain = domain
		list = append(list, settings)
	}
	settings.ReverseZones, settings.IgnoreEmpty, settings.Federations, settings.Fallthrough = nil, false, nil, nil
	if c.set != nil {
		set := settings
		set.Store, set.Cluster, set.Domain, set.Pods = c.set, c.store, cfg.Cluster.ClusterSet, zone.PodsDisabled
		set.LabelledSlices, set.AllSlices = false, true
		if !slices.Contains(cfg.Cluster.Zones, set.Domain) {
			set.HasFallback = nil // the central resolver may not know the names
		}
		list = append(list, set)
	}
	external := &cfg.Cluster.External
	settings.HasFallback = nil // the central resolver has no external names
	settings.External, settings.TTL, settings.Headless = true, external.TTL, external.Headless
	for _, domain := range external.Zones {
		settings.Domain = domain
		if external.Fallthrough {
			settings.Fallthrough = []string{domain}
		}
		list = append(list, settings)
	}
	return list
}

// routedSubzones returns the zones below a domain that have routes of their own, or are the central resolver's.
func routedSubzones(cfg *config.Config, domain string) []string {
	names := slices.Clone(cfg.Cluster.Zones)
	for _, route := range cfg.Forward {
		names = append(names, route.Zone)
	}
	return slices.DeleteFunc(names, func(zone string) bool { return !strings.HasSuffix(zone, "."+domain) })
}

// keepVersions keeps versions of the plan's zones while a client may transfer them.
func (c *cluster) keepVersions(p *resolve.Plan) {
	var kept zone.Zones
	if len(p.TransferTo) > 0 {
		kept = p.Zones
	}
	for _, store := range c.stores() {
		store.Versions().Keep(kept, time.Now())
	}
}

// place returns the topology of this node, with empty fields for what is unknown.
func (c *cluster) place() topology {
	if learned := c.topology.Load(); learned != nil {
		return *learned
	}
	return topology{os.Getenv("NODE_ZONE"), os.Getenv("NODE_REGION")}
}

// topologyZone returns the zone of this node, "" if it is unknown.
func (c *cluster) topologyZone(setting string) string {
	if setting != "auto" {
		return setting
	}
	return c.place().zone
}

// federations returns the federations of cfg. Their aliases are known once this node's topology is.
func (c *cluster) federations(cfg *config.Cluster) (list []zone.Federation) {
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

// federationStatus describes the federations of cfg.
func (c *cluster) federationStatus(cfg *config.Cluster) (list []status.Federation) {
	for i, f := range c.federations(cfg) {
		list = append(list, status.Federation{Name: f.Name, Domain: cfg.Federations[i].Domain, Suffix: f.Suffix})
	}
	return list
}

// topologyWatch returns the watch that can read this node's topology, if that is needed.
func (c *cluster) topologyWatch(cfg *config.Cluster) (*watch.Watch, bool) {
	federated := len(cfg.Federations) > 0
	needed := (cfg.NodeZone == "auto" || federated) && os.Getenv("NODE_ZONE") == "" || federated && os.Getenv("NODE_REGION") == ""
	if !needed || os.Getenv("NODE_NAME") == "" {
		return nil, false
	}
	w, ok := c.source.(*watch.Watch)
	return w, ok && c.topology.Load() == nil && (c.store != nil || c.central != nil && c.endpoints != nil)
}
