// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/zone"
)

// makeStore makes the store that the cluster's source fills. Names are answered from it; with
// cluster.invalidate it holds services only, for the notification of changes. The observer is registered
// before the store is filled.
func (a *Agent) makeStore(c *cluster, cfg *config.Cluster) {
	switch {
	case cfg.Resolver == config.ResolverLocal:
		c.store = zone.NewStore()
		c.events = c.store
		a.limitNames(c)
	case cfg.Resolver == config.ResolverCentral && cfg.Invalidate:
		c.events = zone.NewStore()
	default:
	}
	a.observe(c)
}

// limitNames bounds the bytes of one namespace to its share of the memory.
func (a *Agent) limitNames(c *cluster) {
	if c != nil && c.store != nil {
		c.store.Limit(a.memory.share.Load().namespace())
	}
}

// observe makes changes in the cluster purge the cached answers below c's domain. The domain may differ from
// the one that the store was made for.
func (a *Agent) observe(c *cluster) {
	if c != nil && c.events != nil {
		c.events.Observe(c.domain, a.purge)
	}
}

// purge drops the cached answers of owner, from the cache in use now: a reload may have replaced it. Sources
// call purge from their own goroutines.
func (a *Agent) purge(owner []byte) {
	if r := a.running.Load(); r != nil {
		r.cache.OwnerChanged(owner, time.Now())
	}
}

// owner returns the function that maps a name to the owner whose changes invalidate its answer. It is nil if
// no changes are watched.
func (c *cluster) owner() func(name []byte) []byte {
	if c == nil || c.events == nil {
		return nil
	}
	domain := c.domain
	return func(name []byte) []byte { return zone.Owner(name, domain) }
}

// purgeNoCache removes the zones from the cache that r's configuration excludes from it and old's did not.
// old may be nil. The resolver must have r's plan already: then answers in flight are not stored either.
func purgeNoCache(r, old *generation) {
	for _, forward := range r.config.Forward {
		if !forward.NoCache || old != nil && old.excludes(forward.Zone) {
			continue
		}
		if zone, err := wireName(forward.Zone); err == nil { // an invalid zone would have failed the plan
			r.cache.Flush(zone)
		}
	}
}

// purgeRerouted removes the zones from the cache that have a route in either r or old but not in both.
// Another upstream answers for them now, and cached denials of the old one would hide its names. A route that
// changes only its upstreams keeps its entries, since servers of one zone should agree. With a nil old it
// does nothing.
func purgeRerouted(r, old *generation) {
	if old == nil {
		return
	}
	for _, pair := range [2][2]*generation{{r, old}, {old, r}} {
		for _, forward := range pair[0].config.Forward {
			if pair[1].hasRoute(forward.Zone) {
				continue
			}
			if zone, err := wireName(forward.Zone); err == nil {
				r.cache.Flush(zone)
			}
		}
	}
}

// hasRoute reports whether a zone has a route of its own.
func (r *generation) hasRoute(zone string) bool {
	return slices.ContainsFunc(r.config.Forward, func(f config.Route) bool { return f.Zone == zone })
}

// excludes reports whether r caches nothing of a zone.
func (r *generation) excludes(zone string) bool {
	for _, forward := range r.config.Forward {
		if forward.Zone == zone {
			return forward.NoCache
		}
	}
	return false
}
