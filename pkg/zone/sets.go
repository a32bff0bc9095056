// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"math"

	"github.com/nodecache/node-cache/pkg/wire"
)

// appendRotated appends the current name's addresses to the answer, rotated, and returns their number.
func (r *reply) appendRotated(list string, addrLen int, ttl uint32) int {
	at := len(r.dst)
	n := r.appendAddrs(r.at, list, addrLen, ttl)
	r.rotate(at, n, addrLen)
	r.answer += n
	return n
}

// appendEndpoints appends the addresses of the selection without duplicates, those of the node's topology zone first.
func (r *reply) appendEndpoints(sel *selection, addrLen int) {
	r.beginDedup(sel, int(sel.node.total))
	defer r.endDedup()
	if int(sel.node.total) <= (r.maxSize-(len(r.dst)-r.start))/addressRecordLen(addrLen) {
		sel.rotation = 0 // none is left out: the records are rotated instead
	}
	near, first := 0, len(r.dst)
	if r.z.nodeZone != nil && sel.zone == nil {
		sel.zone = r.z.nodeZone
		near = r.appendGroup(sel, addrLen, false)
		sel.zone = nil
	}
	far, second := 0, len(r.dst)
	if !r.truncated() {
		far = r.appendGroup(sel, addrLen, near > 0)
	}
	r.answer += near + far
	r.near = near
	if !r.truncated() { // otherwise the start of the walks is the rotation
		r.rotate(first, near, addrLen)
		r.rotate(second, far, addrLen)
	}
}

// appendGroup appends the addresses of the selection, with onlyFar those outside of the node's topology zone, and returns
// their number.
func (r *reply) appendGroup(sel *selection, addrLen int, onlyFar bool) int {
	n, near, last := 0, uint16(0), (*slice)(nil)
	sel.walk(addrLen, func(s *slice, e int) bool {
		if onlyFar {
			if s != last {
				last, near = s, s.zone(r.z.nodeZone)
			}
			if near != 0 && s.mark(e)&markZone == near {
				return true
			}
		}
		at := len(r.dst)
		r.appendAddress(r.at, s.addr(e), r.ttl)
		switch {
		case r.dropDuplicate(at):
			return true
		case r.tooLong(at):
			r.dst[r.start+2] |= bitTruncated
			return false
		}
		n++
		return true
	})
	r.endWalk()
	return n
}

// srvFixed is the size of SRV RDATA before the target (RFC 2782), in bytes.
const srvFixed = 6

// minRecordsOfWeightOne is the fewest SRV records that have a weight of 1 each.
const minRecordsOfWeightOne = 51

// weightOf returns the weight of each of n SRV records, as in CoreDNS.
func weightOf(n int) uint16 { return uint16(max(1, 100/n)) }

// appendServiceSRV appends one SRV record per port number of a service, and its addresses. The target is the host, if
// there is one, or the service's name, which is that many labels to the right.
func (r *reply) appendServiceSRV(svc *service, host string, left int, filter *portFilter) {
	at, addrs := int(r.offsets[left]), int(svc.n4+svc.n6)
	target := r.name[at:]
	var buf [wire.MaxName]byte
	if host != "" {
		target, addrs = buf[:copy(buf[:], host)], 1
	}
	if addrs == 0 {
		return
	}
	weight := weightOf(max(1, filter.count(svc.ports())*addrs))
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
	for _, addrLen := range addrLens() {
		for list := svc.addrs(addrLen); list != "" && !r.fullExtra(addressRecordLen(addrLen)); list = list[addrLen:] {
			r.appendAddress(r.at+at, list[:addrLen], r.ttl)
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

// appendEndpointSRV appends the SRV records of the selection, one per endpoint name and port number, and the endpoints'
// addresses. The name has that many labels left of the service.
func (r *reply) appendEndpointSRV(sel *selection, left int) {
	at := int(r.offsets[left])
	suffix := r.name[at:]
	weight := weightOf(max(1, sel.count(minRecordsOfWeightOne)))
	before := r.answer
	r.beginDedup(sel, maxMessageRecords)
	defer r.endDedup()
	sel.walk(0, func(s *slice, e int) bool { return r.appendEntrySRV(sel, s, e, weight, suffix) })
	r.endWalk()
	if r.answer == before || r.truncated() {
		return
	}
	sel.walk(0, func(s *slice, e int) bool { return !sel.numbered() || r.appendTarget(sel, s, e, r.at+at, len(suffix)) })
}

// appendEntrySRV appends the SRV records of entry e of the current slice. It reports false if the message is full.
func (r *reply) appendEntrySRV(sel *selection, s *slice, e int, weight uint16, suffix []byte) bool {
	var buf [2 * (1 + wire.MaxLabel)]byte
	label := sel.appendName(buf[:0], s, e)
	size := len(label) + len(suffix)
	if size > wire.MaxName {
		return true // the name would be too long
	}
	last := uint16(0)
	for l, left := sel.firstPort, sel.portCount; left > 0 && l != ""; l = l.rest() {
		if !sel.ports.match(l) {
			continue
		}
		left--
		if l.number() == last {
			continue
		}
		if !r.spend(stepsEntry) {
			return false
		}
		last = l.number()
		at := len(r.dst)
		r.appendSRV(weight, last, size)
		r.dst = append(append(r.dst, label...), suffix...)
		if r.dropDuplicate(at) {
			continue
		}
		if r.tooLong(at) {
			r.dst[r.start+2] |= bitTruncated
			return false
		}
		r.answer++
	}
	return true
}

// appendTarget appends the address of entry e. Its owner is the entry's name, whose rest is at the offset in the message. It
// reports false if the message is full.
func (r *reply) appendTarget(sel *selection, s *slice, e, at, rest int) bool {
	begin := len(r.dst)
	r.dst = sel.appendName(r.dst, s, e)
	if len(r.dst)-begin+rest > wire.MaxName {
		r.dst = r.dst[:begin]
		return true
	}
	r.appendAddress(at, s.addr(e), r.ttl)
	if r.dropDuplicate(begin) {
		return true
	}
	if r.tooLong(begin) {
		return false
	}
	r.extra++
	return true
}

// beginDedup starts the detection of duplicates for up to most records of the selection, if there may be any.
func (r *reply) beginDedup(sel *selection, most int) {
	if !sel.node.mayHaveDuplicates() {
		return
	}
	records := min(most, r.maxSize/minRecordLen)
	if r.maxSize == math.MaxInt { // for a transfer
		records = 0
		for _, s := range sel.node.slices {
			records += s.count() * max(1, sel.ports.count(s.ports()))
		}
	}
	slots := 64
	for slots < 2*records {
		slots *= 2
	}
	t := dedupTables.Get().(*dedupTable)
	if slots <= maxDedupSlots {
		t.slots = t.buf[:slots]
		clear(t.slots)
	} else {
		t.slots = make([]uint32, slots)
	}
	r.dedup = t
}
