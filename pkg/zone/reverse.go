// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// reverse answers a name outside of the domains: the reverse name of a known address, or any name in a reverse zone of the cluster.
func (zs Zones) reverse(q *wire.Query, c Client, now time.Time, dst []byte, last bool) ([]byte, Result) {
	var buf [16]byte
	addr, tree := wire.ReverseAddr(q.Name(), &buf)
	if addr != nil {
		for _, z := range zs {
			if out, res := z.reverseName(q, c, now, dst, addr, tree); res.Verdict == Answered {
				return out, res
			}
		}
	}
	if tree == 0 || len(zs) == 0 || !zs[0].servesReverse(q.Name()) {
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	}
	r := zs[0].newReverseReply(q, c, now, dst, tree)
	r.fallbackFailed = last
	if set := slices.IndexFunc(zs, (*Zone).inSet); set >= 0 {
		r.other = zs[set]
	}
	var res Result
	switch {
	case addr == nil && zs[0].cfg.HasFallback():
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	case addr == nil:
		res = r.nodata(needsNothing) // names of addresses may be below it
	case !zs[0].cfg.AllSlices:
		res = r.denyUnlessFallback(needsEndpoints)
	default:
		res = r.nxdomain(needsEndpoints)
	}
	return r.dst, res
}

// newReverseReply returns an empty reply to q, a reverse name that ends with the tree at that offset.
func (z *Zone) newReverseReply(q *wire.Query, c Client, now time.Time, dst []byte, tree int) reply {
	r := z.newReply(q, c, now, dst, false)
	r.name, r.at, r.apex, r.reverse = q.Name(), wire.HeaderLen, wire.HeaderLen+tree, true
	r.begin()
	return r
}

// reverseName answers the reverse name of an address that the zone knows.
func (z *Zone) reverseName(q *wire.Query, c Client, now time.Time, dst, addr []byte, tree int) ([]byte, Result) {
	r := z.newReverseReply(q, c, now, dst, tree)
	on := needsServices
	if z.cfg.External {
		r.appendExternalPTRs(addr)
	} else if n := z.cfg.Store.serviceAt(addr, z); n != nil {
		r.appendPTR(nil, n.key)
	} else if r.appendEndpointPTRs(addr); r.answer > 0 {
		on = needsEndpoints
	}
	var res Result
	switch {
	case r.answer == 0 && !r.truncated():
		return dst, Result{Verdict: NotInZone, EDE: wire.EDENone}
	case q.Type == wire.TypePTR:
		res = r.positive(on)
	default:
		r.clear()
		res = r.nodata(needsNothing)
	}
	return r.dst, res
}

// servesReverse reports whether the name is in a reverse zone of the cluster.
func (z *Zone) servesReverse(name []byte) bool {
	return slices.ContainsFunc(z.reverseZones, func(zone []byte) bool { return isWithin(name, zone) })
}

// appendPTR appends a PTR record to the name of label, with its length byte, below the service of the node's key. label
// may be empty. It reports false if the message is full.
func (r *reply) appendPTR(label []byte, key string) bool {
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

// exposes reports whether the configuration exposes the namespace, whose label is in wire form, and the kinds that the
// answer depends on.
func (z *Zone) exposes(label []byte) (ok bool, on kindSet) {
	if z.namespaces != nil {
		if _, ok := z.namespaces[string(label)]; !ok {
			return false, needsNothing
		}
	}
	if !z.cfg.KnownNamespaces {
		return true, needsNothing
	}
	n, _ := z.namespaceStore().findNamespace(label)
	return n != nil && n.declared.Load(), needsNamespaces
}

// exposesNode reports whether the node's namespace is exposed.
func (z *Zone) exposesNode(n *node) bool {
	var buf [1 + wire.MaxLabel]byte
	ok, _ := z.exposes(buf[:copy(buf[:], keyNamespace(n.key))])
	return ok
}

// maxPTRs bounds the PTR records of one address: about 2 KiB with usual names. Any user who can write slices can give an
// address more names.
const maxPTRs = 32

// stepsPTR is the cost of a slice with the address: the lookup of its service.
const stepsPTR = 64

// appendEndpointPTRs appends a PTR record for every name of an endpoint with the address, up to maxPTRs, others with each
// rotation. Host names come first: a pod that looks its own name up uses the first one, which must not change. Finding these has a
// budget of its own, minSteps.
func (r *reply) appendEndpointPTRs(addr []byte) {
	rest := r.steps
	r.steps = minSteps
	more := r.walkPTRs(addr, true)
	r.steps = rest
	if more && !r.walkPTRs(addr, false) {
		r.endWalk()
	}
}

// walkPTRs appends the PTR records for entries with the address: those with a host name, or all. It reports false if no more fit, or
// if all are wanted and the budget is spent.
func (r *reply) walkPTRs(addr []byte, hosts bool) bool {
	s := r.z.cfg.Store
	chain, _ := newCandidateChain(&s.slicesByAddr, s.hash(addr), r.rotation)
	for id, ok := chain.next(); ok; id, ok = chain.next() {
		if !r.spend(stepsSlice) {
			return hosts
		}
		if sl := s.slices.load(id); sl != nil && (!hosts || r.hasHost(sl, addr)) && !r.appendSlicePTRs(sl, addr, hosts) {
			return hosts && r.steps < 0
		}
	}
	return true
}

// hasHost reports whether an entry of the slice with the address has a host name, as far as the budget reaches.
func (r *reply) hasHost(sl *slice, addr []byte) bool {
	first, end := sl.rangeByAddr(addr)
	for e := first; e < end && r.spend(stepsEntry); e++ {
		if sl.mark(e)&markHost != 0 {
			return true
		}
	}
	return false
}

// appendSlicePTRs appends the PTR records for a slice's entries with the address, with hosts of those with a host name. It reports
// false if no more fit, or if the budget is spent.
func (r *reply) appendSlicePTRs(sl *slice, addr []byte, hosts bool) bool {
	if !r.spend(stepsPTR) {
		return false
	}
	var buf [2 * (1 + wire.MaxLabel)]byte
	n, _ := r.z.cfg.Store.findNode(buf[:copy(buf[:], sl.key)])
	if n == nil || n.svc == nil || n.svc.typ == ExternalName || r.z.inSet() && n.svc.typ == ClusterIP || !r.z.exposesNode(n) {
		return true
	}
	sel := r.selectAll(n)
	first, end := sl.rangeByAddr(addr)
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
		if (n.svc.publish || mark&markReady != 0) && (!hosts || mark&markHost != 0) && !r.appendEntryPTR(&sel, sl, e) {
			return false
		}
	}
	return true
}

// appendEntryPTR appends the PTR record for an entry, unless it is a duplicate. It reports false if no more fit.
func (r *reply) appendEntryPTR(sel *selection, sl *slice, e int) bool {
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
