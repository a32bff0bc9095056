// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"cmp"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An Observer follows the changes of a store, to update what depends on its records. For each change the writer calls Changing, then
// OwnerChanged for each owner, then Changed, with the store's lock held: the methods must be quick, and must not change the store.
type Observer interface {
	// Changing is called before a reader can see any of the change.
	Changing()
	// OwnerChanged is called once readers see the change, with the owner of each name whose answer may have changed. See [Owner].
	// Of the reverse names of a slice's endpoints, only changed ones are reported. It must not keep owner.
	OwnerChanged(owner []byte)
	// Changed is called at the end of a change. Another change may begin and end between Changing and Changed of this one.
	Changed()
}

// A reporter calls the observer. The writer calls the methods of the reporter with writer.mu held.
type reporter struct {
	Observer             // nil: no calls
	domains  [][]byte    // domains of the zones, in canonical wire form
	muted    atomic.Bool // a dump is being restored: OwnerChanged is not called
	notified uint64      // number of calls of OwnerChanged
	buf      []byte      // room for the argument of OwnerChanged
}

// begin begins a change, which ends with the returned function.
func (o *reporter) begin() (end func()) {
	if o.Observer == nil {
		return func() {}
	}
	o.Changing()
	return o.Changed
}

func (o *reporter) silent() bool { return o.Observer == nil || o.muted.Load() }

// notifyOwner calls OwnerChanged with an [Owner], and keeps the memory of that as buf.
func (o *reporter) notifyOwner(owner []byte) {
	o.buf = owner
	o.notified++
	o.OwnerChanged(owner)
}

// notifyName notifies of the name <labels>.<tree>.<domain> for each domain.
func (o *reporter) notifyName(labels, tree string) {
	for _, domain := range o.domains {
		o.notifyOwner(append(append(append(o.buf[:0], labels...), tree...), domain...))
	}
}

// notifyNamespace notifies of the names of a namespace, whose label is in wire form.
func (o *reporter) notifyNamespace(label string) {
	if o.silent() {
		return
	}
	o.notifyName(label, treeService)
	o.notifyName(label, treePod)
}

// notifyPods notifies of <namespace>.pod, the owner of the names of the namespace's pods.
func (o *reporter) notifyPods(namespace string) {
	if !o.silent() {
		o.notifyName(string(appendLabel(nil, namespace)), treePod)
	}
}

// notifyAddr notifies of the reverse name of a packed address.
func (o *reporter) notifyAddr(addr string) { o.notifyOwner(wire.AppendReverse(o.buf[:0], addr)) }

// notifyService notifies of a changed service. It includes the endpoints in the node's slices if their reverse names
// point to the service or did before.
func (o *reporter) notifyService(n *node, old, svc *service) {
	if o.silent() || sameInside(old, svc) {
		return
	}
	o.notifyName(n.key, treeService)
	for _, addrLen := range addrLens() {
		o.notifyAddrs(clusterIPs(old, addrLen), clusterIPs(svc, addrLen), addrLen)
	}
	if owns, owned := ownsEndpoints(svc), ownsEndpoints(old); owns != owned || owns && svc.publish != old.publish {
		for _, sl := range n.slices {
			o.notifyEntries(sl, nil)
		}
	}
}

// sameInside reports whether two services are the same but for their external addresses. Names in external zones have no [Owner]: the
// zone answers them before any cache is asked.
func sameInside(old, svc *service) bool {
	if old == nil || svc == nil {
		return false
	}
	a, b := *old, *svc
	a.data, a.external, b.data, b.external = a.inside(), 0, b.inside(), 0
	return a == b
}

// clusterIPs returns the packed cluster addresses of addrLen bytes each.
func clusterIPs(s *service, addrLen int) string {
	if s == nil || s.typ != ClusterIP {
		return ""
	}
	return s.addrs(addrLen)
}

// ownsEndpoints reports whether reverse names of endpoints point to the service.
func ownsEndpoints(s *service) bool { return s != nil && s.typ != ExternalName }

// notifyAddrs notifies of the addresses that only one of the lists has. Both are sorted without duplicates.
func (o *reporter) notifyAddrs(a, b string, addrLen int) {
	for a != "" || b != "" {
		switch {
		case b == "" || a != "" && a[:addrLen] < b[:addrLen]:
			o.notifyAddr(a[:addrLen])
			a = a[addrLen:]
		case a == "" || b[:addrLen] < a[:addrLen]:
			o.notifyAddr(b[:addrLen])
			b = b[addrLen:]
		default:
			a, b = a[addrLen:], b[addrLen:]
		}
	}
}

// notifySlice notifies of the change of a slice from old to sl. old is nil for an added slice, sl for a removed one.
func (o *reporter) notifySlice(old, sl *slice) {
	switch {
	case o.silent():
	case old != nil && sl != nil && (old.key != sl.key || old.cluster() != sl.cluster()):
		o.notifySlice(old, nil)
		o.notifySlice(nil, sl)
	default:
		o.notifyName(cmp.Or(sl, old).key, treeService)
		o.notifyEntries(old, sl)
	}
}

// notifyEntries notifies of the addresses whose reverse names differ between two versions of a slice; either may be nil.
func (o *reporter) notifyEntries(a, b *slice) {
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

// firstAddr returns the address that sorts first in a slice: IPv4 before IPv6, an empty one last.
func firstAddr(a, b string) string {
	if b == "" || a != "" && (len(a) < len(b) || len(a) == len(b) && a < b) {
		return a
	}
	return b
}

// samePointers reports whether the entries of a from i to end have the same reverse names as those of b from j on.
func samePointers(a *slice, i, end int, b *slice, j int) bool {
	for ; i < end; i, j = i+1, j+1 {
		markA, markB := a.mark(i)&^markZone, b.mark(j)&^markZone
		if markA != markB || markA&(markHost|markPod) != 0 && a.label(i) != b.label(j) {
			return false
		}
	}
	return true
}

// The trees below the domain, in wire form.
const (
	treeService = "\x03svc"
	treePod     = "\x03pod"
)

// Owner returns the part of a name that names the object its answer depends on, whatever server gives the answer. [Store.Observe] reports
// changes by owner. Name and domain are in canonical wire form, and the result is a part of name:
//
//	<svc>.<ns>.svc.<domain> and all below   <svc>.<ns>.svc.<domain>
//	<ns>.svc.<domain>                       itself
//	<ns>.pod.<domain> and all below         <ns>.pod.<domain>
//	a reverse name of a whole address       itself
//
// It is nil for every other name: those do not depend on a single object.
func Owner(name, domain []byte) []byte {
	if len(domain) > 1 && bytes.HasSuffix(name, domain) {
		return ownerBelow(name, len(name)-len(domain))
	}
	var buf [16]byte
	if addr, _ := wire.ReverseAddr(name, &buf); addr != nil {
		return name
	}
	return nil
}

// ownerBelow is Owner for a name whose bytes end in the domain, if a label begins there.
func ownerBelow(name []byte, domain int) []byte {
	var starts [depthService]int // offsets of the last labels left of the domain, the rightmost first
	depth, at := 0, 0
	for at < domain && name[at] != 0 {
		copy(starts[1:], starts[:])
		starts[0] = at
		depth++
		at += 1 + int(name[at])
	}
	if at != domain || depth < depthNamespace {
		return nil
	}
	switch tree := string(name[starts[0]:domain]); {
	case tree == treeService && depth >= depthService:
		return name[starts[depthService-1]:]
	case tree == treeService, tree == treePod:
		return name[starts[depthNamespace-1]:]
	}
	return nil
}
