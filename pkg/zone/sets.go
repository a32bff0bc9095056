// SPDX-License-Identifier: Apache-2.0

package zone

// appendClusterIPs appends the service's addresses of octets each.
func (r *reply) appendClusterIPs(svc *service, octets int) {
	n, at := 0, len(r.dst)
	for list := svc.addrs(octets); list != "" && !r.full(addressRecordLen(octets)); list = list[octets:] {
		r.appendAddress(r.at, list[:octets], r.ttl)
		n++
	}
	r.rotate(at, n, octets)
	r.answer += n
}

// appendEndpoints appends the addresses of the selection, each once: those of the
// node's own topology zone first.
func (r *reply) appendEndpoints(sel *selection, octets int) {
	r.beginDedup(sel, int(sel.node.total))
	defer r.endDedup()
	spread := int(sel.node.total) > (r.maxSize-(len(r.dst)-r.start))/addressRecordLen(octets) // not always the same ones are left out
	near, first := 0, len(r.dst)
	if r.z.nodeZone != nil && sel.zone == nil {
		sel.zone = r.z.nodeZone
		near = r.appendGroup(sel, octets, spread, false)
		sel.zone = nil
	}
	far, second := 0, len(r.dst)
	if !r.truncated() {
		far = r.appendGroup(sel, octets, spread, near > 0)
	}
	r.answer += near + far
	if !r.truncated() { // else where the walks began is the rotation
		r.rotate(first, near, octets)
		r.rotate(second, far, octets)
	}
}

// appendGroup appends the addresses of the selection, without those of the node's own
// topology zone if only far ones are wanted, and gives how many.
func (r *reply) appendGroup(sel *selection, octets int, spread, onlyFar bool) int {
	n, near, last := 0, uint16(0), (*slice)(nil)
	for c := (cursor{sel: sel, addrLen: octets, rotates: spread}); c.next(); {
		if onlyFar {
			if c.slice != last {
				last, near = c.slice, c.slice.zone(r.z.nodeZone)
			}
			if near != 0 && c.slice.mark(c.entry)&markZone == near {
				continue
			}
		}
		if r.full(addressRecordLen(octets)) {
			break
		}
		at := len(r.dst)
		r.appendAddress(r.at, c.slice.addr(c.entry), r.ttl)
		if !r.dropDuplicate(sel, at) {
			n++
		}
	}
	r.endWalk(sel.steps)
	return n
}
