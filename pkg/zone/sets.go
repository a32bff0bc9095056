// SPDX-License-Identifier: Apache-2.0

package zone

// appendClusterIPs appends the service's addresses of octets each.
func (r *reply) appendClusterIPs(svc *service, octets int) {
	n := 0
	for list := svc.addrs(octets); list != "" && !r.full(addressLen(octets)); list = list[octets:] {
		r.appendAddress(r.at, list[:octets], r.ttl)
		n++
	}
	r.rotate(n, octets)
	r.answer += n
}

// appendEndpoints appends the addresses of the selection, each once: those of the
// node's own topology zone first.
func (r *reply) appendEndpoints(sel *selection, octets int) {
	skip := 0
	if n := len(sel.node.slices); sel.by == selectedAll && r.overflows(sel.node, octets) {
		skip = int(r.turn % uint32(n)) // not always the same ones are left out
	}
	if r.z.nodeZone == nil {
		r.appendGroup(sel, octets, skip, groupAll)
		return
	}
	r.appendGroup(sel, octets, skip, groupNear)
	r.appendGroup(sel, octets, skip, groupFar)
}

// overflows tells whether the node's addresses may be more than a message holds.
func (r *reply) overflows(n *node, octets int) bool {
	count := 0
	for _, s := range n.slices {
		count += s.count()
	}
	return count*addressLen(octets) > r.room-r.room/4
}

// A group is a part of a set by nearness.
type group uint8

const (
	groupAll group = iota
	groupNear
	groupFar
)

// appendGroup appends the addresses of a group and rotates them.
func (r *reply) appendGroup(sel *selection, octets, skip int, g group) {
	n, near, last := 0, uint16(0), (*slice)(nil)
	for c := (cursor{sel: sel, octets: octets, skip: skip}); c.next(); {
		if g != groupAll {
			if c.slice != last {
				last, near = c.slice, c.slice.zone(r.z.nodeZone)
			}
			isNear := near != 0 && c.slice.mark(c.entry)&markZone == near
			if isNear != (g == groupNear) {
				continue
			}
		}
		if !c.firstAddr() {
			continue
		}
		if r.full(addressLen(octets)) {
			break
		}
		r.appendAddress(r.at, c.slice.addr(c.entry), r.ttl)
		n++
	}
	r.rotate(n, octets)
	r.answer += n
}
