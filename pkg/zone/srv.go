// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// srvFixed is the octets of SRV RDATA before the target (RFC 2782).
const srvFixed = 6

// leastWeight is how many SRV records there are at least where each has the weight 1.
const minRecordsOfWeightOne = 51

// weightOf is the weight of each of n SRV records, as CoreDNS divides it.
func weightOf(n int) uint16 { return uint16(max(1, 100/n)) }

// appendServiceSRV appends one SRV record per port number of a ClusterIP service
// and its addresses. The name has that many labels left of the service's, which
// is the target.
func (r *reply) appendServiceSRV(svc *service, left int, filter *portFilter) {
	at := int(r.offsets[left])
	target := r.name[at:]
	weight := weightOf(max(1, filter.count(svc.ports())*int(svc.n4+svc.n6)))
	if svc.n4+svc.n6 == 0 {
		return
	}
	last := uint16(0)
	for l := svc.ports(); l != ""; l = l.rest() {
		if l.number() == last || !filter.match(l) {
			continue
		}
		if r.full(2 + fixedLen + srvFixed + len(target)) {
			return
		}
		last = l.number()
		r.appendSRV(weight, last, len(target))
		r.dst = append(r.dst, target...)
		r.answer++
	}
	if last == 0 {
		return
	}
	for _, octets := range [2]int{4, 16} {
		for list := svc.addrs(octets); list != "" && !r.fullExtra(addressRecordLen(octets)); list = list[octets:] {
			r.appendAddress(r.at+at, list[:octets], r.ttl)
			r.extra++
		}
	}
}

// appendSRV appends the current name's SRV record up to the target.
func (r *reply) appendSRV(weight, port uint16, target int) {
	r.appendOwner(r.at)
	r.appendFixed(wire.TypeSRV, r.ttl, srvFixed+target)
	r.dst = append(r.dst, 0, 0, byte(weight>>8), byte(weight), byte(port>>8), byte(port))
}

// appendEndpointSRV appends the SRV records of the selection, one per endpoint
// name and port number, and the endpoints' addresses. The name has that many
// labels left of the service's.
func (r *reply) appendEndpointSRV(sel *selection, left int) {
	at := int(r.offsets[left])
	suffix := r.name[at:]
	weight := weightOf(max(1, sel.count(minRecordsOfWeightOne)))
	before := r.answer
	r.beginDedup(sel, maxMessageRecords)
	defer r.endDedup()
	for c := (cursor{sel: sel, rotates: true}); c.next(); {
		if !r.appendEntrySRV(&c, weight, suffix) {
			break
		}
	}
	r.endWalk(sel.steps)
	if r.answer == before || r.truncated() {
		return
	}
	for c := (cursor{sel: sel, rotates: true}); c.next(); {
		if !r.appendTarget(&c, r.at+at, len(suffix)) {
			break
		}
	}
}

// appendEntrySRV appends the SRV records of the entry that c stands at. It is
// false when the message is full.
func (r *reply) appendEntrySRV(c *cursor, weight uint16, suffix []byte) bool {
	var buf [64]byte
	label := c.sel.appendName(buf[:0], c.slice, c.entry)
	size := len(label) + len(suffix)
	if size > wire.MaxName {
		return true // a name that cannot be
	}
	last := uint16(0)
	for l, left := c.ports, c.portCount; left > 0 && l != ""; l = l.rest() {
		if !c.sel.ports.match(l) {
			continue
		}
		left--
		if l.number() == last {
			continue
		}
		if !c.sel.spend(stepsEntry) || r.full(2+fixedLen+srvFixed+size) {
			return false
		}
		last = l.number()
		at := len(r.dst)
		r.appendSRV(weight, last, size)
		r.dst = append(append(r.dst, label...), suffix...)
		if !r.dropDuplicate(c.sel, at) {
			r.answer++
		}
	}
	return true
}

// appendTarget appends the address of the entry that c stands at, owned by its
// name, the rest of which is at the offset in the message. It is false when the
// message is full.
func (r *reply) appendTarget(c *cursor, at, rest int) bool {
	if !c.numbered() {
		return true
	}
	var buf [64]byte
	label := c.sel.appendName(buf[:0], c.slice, c.entry)
	if len(label)+rest > wire.MaxName {
		return true
	}
	addr := c.slice.addr(c.entry)
	if r.fullExtra(len(label) + addressRecordLen(len(addr))) {
		return false
	}
	begin := len(r.dst)
	r.dst = append(r.dst, label...)
	r.appendAddress(at, addr, r.ttl)
	if !r.dropDuplicate(c.sel, begin) {
		r.extra++
	}
	return true
}
