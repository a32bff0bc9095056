// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"slices"
)

// A node is what is known of one service's name: the service and the slices that
// say they belong to it, either of which may be missing. It is immutable, so that
// an answer is made from one moment's state.
type node struct {
	key    string // the name's two labels in wire form
	svc    *service
	slices []nodeSlice // by number

	total, ready     uint32 // entries of the slices; those that are ready
	named, namedSome uint8  // protocols of named ports: of slices with a ready entry; with any
	partial          bool   // the service or a slice was refused
}

// A nodeSlice is a slice of a node with its number in the store.
type nodeSlice struct {
	slice *slice
	id    uint32
}

func compareID(s nodeSlice, id uint32) int { return cmp.Compare(s.id, id) }

// with is the node with the slice of the number replaced; nil: taken out.
func (n *node) withSlice(id uint32, now *slice) *node {
	changed := &node{key: n.key, svc: n.svc, slices: make([]nodeSlice, 0, len(n.slices)+1)}
	at, held := slices.BinarySearchFunc(n.slices, id, compareID)
	changed.slices = append(changed.slices, n.slices[:at]...)
	if now != nil {
		changed.slices = append(changed.slices, nodeSlice{now, id})
	}
	if held {
		at++
	}
	changed.slices = slices.Clip(append(changed.slices, n.slices[at:]...))
	for _, s := range changed.slices {
		changed.total += uint32(s.slice.count())
		changed.ready += s.slice.ready
		if s.slice.count() > 0 {
			changed.namedSome |= s.slice.protocols
		}
		if s.slice.ready > 0 {
			changed.named |= s.slice.protocols
		}
	}
	changed.updatePartial()
	return changed
}

// withService is the node with another service, or none.
func (n *node) withService(svc *service) *node {
	changed := *n
	changed.svc = svc
	changed.updatePartial()
	return &changed
}

// findRefused sets partial after a change.
func (n *node) updatePartial() {
	n.partial = n.svc != nil && n.svc.refused ||
		slices.ContainsFunc(n.slices, func(s nodeSlice) bool { return s.slice.refused() })
}

// slice gives the slice with the number, or nil.
func (n *node) slice(id uint32) *slice {
	if at, ok := slices.BinarySearchFunc(n.slices, id, compareID); ok {
		return n.slices[at].slice
	}
	return nil
}

// repeats reports whether an address or a name may occur more than once.
func (n *node) mayHaveDuplicates() bool {
	return len(n.slices) > 1 || len(n.slices) == 1 && n.slices[0].slice.hasDuplicates
}

// empty reports whether nothing is known of the name.
func (n *node) empty() bool { return n.svc == nil && len(n.slices) == 0 }

// published reports whether an endpoint of the service is.
func (n *node) hasPublished() bool { return n.ready > 0 || n.svc.publish && n.total > 0 }

// hasProtocol reports whether a published endpoint has a named port of the protocol.
func (n *node) hasProtocol(p Protocol) bool {
	set := n.named
	if n.svc.publish {
		set = n.namedSome
	}
	return set>>p&1 != 0
}
