// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/zone"
)

// makeStore gives c what its source fills: the store that names are answered from,
// or with cluster.invalidate one of services alone, of which nothing is wanted but
// its changes. They are heeded from before the store is filled.
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
	a.heed(c)
}

// limitNames bounds what a namespace may take of the memory there is.
func (a *Agent) limitNames(c *cluster) {
	if c != nil && c.store != nil {
		c.store.Limit(a.memory.known.Load().namespace())
	}
}

// heed has changes in the cluster drop answers below c's domain. That may be another
// than the one for which the store was made.
func (a *Agent) heed(c *cluster) {
	if c != nil && c.events != nil {
		c.events.Observe(c.domain, a.changed)
	}
}

// changed drops what the cache has of the owner: that of the moment, since a reload
// may have put another in its place. Sources call it from their goroutines.
func (a *Agent) changed(owner []byte) {
	if r := a.running.Load(); r != nil {
		r.cache.Changed(owner, time.Now())
	}
}

// owner says whose changes drop the answer for a name. It is nil if there is nobody
// to tell of changes.
func (c *cluster) owner() func(name []byte) []byte {
	if c == nil || c.events == nil {
		return nil
	}
	domain := c.domain
	return func(name []byte) []byte { return zone.Owner(name, domain) }
}
