// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"github.com/nodecache/node-cache/pkg/config"
)

// dropUnkept takes out of r's cache what r's configuration says is not kept, and that
// of old, which may be nil, did not. The resolver must have the plan of r: a flight
// that lands later then knows that its answer may not be kept.
func dropUnkept(r, old *running) {
	for _, forward := range r.config.Forward {
		if !forward.NoCache || old != nil && old.leaves(forward.Zone) {
			continue
		}
		if zone, err := wireName(forward.Zone); err == nil { // else there was no plan either
			r.cache.Flush(zone)
		}
	}
}

// dropRerouted takes out of r's cache what is held of zones that have a route in r or in
// old, and not in both: another upstream answers for them now, and what the one before
// has denied would stand in its way. A route that changes its upstreams keeps what it
// has, as those who serve one zone should know the same of it. Nil old: nothing.
func dropRerouted(r, old *running) {
	if old == nil {
		return
	}
	for _, pair := range [2][2]*running{{r, old}, {old, r}} {
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

// hasRoute tells whether a zone has a route of its own.
func (r *running) hasRoute(zone string) bool {
	return slices.ContainsFunc(r.config.Forward, func(f config.Route) bool { return f.Zone == zone })
}

// leaves tells whether r keeps nothing of a zone.
func (r *running) leaves(zone string) bool {
	for _, forward := range r.config.Forward {
		if forward.Zone == zone {
			return forward.NoCache
		}
	}
	return false
}
