// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"

	"github.com/nodecache/node-cache/pkg/wire"
)

// The trees below the domain, in wire form.
const (
	treeService = "\x03svc"
	treePod     = "\x03pod"
)

// Owner gives the part of a name that its answer depends on, whoever gives the
// answer: the part that [Store.Observe] tells of. Name and domain are in canonical
// wire form, and the result is a part of name:
//
//	<svc>.<ns>.svc.<domain> and all below   <svc>.<ns>.svc.<domain>
//	<ns>.svc.<domain>                       itself
//	<ns>.pod.<domain> and all below         <ns>.pod.<domain>
//	a reverse name of a whole address       itself
//
// It is nil for every other name: none of them depends on one object.
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

// ownerBelow is Owner for a name that the domain ends, if a label begins where
// the domain does.
func ownerBelow(name []byte, domain int) []byte {
	var starts [depthService]int // of the last labels left of the domain, the rightmost first
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
