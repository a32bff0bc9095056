// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A Cluster is what the agent knows of its Kubernetes cluster, and the central resolver, which answers the rest. Without a
// cluster it is zero. A reload may keep its parts, see [Maker.New].
type Cluster struct {
	*location

	Domains [][]byte                 // cluster domains in canonical wire form; the first one answers reverse names
	Owner   func(name []byte) []byte // returns the part of name whose changes invalidate its answer, see zone.Owner; nil: no changes are watched
	Store   *zone.Store              // objects that cluster names are answered from; nil: this process answers none
	Events  *zone.Store              // store whose changes purge cached answers: Store, or one of Services only; nil: none
	Set     *zone.Store              // imports of the cluster set, whose changes purge answers too; nil: there is none
	Source  Source                   // delivers the objects; nil: no objects are watched
	Pods    *pods.Index              // pods of this node; nil: they are not watched

	Endpoints *upstream.Service    // endpoints of the central resolver's Service; nil: its addresses are configured
	Discovery *discovery.Discovery // finds Endpoints by DNS; nil: the source does, if they are followed
	// ServiceExcluded is whether that Service has Calico's annotation by which its packets stay as they are; nil: it is not watched.
	ServiceExcluded *atomic.Bool
	Central         *upstream.Pool    // nil: there is no central resolver
	Push            *subscribe.Client // asks Central on a session that reports changes; nil: off
	CentralZones    [][]byte          // zones that Central answers, in canonical wire form

	Keys     *tsig.Keys       // TSIG keys of the secondary servers; nil: none
	Notifier *notify.Notifier // notifies the secondary servers; nil: no client may transfer the zones

	setDomain []byte // domain of the cluster set, in canonical wire form; nil: there is none
}

// A Source delivers objects, from the API server or a folder of manifests.
type Source interface {
	Part
	Ready() <-chan struct{} // closed after the first full list
	Stats() watch.Stats
}

// A Part runs until ctx ends.
type Part interface {
	Run(ctx context.Context) error
}

// A Maker makes clusters. Its fields are what all of them share.
type Maker struct {
	Version  string
	Pool     func(cfg *config.Config, zone []byte, label string) upstream.Config // returns the settings that all pools have in common
	Memory   *memory.Keeper
	Observer zone.Observer // observes all stores
	// TargetChanged is called when the endpoints of the central resolver, or the addresses of its Service, have changed.
	TargetChanged func()
	Cache         func() *cache.Cache // the cache in use
	Now           func() time.Time
	Log           *slog.Logger
}

// New returns the cluster of cfg. It reuses the source of old and what that fills, and the central pool, if their keys are the same.
func (m *Maker) New(cfg *config.Config, old *Cluster, oldConfig *config.Config) (*Cluster, error) {
	if isOff(cfg) {
		return new(Cluster), nil
	}
	domains, setDomain, err := clusterDomains(cfg)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Domains: domains, setDomain: setDomain, location: new(location)}
	kept := old.Domains != nil
	if kept && sameSource(&cfg.Cluster, &oldConfig.Cluster) && samePods(cfg, oldConfig) {
		*c = *old
		c.Domains, c.setDomain, c.Central, c.Push, c.Discovery, c.CentralZones, c.Keys, c.Notifier = domains, setDomain, nil, nil, nil, nil, nil, nil
	} else if err := m.makeSource(c, cfg); err != nil {
		return nil, err
	}
	c.setOwner(cfg.Cluster.Central.Push)
	switch {
	case !cfg.Cluster.Central.IsSet(), cfg.Cluster.Resolver == config.ResolverNone:
	case kept && c.Endpoints == old.Endpoints && sameCentral(&cfg.Cluster.Central, &oldConfig.Cluster.Central):
		c.Central = old.Central
	default:
		err = m.makeCentral(c, cfg)
	}
	if err == nil && c.Central != nil && cfg.Cluster.Central.Push {
		if c.Push = old.Push; c.Push == nil || c.Central != old.Central || !sameDomains(c, old) || cfg.Cluster.StaleAfter != oldConfig.Cluster.StaleAfter {
			c.Push = m.newPush(c, cfg)
		}
	}
	if err == nil && c.Central != nil && cfg.Cluster.Central.Headless != (config.ServiceName{}) {
		if c.Discovery = old.Discovery; c.Discovery == nil || c.Central != old.Central || c.Push != old.Push || !sameDomains(c, old) {
			err = m.makeDiscovery(c, cfg)
		}
	}
	if err == nil && c.Central != nil {
		c.CentralZones, err = c.zonesOfCentral(cfg)
	}
	if err == nil {
		err = m.makeNotifier(c, cfg)
	}
	return c, err
}

