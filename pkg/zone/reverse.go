// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// reverse answers a name outside of the domain: that of an address the store
// knows or, if it knows none, that is in a cluster range.
func (z *Zone) reverse(q *wire.Query, c Client, now time.Time, dst []byte, last bool) ([]byte, Result) {
	foreign := Result{Verdict: NotInZone, EDE: wire.EDENone}
	var buf [16]byte
	addr, tree := wire.ReverseAddr(q.Name(), &buf)
	if addr == nil {
		return dst, foreign
	}
	r := z.newReply(q, c, now, dst, last)
	r.name, r.at, r.apex, r.reverse = q.Name(), wire.HeaderLen, wire.HeaderLen+tree, true
	r.begin()
	on := needsServices
	if n := z.store.serviceAt(addr, z); n != nil {
		r.appendPTR(nil, n.key)
	} else if r.appendEndpointPTRs(addr); r.answer > 0 {
		on = needsEndpoints
	}
	var res Result
	switch {
	case (r.answer > 0 || r.truncated()) && q.Type == wire.TypePTR:
		res = r.positive(on)
	case r.answer > 0 || r.truncated():
		r.clear()
		res = r.nodata(needsNothing)
	case !z.inRanges(addr):
		return dst, foreign
	case !z.allSlices:
		res = r.denyUnlessFallback(needsEndpoints)
	default:
		res = r.nxdomain(needsEndpoints)
	}
	return r.dst, res
}

// clear takes the records back, and with them that there were more.
func (r *reply) clear() {
	r.dst = r.dst[:r.start+questionEnd(r.q)]
	r.dst[r.start+2] &^= bitTruncated
	r.answer = 0
}

func (z *Zone) inRanges(addr []byte) bool {
	a, _ := netip.AddrFromSlice(addr)
	for _, p := range z.ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// appendPTR appends a PTR record for the endpoint's label, with its length, if
// there is one, below the service of the node's key. It is false when the message
// is full.
func (r *reply) appendPTR(label []byte, key string) bool {
	const tree = "\x03svc"
	size := len(label) + len(key) + len(tree) + len(r.z.domain)
	if size > wire.MaxName {
		return true // a name that cannot be
	}
	if r.full(2 + fixedLen + size) {
		return false
	}
	r.appendOwner(r.at)
	r.appendFixed(wire.TypePTR, r.ttl, size)
	r.dst = append(append(r.dst, label...), key...)
	r.dst = append(append(r.dst, tree...), r.z.domain...)
	r.answer++
	return true
}

// shown tells whether the names of the node are the zone's to give.
func (z *Zone) exposes(n *node) bool {
	label := keyNamespace(n.key)
	if z.namespaces != nil {
		if _, ok := z.namespaces[label]; !ok {
			return false
		}
	}
	if !z.knownNamespaces {
		return true
	}
	var buf [64]byte
	space, _ := z.store.findNamespace(buf[:copy(buf[:], label)])
	return space != nil && space.declared.Load()
}

// serviceAt gives the node of the service that has the address, or nil.
func (s *Store) serviceAt(addr []byte, z *Zone) *node {
	hash := s.hash(addr)
	t := s.nodesByAddr.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil
		}
		if n := s.nodes.load(id); n != nil && n.svc != nil && n.svc.hasAddr(addr) && z.exposes(n) {
			return n
		}
		pos = after
	}
}

// maxPointers is the most PTR records of one address: some 2 KiB with usual names.
// Anybody who may write slices can give any address more names.
const maxPTRs = 32

// stepsPointer is what a slice with the address costs the budget: to find its service.
const stepsPTR = 64

// endpointsAt appends a PTR record for every name that an endpoint with the
// address has, up to maxPointers: with each turn others.
func (r *reply) appendEndpointPTRs(addr []byte) {
	s := r.z.store
	slices, _ := newCandidateChain(&s.slicesByAddr, s.hash(addr), r.rotation)
	for {
		id, ok := slices.next()
		if !ok {
			return
		}
		if sl := s.slices.load(id); sl != nil && !r.appendSlicePTRs(sl, addr) {
			return
		}
	}
}

// sliceAt appends the PTR records for the entries of a slice with the address, if
// there are any. It is false when no more can be.
func (r *reply) appendSlicePTRs(sl *slice, addr []byte) bool {
	if r.steps -= stepsPTR; r.steps < 0 {
		r.endWalk(r.steps)
		return false
	}
	var buf [2 * (1 + wire.MaxLabel)]byte
	n, _ := r.z.store.findNode(buf[:copy(buf[:], sl.key)])
	if n == nil || n.svc == nil || n.svc.typ == ExternalName || !r.z.exposes(n) {
		return true
	}
	sel := r.selectAll(n)
	first, end := sl.rangeByAddr(addr)
	skip := 0
	if end-first > maxPTRs {
		skip, _ = rotationStart(r.rotation, end-first)
	}
	for i := range end - first {
		if r.steps--; r.steps < 0 {
			r.endWalk(r.steps)
			return false
		}
		e := first + (skip+i)%(end-first)
		if (sel.publish || sl.mark(e)&markReady != 0) && !r.appendEntryPTR(&sel, sl, e) {
			return false
		}
	}
	return true
}

// entryAt appends the PTR record for an entry, unless it is there already. It is false
// when no more can be.
func (r *reply) appendEntryPTR(sel *selection, sl *slice, e int) bool {
	var label [64]byte
	name := sel.appendName(label[:0], sl, e)
	switch {
	case r.hasPTR(name, sl.key):
		return true
	case r.answer == maxPTRs:
		r.limited = true
		return false
	}
	return r.appendPTR(name, sl.key)
}

// pointsTo reports whether there is a PTR record to the name already, of which there
// are few.
func (r *reply) hasPTR(label []byte, key string) bool {
	records := r.dst[r.start+questionEnd(r.q):]
	for len(records) > 0 {
		data := records[2+fixedLen:]
		size := int(records[fixedLen])<<8 | int(records[fixedLen+1])
		if size >= len(label)+len(key) && string(data[:len(label)]) == string(label) && string(data[len(label):len(label)+len(key)]) == key {
			return true
		}
		records = data[size:]
		r.steps--
	}
	return false
}
