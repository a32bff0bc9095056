// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"hash/fnv"
	"net/netip"
	"strings"
)

// loIndex is the index of lo in every network namespace.
const loIndex = 1

// A kernel reads and changes the links of one network namespace. It returns the errors
// of errors.go where one of them applies.
type kernel interface {
	// link returns the link with that name or alternative name, or errNoLink.
	link(name string) (device, error)

	// linkName returns the name of the link with that index, or errLinkGone.
	linkName(index int) (string, error)

	// portCount returns how many links are ports of the one with that index.
	portCount(index int) (int, error)

	// createLink creates a Dummy or Bridge that is down and gets no link-local address. It
	// returns errExists if the name is in use, ErrUnsupported if the kernel has no such kind.
	createLink(name string, kind Kind) error

	deleteLink(index int) error
	setAlias(index int, alias string) error
	setUp(index int) error

	// addresses returns the addresses of one link, or of all links for index 0.
	addresses(index int) ([]address, error)

	// putAddress adds an address with mark to a link. With replace it changes the mark of an existing address.
	// It returns errExists if the link has the IPv6 address with another prefix length.
	putAddress(index int, a netip.Addr, mark uint32, replace bool) error

	// removeAddress removes an address from a link. A missing one is no error.
	removeAddress(index int, p netip.Prefix) error

	// events subscribes to changes of the link called name, of lo, and of addrs on any
	// link. next waits for a change. It also returns if events may have been lost. After
	// an error it must not be called again. stop makes a waiting next return an error.
	events(name string, addrs []netip.Addr) (next func() error, stop func(), err error)

	close()
}

// A device is a link.
type device struct {
	index  int
	name   string
	kind   Kind // also kinds without a constant: "vlan"; "device" for hardware
	alias  string
	up     bool
	master int // index of the link whose port it is; 0: none
}

// An address is an address of a link.
type address struct {
	index     int          // index of the link
	prefix    netip.Prefix // not masked
	mark      uint32       // metric of the address
	tentative bool         // not usable yet: duplicate address detection runs
	failed    bool         // not usable: duplicate address detection failed
}

const aliasPrefix = "node-cache "

// ownerOf returns the owner in the alias of a link.
func ownerOf(alias string) (owner string, ours bool) {
	return strings.CutPrefix(alias, aliasPrefix)
}

// An address on lo has no alias. Its metric (IFA_RT_PRIORITY, Linux 4.18) is the mark of
// its owner. The kernel uses the metric for the prefix route only, which a /32 and a
// /128 without that route do not have.
const (
	markPrefix = 0x4e000000 // 'N', and the owner's hash below it
	markMask   = 0xff000000
)

func markOf(owner string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(owner)) // never fails
	sum := h.Sum32()
	return markPrefix | (sum^sum>>24)&^uint32(markMask)
}

// isMark reports whether a metric is an agent's mark.
func isMark(metric uint32) bool { return metric&markMask == markPrefix }