// makeNotifier sets c's keys and notifier, if clients may transfer its zones.
func (m *Maker) makeNotifier(c *Cluster, cfg *config.Config) (err error) {
	if c.Store == nil || len(cfg.Cluster.TransferTo) == 0 {
		return nil
	}
	if file := cfg.Cluster.TransferKeys; file != "" {
		if c.Keys, err = tsig.New(file, m.Log); err != nil {
			return &hint.Error{Err: fmt.Errorf("cluster.transferKeys: %w", err), Hint: "set a file of keys, as of tsig-keygen, that this user can read"}
		}
	}
	settings := notify.Config{Ready: c.Source.Ready(), Zones: append(cfg.Domains(), cfg.Cluster.External.Zones...), Keys: c.Keys, Log: m.Log, Now: m.Now}
	for _, store := range c.Stores() {
		settings.Stores = append(settings.Stores, store)
	}
	if c.Set != nil {
		settings.Zones = append(settings.Zones, cfg.Cluster.ClusterSet)
	}
	for _, client := range cfg.Cluster.TransferTo {
		if client.Port != 0 {
			settings.To = append(settings.To, client.Server())
		}
	}
	c.Notifier = notify.New(settings)
	return nil
}

// clusterDomains returns the domains of the cluster and of the cluster set, in canonical wire form. If set is nil, there is no set.
func clusterDomains(cfg *config.Config) (domains [][]byte, set []byte, err error) {
	if domains, err = wireNames(cfg.Domains()); err == nil && cfg.Cluster.ClusterSet != "" {
		set, err = wireName(cfg.Cluster.ClusterSet)
	}
	return domains, set, err
}

func sameDomains(a, b *Cluster) bool { return slices.EqualFunc(a.Domains, b.Domains, bytes.Equal) }

// newPush returns the client that subscribes to what c's central resolver is asked for.
func (m *Maker) newPush(c *Cluster, cfg *config.Config) *subscribe.Client {
	settings := subscribe.Config{
		Cache: m.Cache, Owner: c.Owner, Pool: c.Central, Servers: c.Central.Healthy, Serves: c.Central.Has, Open: c.Central.Open,
		MaxAge: cfg.Cluster.StaleAfter, Now: m.Now, Log: m.Log,
	}
	if cfg.Cluster.Central.Headless != (config.ServiceName{}) {
		settings.Watched, _ = wireName(headlessName(cfg)) // each part is valid
		settings.Changed = func() { c.Discovery.Wake() }
	}
	return subscribe.New(settings)
}

// Asker returns what asks the central resolver.
func (c *Cluster) Asker() resolve.Asker {
	if c.Push != nil {
		return c.Push
	}
	return c.Central
}

// setOwner sets c.Owner for the domains of c, if changes are watched or reported.
func (c *Cluster) setOwner(reported bool) {
	if c.Owner = nil; c.Events == nil && !reported {
		return
	}
	domains := c.Domains
	if c.Set != nil {
		domains = append(slices.Clip(domains), c.setDomain)
	}
	c.Owner = func(name []byte) []byte {
		for _, domain := range domains {
			if owner := zone.Owner(name, domain); owner != nil {
				return owner
			}
		}
		return nil
	}
}

func (m *Maker) makeCentral(c *Cluster, cfg *config.Config) (err error) {
	pool := m.Pool(cfg, c.Domains[0], cfg.ClusterDomain)
	pool.Secure = secureOf(&cfg.Cluster.Central)
	if c.Endpoints != nil {
		pool.Endpoints = c.Endpoints.Endpoints()
	} else {
		pool.Targets = pool.Secure.Targets(cfg.Cluster.Central.Addresses)
	}
	pool.Connections = cfg.Cluster.Central.Connections
	c.Central, err = upstream.New(pool)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return &hint.Error{
			Err:  fmt.Errorf("cluster.central.addresses: %w", err),
			Hint: "all these addresses are node-cache's own; set those of the central resolver",
		}
	}
	return err
}

// secureOf returns how the servers of the central resolver are asked.
func secureOf(central *config.Central) (s upstream.Secure) {
	if central.ServerName != "" {
		s = upstream.Secure{Port: central.TLSPort, Name: central.ServerName, CAFile: central.CA}
	}
	return s
}

// zonesOfCentral returns the zones that the central resolver answers.
func (c *Cluster) zonesOfCentral(cfg *config.Config) (zones [][]byte, err error) {
	names := append(cfg.Domains(), cfg.Cluster.Zones...)
	if len(cfg.Cluster.Ranges) == 0 && c.Store == nil {
		names = append(names, "in-addr.arpa.", "ip6.arpa.")
	}
	names = append(names, reverseZones(cfg)...)
	slices.Sort(names)
	return wireNames(slices.Compact(names))
}

// reverseZones returns the zones of cluster.ranges.
func reverseZones(cfg *config.Config) (zones []string) {
	for _, prefix := range cfg.Cluster.Ranges {
		zones = append(zones, config.ReverseZones(prefix)...)
	}
	return zones
}

