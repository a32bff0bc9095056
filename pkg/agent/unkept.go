// SPDX-License-Identifier: Apache-2.0

package agent

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

// leaves tells whether r keeps nothing of a zone.
func (r *running) leaves(zone string) bool {
	for _, forward := range r.config.Forward {
		if forward.Zone == zone {
			return forward.NoCache
		}
	}
	return false
}
