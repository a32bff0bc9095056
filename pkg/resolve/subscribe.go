// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/wire"
)

// ZoneOwner returns the part of a name, in canonical wire form, that identifies the cluster object of its answers. It is nil if the zones
// do not give all of them: then a change of the object is not all that changes them.
func (r *Resolver) ZoneOwner(name []byte) []byte {
	p := r.plan.Load()
	owner := p.owner(name)
	switch {
	case owner == nil, !p.Zones.Follows(name), p.hasExtras && p.changes(name):
		return nil
	}
	return owner
}

// changes reports whether one of the optional features has answers of its own for the name.
func (p *Plan) changes(name []byte) bool {
	if p.Rewrites != nil {
		if _, rule := p.Rewrites.match(nil, name); rule != nil {
			return true
		}
	}
	if p.SkyDNS != nil && p.SkyDNS.Has(name) {
		return true
	}
	if p.LocalData == nil {
		return false
	}
	for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV, wire.TypePTR, wire.TypeTXT, wire.TypeCNAME} {
		packet := append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
		var q wire.Query
		if q.Parse(append(packet, 0, byte(rrtype), 0, byte(wire.ClassIN))) != wire.RcodeSuccess || p.LocalData.Rule(&q) != "" {
			return true
		}
	}
	return false
}