// Domain returns the cluster domain, nil without a cluster.
func (c *Cluster) Domain() []byte {
	if len(c.Domains) == 0 {
		return nil
	}
	return c.Domains[0]
}

// Parts returns the parts of c that run.
func (c *Cluster) Parts() (list []Part) {
	if c.Source != nil {
		list = append(list, c.Source)
	}
	if c.Central != nil {
		list = append(list, c.Central)
	}
	if c.Push != nil {
		list = append(list, c.Push)
	}
	if c.Discovery != nil {
		list = append(list, c.Discovery)
	}
	if c.Keys != nil {
		list = append(list, c.Keys)
	}
	if c.Notifier != nil {
		list = append(list, c.Notifier)
	}
	return list
}

// Synced reports whether the source, if there is one, has delivered a full list.
func (c *Cluster) Synced() bool {
	if c.Source == nil {
		return true
	}
	select {
	case <-c.Source.Ready():
		return true
	default:
		return false
	}
}

// Restored reports whether cluster names are answered from a snapshot, because the source has not synced yet.
func (c *Cluster) Restored() bool {
	return c.Store != nil && c.Store.Restored(zone.Services)
}

// NotReady returns why the cluster zone is not synced, nil if it is.
func (c *Cluster) NotReady(now time.Time) error {
	switch {
	case c.Synced():
		return nil
	case c.Restored():
		return fmt.Errorf("the cluster zone is not synced: %s; names are answered from a snapshot, %s old",
			c.syncProblem(), c.Store.Age(zone.Services, now).Round(time.Second))
	}
	return fmt.Errorf("the cluster zone is not synced: %s", c.syncProblem())
}

// AwaitSync waits, at most for patience, until the source has delivered a full list. Before that, existing names would be denied.
func (c *Cluster) AwaitSync(ctx context.Context, patience time.Duration) error {
	if c.Source == nil {
		return nil
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-c.Source.Ready():
		return nil
	case <-limit.C:
		return &hint.Error{
			Err:  fmt.Errorf("cluster: the new source is not synced after %s: %s", patience, c.syncProblem()),
			Hint: "check that the API server is reachable and grants this process list and watch",
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncProblem returns what keeps the source from syncing.
func (c *Cluster) syncProblem() string {
	stats := c.Source.Stats()
	for _, kind := range stats.Kinds {
		if !kind.Synced && kind.LastError != "" {
			return zone.Kinds()[kind.Kind] + ": " + kind.LastError
		}
	}
	if !stats.ServiceWatch.Synced && stats.ServiceWatch.LastError != "" {
		return "central.service: " + stats.ServiceWatch.LastError
	}
	return "no response yet"
}

// makeStore makes the store that the cluster's source fills. Cluster names are answered from it; with cluster.invalidate it holds
// Services only, to notify of changes. The observer is registered before the store is filled.
func (m *Maker) makeStore(c *Cluster, cfg *config.Cluster) {
	switch {
	case cfg.Resolver == config.ResolverLocal:
		c.Store = zone.NewStore()
		c.Events = c.Store
		if cfg.ClusterSet != "" {
			c.Set = zone.NewClusterSet(c.Store)
		}
		m.limit(c)
	case cfg.Resolver == config.ResolverCentral && cfg.Invalidate:
		c.Events = zone.NewStore()
	default:
	}
	m.observe(c)
}

// Stores yields the stores of cluster objects, each with its section of a snapshot.
func (c *Cluster) Stores() iter.Seq2[snapshot.Kind, *zone.Store] {
	return func(yield func(snapshot.Kind, *zone.Store) bool) {
		if (c.Events == nil || yield(snapshot.Zone, c.Events)) && c.Set != nil {
			yield(snapshot.ClusterSet, c.Set)
		}
	}
}

// Apply puts c in the place of old: the stores of c keep to their share of the memory, and report changes of c's domains, which
// may differ from old's.
func (m *Maker) Apply(old, c *Cluster) {
	m.limit(c)
	if c != old {
		m.observe(c)
	}
}

// limit bounds the bytes of one namespace to its share of the memory.
func (m *Maker) limit(c *Cluster) {
	if c.Store == nil {
		return
	}
	for _, store := range c.Stores() {
		store.Limit(m.Memory.Share().Namespace())
	}
}

func (m *Maker) observe(c *Cluster) {
	if c.Events != nil {
		c.Events.Observe(c.Domains, m.Observer)
	}
	if c.Set != nil {
		c.Set.Observe([][]byte{c.setDomain}, m.Observer)
	}
	if c.Notifier != nil {
		c.Notifier.Changed() // until now the observer notified the old notifier
	}
}

// SetZone has the endpoints in the topology zone of this node preferred. setting is cluster.nodeZone.
func (c *Cluster) SetZone(setting string) {
	if c.Endpoints != nil && c.Endpoints.SetZone(c.TopologyZone(setting)) && c.Discovery != nil {
		c.Discovery.Wake()
	}
}
