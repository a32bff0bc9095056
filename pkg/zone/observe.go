// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// An observer is told whose names have changed. What follows is done by the
// writer, with mu held and after the change was published: who is told and then
// looks sees the new state.
type observer struct {
	domain   []byte             // canonical wire form
	notify   func(owner []byte) // nil: nobody is told
	notified uint64
	buf      []byte
}

// Observe has tell called with the owner of every name that a change may have
// given another answer, in place of whoever was told so far; nil: nobody is. See
// [Owner] for owners. The domain is in canonical wire form. Where nothing changed
// nothing is told; of the endpoints of a slice, those whose reverse names changed.
//
// A reader who asks once tell was called sees the change, or a later one. Changes
// wait for tell: it must be quick, must not change the store, and must not keep
// owner.
func (s *Store) Observe(domain []byte, tell func(owner []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer.domain, s.observer.notify = append([]byte(nil), domain...), tell
}

// say tells of the owner in buf.
func (o *observer) notifyOwner(owner []byte) {
	o.buf = owner
	o.notified++
	o.notify(owner)
}

// name tells of a name in the tree below the domain.
func (o *observer) notifyName(labels, tree string) {
	o.notifyOwner(append(append(append(o.buf[:0], labels...), tree...), o.domain...))
}

// namespace tells of the names that stand for a namespace, whose label is in wire
// form.
func (o *observer) notifyNamespace(label string) {
	if o.notify == nil {
		return
	}
	o.notifyName(label, treeService)
	o.notifyName(label, treePod)
}

// addr tells of the reverse name of a packed address.
func (o *observer) notifyAddr(addr string) { o.notifyOwner(wire.AppendReverse(o.buf[:0], addr)) }

// service tells of the service of the node n, which was old before. The slices of
// the node are told of if their reverse names lead to the service or did.
func (o *observer) notifyService(n *node, old, svc *service) {
	if o.notify == nil {
		return
	}
	o.notifyName(n.key, treeService)
	for _, octets := range []int{4, 16} {
		o.notifyAddrs(clusterIPs(old, octets), clusterIPs(svc, octets), octets)
	}
	if owns, owned := ownsEndpoints(svc), ownsEndpoints(old); owns != owned || owns && svc.publish != old.publish {
		for _, sl := range n.slices {
			o.notifyEntries(sl.slice, nil)
		}
	}
}

// clusterIPs are the packed cluster addresses of octets each.
func clusterIPs(s *service, octets int) string {
	if s == nil || s.typ != ClusterIP {
		return ""
	}
	return s.addrs(octets)
}

// ownsEndpoints tells whether reverse names of endpoints lead to the service.
func ownsEndpoints(s *service) bool { return s != nil && s.typ != ExternalName }

// addrs tells of the addresses that one list has and the other has not. Both are
// sorted and have each address once.
func (o *observer) notifyAddrs(a, b string, octets int) {
	for a != "" || b != "" {
		switch {
		case b == "" || a != "" && a[:octets] < b[:octets]:
			o.notifyAddr(a[:octets])
			a = a[octets:]
		case a == "" || b[:octets] < a[:octets]:
			o.notifyAddr(b[:octets])
			b = b[octets:]
		default:
			a, b = a[octets:], b[octets:]
		}
	}
}

// slice tells of a slice that was old before; either may be nil.
func (o *observer) notifySlice(old, sl *slice) {
	switch {
	case o.notify == nil:
	case old == nil || sl == nil || old.key == sl.key:
		o.notifySliceOwner(old, sl)
		o.notifyEntries(old, sl)
	default:
		o.notifySliceOwner(old, nil)
		o.notifyEntries(old, nil)
		o.notifySliceOwner(sl, nil)
		o.notifyEntries(sl, nil)
	}
}

// owner tells of the service of a slice; either may be nil.
func (o *observer) notifySliceOwner(a, b *slice) {
	if a == nil {
		a = b
	}
	o.notifyName(a.key, treeService)
}

// entries tells of the addresses whose reverse names two versions of a slice
// answer in different ways; either may be nil.
func (o *observer) notifyEntries(a, b *slice) {
	for i, j := 0, 0; ; {
		addr := firstAddr(a.addrAt(i), b.addrAt(j))
		if addr == "" {
			return
		}
		endA, endB := a.runEnd(addr, i), b.runEnd(addr, j)
		if endA-i != endB-j || !samePointers(a, i, endA, b, j) {
			o.notifyAddr(addr)
		}
		i, j = endA, endB
	}
}

// earlier gives the address that comes first in a slice: IPv4 comes before IPv6.
// One that is empty comes last.
func firstAddr(a, b string) string {
	if b == "" || a != "" && (len(a) < len(b) || len(a) == len(b) && a < b) {
		return a
	}
	return b
}

// addrAt is the address of entry e, or empty if there is none.
func (s *slice) addrAt(e int) string {
	if s == nil || e >= s.count() {
		return ""
	}
	return s.addr(e)
}

// endOf gives where the run of entries from e on that have the address ends.
func (s *slice) runEnd(addr string, e int) int {
	for s.addrAt(e) == addr {
		e++
	}
	return e
}

// samePointers tells whether the entries of a from i to end are, for reverse
// names, those of b from j on.
func samePointers(a *slice, i, end int, b *slice, j int) bool {
	for ; i < end; i, j = i+1, j+1 {
		markA, markB := a.mark(i)&^markZone, b.mark(j)&^markZone
		if markA != markB || markA&(markHost|markPod) != 0 && a.label(i) != b.label(j) {
			return false
		}
	}
	return true
}
