// SPDX-License-Identifier: Apache-2.0

package zone

import "slices"

// A node is what is known of one service's name: the service and the slices that
// say they belong to it, either of which may be missing. It is immutable, so that
// an answer is made from one moment's state.
type node struct {
	key     string // the name's two labels in wire form
	svc     *service
	slices  []*slice
	twins   bool // some address or own name may occur more than once in slices
	partial bool // the service or a slice was refused
}

// with is the node with one slice replaced; either may be nil.
func (n *node) with(old, now *slice) *node {
	changed := &node{key: n.key, svc: n.svc, slices: make([]*slice, 0, len(n.slices)+1)}
	for _, s := range n.slices {
		if s == old {
			s, now = now, nil // in the old one's place
		}
		if s != nil {
			changed.slices = append(changed.slices, s)
		}
	}
	if now != nil {
		changed.slices = append(changed.slices, now)
	}
	changed.slices = slices.Clip(changed.slices)
	changed.findRefused()
	return changed
}

// withService is the node with another service, or none.
func (n *node) withService(svc *service) *node {
	changed := &node{key: n.key, svc: svc, slices: n.slices, twins: n.twins}
	changed.findRefused()
	return changed
}

// findRefused sets partial after a change.
func (n *node) findRefused() {
	n.partial = n.svc != nil && n.svc.refused || slices.ContainsFunc(n.slices, (*slice).refused)
}

// empty tells whether nothing is known of the name.
func (n *node) empty() bool { return n.svc == nil && len(n.slices) == 0 }

// findTwins sets twins after a change. If there were none before, it is only the
// changed slice that can have brought some.
func (n *node) findTwins(before bool, changed *slice) {
	if !before {
		n.twins = changed != nil && n.hasTwins(changed)
		return
	}
	n.twins = slices.ContainsFunc(n.slices, n.hasTwins)
}

// hasTwins tells whether an address or own name of s occurs again in s or in
// another slice of the node. An own name that spells an address counts as one that
// does: the endpoint with that address may have no other name.
func (n *node) hasTwins(s *slice) bool {
	if s.spells() {
		return true
	}
	for e := range s.count() {
		if e > 0 && s.addr(e) == s.addr(e-1) {
			return true
		}
	}
	for k := 1; k < int(s.named); k++ {
		if s.label(s.ordered(k)) == s.label(s.ordered(k-1)) {
			return true
		}
	}
	return slices.ContainsFunc(n.slices, func(o *slice) bool { return o != s && s.meets(o) })
}

// spells tells whether an own name is the name of an address.
func (s *slice) spells() bool {
	var label [64]byte
	var addr [16]byte
	for k := range int(s.named) {
		if spelledAddr(label[:copy(label[:], s.label(s.ordered(k)))], &addr) != nil {
			return true
		}
	}
	return false
}

// meets tells whether two slices have an address or an own name in common.
func (s *slice) meets(o *slice) bool {
	var buf [16]byte
	if s.n4 > 0 && o.n4 > 0 || s.n6 > 0 && o.n6 > 0 {
		for e := range s.count() {
			if o.holds(buf[:copy(buf[:], s.addr(e))]) {
				return true
			}
		}
	}
	if s.named == 0 || o.named == 0 {
		return false
	}
	var label [64]byte
	for k := range int(s.named) {
		name := label[:copy(label[:], s.label(s.ordered(k)))]
		if first, end := o.called(name); first < end {
			return true
		}
	}
	return false
}

// ready tells whether an endpoint of the service is published.
func (n *node) ready() bool {
	for _, s := range n.slices {
		if s.ready > 0 || n.svc.publish && s.count() > 0 {
			return true
		}
	}
	return false
}
