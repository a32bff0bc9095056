// SPDX-License-Identifier: Apache-2.0

package netif

import "net/netip"

// loIndex is the index of lo in every network namespace.
const loIndex = 1

// A kernel is what netif asks of the kernel, in one network namespace. Its errors are
// this package's where errors.go has one for them.
type kernel interface {
	// link returns the link of that name or alternative name, errNone if there is none.
	link(name string) (device, error)

	// name returns the name of the link with that index, errVanished if there is none.
	name(index int) (string, error)

	// ports says how many links are ports of the one with that index.
	ports(index int) (int, error)

	// create makes a link, Dummy or Bridge, that is down and makes no addresses itself.
	// errExists if there is one of that name, ErrUnsupported if the kernel has no such kind.
	create(name string, kind Kind) error

	destroy(index int) error
	setAlias(index int, alias string) error
	setUp(index int) error

	// addresses returns those of one link, or of all with index 0.
	addresses(index int) ([]address, error)

	// put adds an address with mark to a link; replace: gives the one that is there the mark.
	// An IPv6 address of another prefix length on that link is errExists.
	put(index int, a netip.Addr, mark uint32, replace bool) error

	// drop takes an address from a link. It is no error if it is not there.
	drop(index int, p netip.Prefix) error

	// events returns the changes from now on of the link called name, of lo, and of
	// the given addresses wherever they are.
	events(name string, addrs []netip.Addr) (events, error)

	close()
}

// events are those of a kernel.
type events interface {
	// next returns when there was an event, or events may have been lost. An error is final.
	next() error

	// close ends a next that waits.
	close()
}

// A device is a link.
type device struct {
	index  int
	name   string
	kind   string // as `ip -d link` names it: "dummy", "vlan"; "lo"; "device" for hardware
	alias  string
	up     bool
	master int // index of what it is a port of; 0: nothing
}

// An address is an address of a link.
type address struct {
	index     int
	prefix    netip.Prefix // not masked
	mark      uint32       // its metric
	tentative bool         // not usable yet
	failed    bool         // not usable: another node answered for it
}
