// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"slices"
	"sort"
	"sync/atomic"
)

// A node holds the data of one service name: the service and its slices. Either may be missing. It is immutable, so an
// answer uses one consistent state.
type node struct {
	key    string // the name's two labels in wire form
	svc    *service
	slices []*slice // ordered by their numbers

	total, ready     uint32 // number of entries in the slices, and of ready ones
	named, namedSome uint8  // protocols of named ports, one bit each: in slices with a ready entry; in slices with any entry
	partial          bool   // the service or a slice was refused, see Store.Limit
}

func compareID(s *slice, id uint32) int { return cmp.Compare(s.id, id) }

// withSlice returns the node with now as its slice of that number; nil removes the slice.
func (n *node) withSlice(id uint32, now *slice) *node {
	list := make([]*slice, 0, len(n.slices)+1)
	at, held := slices.BinarySearchFunc(n.slices, id, compareID)
	list = append(list, n.slices[:at]...)
	if now != nil {
		list = append(list, now)
	}
	if held {
		at++
	}
	return n.withSlices(slices.Clip(append(list, n.slices[at:]...)))
}

// withSlices returns the node with other slices, ordered by number.
func (n *node) withSlices(list []*slice) *node {
	changed := &node{key: n.key, svc: n.svc, slices: list}
	for _, s := range list {
		changed.total += uint32(s.count())
		changed.ready += s.ready
		if s.count() > 0 {
			changed.namedSome |= s.protocols
		}
		if s.ready > 0 {
			changed.named |= s.protocols
		}
	}
	changed.updatePartial()
	return changed
}

// withService returns the node with another service, or nil for none.
func (n *node) withService(svc *service) *node {
	changed := *n
	changed.svc = svc
	changed.updatePartial()
	return &changed
}

// updatePartial sets partial from the service and the slices.
func (n *node) updatePartial() {
	n.partial = n.svc != nil && n.svc.refused || slices.ContainsFunc(n.slices, (*slice).refused)
}

// slice returns the slice with the number, or nil.
func (n *node) slice(id uint32) *slice {
	if at, ok := slices.BinarySearchFunc(n.slices, id, compareID); ok {
		return n.slices[at]
	}
	return nil
}

// mayHaveDuplicates reports whether the node's slices may have an address, or an endpoint's name, more than once.
func (n *node) mayHaveDuplicates() bool {
	return len(n.slices) > 1 || len(n.slices) == 1 && n.slices[0].hasDuplicates
}

// empty reports whether the node has neither a service nor slices.
func (n *node) empty() bool { return n.svc == nil && len(n.slices) == 0 }

// hasPublished reports whether an endpoint of the service is published.
func (n *node) hasPublished() bool { return n.ready > 0 || n.svc.publish && n.total > 0 }

// hasProtocol reports whether a published endpoint has a named port of the protocol.
func (n *node) hasProtocol(p Protocol) bool {
	set := n.named
	if n.svc.publish {
		set = n.namedSome
	}
	return set>>p&1 != 0
}

// A namespace is a name that a Namespace object or a service proves to exist.
type namespace struct {
	label    string       // in wire form
	declared atomic.Bool  // there is a Namespace object
	services atomic.Int32 // number of its services
}

// exists reports whether the namespace exists. A service in it proves that, even before the Namespace object arrives.
func (n *namespace) exists() bool {
	return n != nil && (n.declared.Load() || n.services.Load() > 0)
}

// A pod is a Pod object, packed. It is immutable.
type pod struct {
	namespace string // label
	name      string
	data      string // IPv4 addresses, IPv6 addresses
	n4        int    // number of IPv4 addresses
}

func packPod(p Pod) *pod {
	v4, v6 := packAddrs(p.Addrs)
	return &pod{namespace: p.Namespace, name: p.Name, data: string(append(v4, v6...)), n4: len(v4) / 4}
}

// addrs returns the packed addresses of addrLen bytes each.
func (p *pod) addrs(addrLen int) string {
	if addrLen == 4 {
		return p.data[:4*p.n4]
	}
	return p.data[4*p.n4:]
}

// containsAddr reports whether addr is one of the packed addresses, which are sorted.
func containsAddr(list string, addr []byte) bool {
	n := len(addr)
	at := n * sort.Search(len(list)/n, func(i int) bool { return list[i*n:(i+1)*n] >= string(addr) })
	return at < len(list) && list[at:at+n] == string(addr)
}
