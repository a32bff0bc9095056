// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Zones returns the DNS zones that cfg makes of the stores.
func (c *Cluster) Zones(cfg *config.Config) (zones zone.Zones, err error) {
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

// zoneConfigs returns the configurations of the zones: of the domains, of the cluster set, and of the external names.
func (c *Cluster) zoneConfigs(cfg *config.Config) (list []zone.Config) {
	settings := zone.Config{
		Store: c.Store, TTL: cfg.Cluster.TTL,
		Pods: map[string]zone.PodMode{
			config.PodsDisabled: zone.PodsDisabled,
			config.PodsInsecure: zone.PodsInsecure,
			config.PodsVerified: zone.PodsVerified,
		}[cfg.Cluster.Pods],
		PodNames: cfg.Cluster.PodNames, IgnoreEmpty: cfg.Cluster.IgnoreEmptyService,
		AllSlices:      cfg.Cluster.Endpoints == config.EndpointsAll,
		LabelledSlices: cfg.Cluster.Endpoints == config.EndpointsHeadless && cfg.Cluster.Manifests == "",
		NodeZone:       c.TopologyZone(cfg.Cluster.NodeZone),
		ReverseZones:   reverseZones(cfg), Namespaces: cfg.Cluster.Namespaces,
		KnownNamespaces: cfg.Cluster.NamespaceSelector != "",
		Fallthrough:     cfg.Cluster.Fallthrough, Federations: c.federations(&cfg.Cluster),
		StaleAfter: cfg.Cluster.StaleAfter, Nameservers: listen.Global(cfg.Listen.Addresses),
	}
	if pool := c.Central; pool != nil {
		settings.HasFallback = func() bool { return !pool.Empty() }
	}
	for _, domain := range cfg.Domains() {
		settings.Domain = domain
		list = append(list, settings)
	}
	settings.ReverseZones, settings.IgnoreEmpty, settings.Federations, settings.Fallthrough = nil, false, nil, nil
	if c.Set != nil {
		set := settings
		set.Store, set.Cluster, set.Domain, set.Pods = c.Set, c.Store, cfg.Cluster.ClusterSet, zone.PodsDisabled
		set.LabelledSlices, set.AllSlices = false, true
		if !slices.Contains(cfg.Cluster.Zones, set.Domain) {
			set.HasFallback = nil // the central resolver may not know names of the cluster set
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

// routedSubzones returns the zones below a domain that have a route of their own, or that the central resolver answers.
func routedSubzones(cfg *config.Config, domain string) []string {
	names := slices.Clone(cfg.Cluster.Zones)
	for _, route := range cfg.Forward {
		names = append(names, route.Zone)
	}
	return slices.DeleteFunc(names, func(zone string) bool { return !strings.HasSuffix(zone, "."+domain) })
}

// KeepVersions keeps versions of the plan's zones while a client may transfer them.
func (c *Cluster) KeepVersions(p *resolve.Plan, now time.Time) {
	var kept zone.Zones
	if len(p.TransferTo) > 0 {
		kept = p.Zones
	}
	for _, store := range c.Stores() {
		store.Versions().Keep(kept, now)
	}
}

// wireName returns the canonical wire form of a name.
func wireName(name string) ([]byte, error) {
	packed, err := wire.AppendName(nil, name)
	if err != nil {
		return nil, fmt.Errorf("reading zone %q: %w", name, err)
	}
	return packed, nil
}

// wireNames returns the canonical wire forms of absolute names.
func wireNames(zones []string) (list [][]byte, err error) {
	for _, zone := range zones {
		name, err := wireName(zone)
		if err != nil {
			return nil, err
		}
		list = append(list, name)
	}
	return list, nil
}
