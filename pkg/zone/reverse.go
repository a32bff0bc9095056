// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// reverse answers a name outside of the domain: that of an address the store
// knows or, if it knows none, that is in a cluster range.
func (z *Zone) reverse(q *wire.Query, turn uint32, now time.Time, dst []byte, last bool) ([]byte, Result) {
	foreign := Result{Verdict: Foreign, EDE: wire.EDENone}
	var buf [16]byte
	addr, tree := wire.ReverseAddr(q.Name(), &buf)
	if addr == nil {
		return dst, foreign
	}
	r := reply{
		z: z, q: q, turn: turn, now: now, last: last, dst: dst, start: len(dst), room: maxReply, ede: wire.EDENone,
		name: q.Name(), at: wire.HeaderLen, apex: wire.HeaderLen + tree, reverse: true, ttl: z.ttl,
	}
	r.begin()
	on := onServices
	if n := z.store.serviceAt(addr, z); n != nil {
		r.appendPTR(nil, n.key)
	} else if r.endpointsAt(addr); r.answer > 0 {
		on = onEndpoints
	}
	var res Result
	switch {
	case r.answer > 0 && q.Type == wire.TypePTR:
		res = r.positive(on)
	case r.answer > 0:
		r.clear()
		res = r.nodata(onRecord)
	case !z.inRanges(addr):
		return dst, foreign
	case !z.allSlices:
		res = r.outside(onEndpoints)
	default:
		res = r.nxdomain(onEndpoints)
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
func (z *Zone) shown(n *node) bool {
	label := keyNamespace(n.key)
	if z.namespaces != nil {
		if _, ok := z.namespaces[label]; !ok {
			return false
		}
	}
	if !z.known {
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
		if n := s.nodes.load(id); n != nil && n.svc != nil && n.svc.holds(addr) && z.shown(n) {
			return n
		}
		pos = after
	}
}

// endpointsAt appends a PTR record for every name that an endpoint with the
// address has.
func (r *reply) endpointsAt(addr []byte) {
	s := r.z.store
	hash := s.hash(addr)
	t := s.slicesByAddr.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return
		}
		if sl := s.slices.load(id); sl != nil && !r.sliceAt(sl, addr) {
			return
		}
		pos = after
	}
}

// sliceAt appends the PTR records for the entries of a slice with the address, if
// there are any. It is false when the message is full.
func (r *reply) sliceAt(sl *slice, addr []byte) bool {
	var buf [2 * (1 + wire.MaxLabel)]byte
	n, _ := r.z.store.findNode(buf[:copy(buf[:], sl.key)])
	if n == nil || n.svc == nil || n.svc.kind == ExternalName || !r.z.shown(n) {
		return true
	}
	sel := r.selectAll(n)
	first, end := sl.at(addr)
	for e := first; e < end; e++ {
		if !sel.publish && sl.mark(e)&markReady == 0 {
			continue
		}
		var label [64]byte
		name := sel.appendName(label[:0], sl, e)
		if r.pointsTo(name, sl.key) {
			continue
		}
		if !r.appendPTR(name, sl.key) {
			return false
		}
	}
	return true
}

// pointsTo tells whether there is a PTR record to the name already.
func (r *reply) pointsTo(label []byte, key string) bool {
	records := r.dst[r.start+questionEnd(r.q):]
	for len(records) > 0 {
		data := records[2+fixedLen:]
		size := int(records[fixedLen])<<8 | int(records[fixedLen+1])
		if size >= len(label)+len(key) && string(data[:len(label)]) == string(label) && string(data[len(label):len(label)+len(key)]) == key {
			return true
		}
		records = data[size:]
	}
	return false
}
