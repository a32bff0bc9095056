// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A reverseName is the reverse name of an address that the zone may know.
type reverseName struct {
	*reply
	addr []byte
}

// newReverseReply returns an empty reply of the zone to q, a reverse name. tree is the offset of in-addr.arpa or ip6.arpa in it.
func newReverseReply(z *Zone, q *wire.Query, c Client, now time.Time, dst []byte, tree int) reply {
	r := newReply(z, q, c, now, dst, false)
	r.name, r.at, r.apex, r.reverse = q.Name(), wire.HeaderLen, wire.HeaderLen+tree, true
	r.begin()
	return r
}

// resolve answers the name. The verdict is NotInZone if the zone does not know the address.
func (r reverseName) resolve() Result {
	on := needsServices
	if r.z.cfg.External {
		r.appendExternal()
	} else if n := r.z.cfg.Store.serviceAt(r.addr, r.z); n != nil {
		r.appendPTR(nil, n.key)
	} else if r.appendEndpoints(); r.answer > 0 {
		on = needsEndpoints
	}
	switch {
	case r.answer == 0 && !r.truncated():
		return r.abandon(NotInZone, wire.EDENone)
	case r.q.Type == wire.TypePTR:
		return r.positive(on)
	}
	r.clear()
	return r.nodata(needsNothing)
}

// appendPTR appends a PTR record to the name of label, with its length byte, below the service of the node's key. label
// may be empty. It reports false if the message is full.
func (r reverseName) appendPTR(label []byte, key string) bool {
	size := len(label) + len(key) + len(r.z.tree) + len(r.z.domain)
	if size > wire.MaxName {
		return true // the name would be too long
	}
	if r.full(2 + fixedLen + size) {
		return false
	}
	r.appendOwner(r.at)
	r.appendFixed(wire.TypePTR, r.ttl, size)
	r.dst = append(append(r.dst, label...), key...)
	r.dst = append(append(r.dst, r.z.tree...), r.z.domain...)
	r.answer++
	return true
}

// appendExternal appends a PTR record for every service with the external address, up to maxPTRs, others with each
// rotation.
func (r reverseName) appendExternal() {
	s := r.z.cfg.Store
	chain, _ := newCandidateChain(&s.nodesByExternal, s.hash(r.addr), r.rotation)
	for id, ok := chain.next(); ok; id, ok = chain.next() {
		if !r.spend(stepsPTR) {
			r.endWalk()
			return
		}
		n := s.nodes.load(id)
		if n == nil || !r.z.exposesNode(n) {
			continue
		}
		if e := n.svc.outside(); !containsAddr(e.addrs(len(r.addr)), r.addr) || r.hasPTR(nil, n.key) {
			continue
		}
		if r.answer == maxPTRs {
			r.limited = true
			return
		}
		if !r.appendPTR(nil, n.key) {
			return
		}
	}
}

// maxPTRs bounds the PTR records of one address: about 2 KiB with usual names. Any user who can write slices can give an
// address more names.
const maxPTRs = 32

// stepsPTR is the cost in steps of a service or slice that may have the address: a node is looked up.
const stepsPTR = 64

// appendEndpoints appends a PTR record for every name of an endpoint with the address, up to maxPTRs, others with each
// rotation. Endpoints with a hostname come first: a pod that looks up its own name uses the first record, which must not change.
// Finding these has a budget of its own, minSteps.
func (r reverseName) appendEndpoints() {
	rest := r.steps
	r.steps = minSteps
	more := r.walk(true)
	r.steps = rest
	if more && !r.walk(false) {
		r.endWalk()
	}
}

// walk appends the PTR records for entries with the address, with hosts only for those with a hostname. It reports false if no more
// records fit or, without hosts, if the budget is spent.
func (r reverseName) walk(hosts bool) bool {
	s := r.z.cfg.Store
	chain, _ := newCandidateChain(&s.slicesByAddr, s.hash(r.addr), r.rotation)
	for id, ok := chain.next(); ok; id, ok = chain.next() {
		if !r.spend(stepsSlice) {
			return hosts
		}
		if sl := s.slices.load(id); sl != nil && (!hosts || r.hasHost(sl)) && !r.appendSlice(sl, hosts) {
			return hosts && r.steps < 0
		}
	}
	return true
}

// hasHost reports whether an entry of the slice with the address has a hostname. It may be false if the budget is spent.
func (r reverseName) hasHost(sl *slice) bool {
	first, end := sl.rangeByAddr(r.addr)
	for e := first; e < end && r.spend(stepsEntry); e++ {
		if sl.mark(e)&markHost != 0 {
			return true
		}
	}
	return false
}

// appendSlice appends the PTR records for a slice's entries with the address, with hosts only for those with a hostname. It reports
// false if no more records fit, or if the budget is spent.
func (r reverseName) appendSlice(sl *slice, hosts bool) bool {
	if !r.spend(stepsPTR) {
		return false
	}
	var buf [2 * (1 + wire.MaxLabel)]byte
	n, _ := r.z.cfg.Store.findNode(buf[:copy(buf[:], sl.key)])
	if n == nil || n.svc == nil || n.svc.typ == ExternalName || r.z.inSet() && n.svc.typ == ClusterIP || !r.z.exposesNode(n) {
		return true
	}
	sel := newSelection(r.reply, n)
	first, end := sl.rangeByAddr(r.addr)
	skip := 0
	if end-first > maxPTRs {
		skip, _ = rotationStart(r.rotation, end-first)
	}
	for i := range end - first {
		if !r.spend(stepsEntry) {
			return false
		}
		e := first + (skip+i)%(end-first)
		mark := sl.mark(e)
		if (n.svc.publish || mark&markReady != 0) && (!hosts || mark&markHost != 0) && !r.appendEntry(&sel, sl, e) {
			return false
		}
	}
	return true
}

// appendEntry appends the PTR record for an entry, unless it is a duplicate. It reports false if no more fit.
func (r reverseName) appendEntry(sel *selection, sl *slice, e int) bool {
	var label [2 * (1 + wire.MaxLabel)]byte
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
