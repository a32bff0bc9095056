// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strings"
)

// addresses reads a list of IP addresses to listen on.
func addresses(dst *[]netip.Addr) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		if len(items) == 0 {
			n.report.add(Problem{Path: n.path, What: "empty", Hint: "name at least one address"})
			return
		}
		list := make([]netip.Addr, 0, len(items))
		seen := map[netip.Addr]node{}
		for _, item := range items {
			a, ok := item.address()
			if !ok {
				continue
			}
			if first, again := seen[a]; again {
				item.reject("already at "+first.path, "")
				continue
			}
			seen[a] = item
			list = append(list, a)
		}
		rejectCovered(list, seen)
		*dst = list
	}
}

// rejectCovered reports each address that another one of the list stands for.
func rejectCovered(list []netip.Addr, nodes map[netip.Addr]node) {
	wides := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !a.IsUnspecified() })
	for _, a := range list {
		for _, wide := range wides {
			if a != wide && covers(wide, a) {
				nodes[a].reject("already covered by "+wide.String(), "list single addresses, or the unspecified one alone")
				break
			}
		}
	}
}

// covers reports whether a socket on wide takes what is sent to a. One on [::] takes IPv4 as well.
func covers(wide, a netip.Addr) bool {
	return wide == a || (wide.IsUnspecified() && (wide.Is6() || a.Is4()))
}

// address returns the value of n when it is an IP address to listen on, and reports anything else.
func (n node) address() (netip.Addr, bool) {
	text, ok := n.str()
	if !ok {
		n.reject("not an IP address", "")
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		hint := ""
		if _, err := netip.ParseAddrPort(text); err == nil {
			hint = "the port is listen.port"
		}
		n.reject("not an IP address", hint)
		return netip.Addr{}, false
	}
	return a, n.rejectFlaw(addressFlaw(a))
}

// addressFlaw says what keeps an address from being one end of a connection.
func addressFlaw(a netip.Addr) flaw {
	switch {
	case a.Is4In6():
		return flaw{what: "an IPv4 address in IPv6 form", hint: "write the address as " + a.Unmap().String()}
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return flaw{what: "not the address of one host"}
	}
	return flaw{}
}

// optionalEndpoint reads an address with its port. The empty string is the zero value.
func optionalEndpoint(dst *netip.AddrPort) func(node) {
	return func(n node) {
		text, ok := n.str()
		if ok && text == "" {
			*dst = netip.AddrPort{}
			return
		}
		a, err := netip.ParseAddrPort(text)
		f := addressFlaw(a.Addr())
		switch {
		case !ok || err != nil:
			hint := `write it like 127.0.0.1:9253, or "" for none`
			if port, found := strings.CutPrefix(text, ":"); found && isDigits(port) {
				hint = "write 127.0.0.1:" + port + ", or 0.0.0.0:" + port + " for every IPv4 address"
			}
			n.reject("not an IP address and a port", hint)
		case a.Port() == 0:
			n.reject("port 0", portHint)
		case n.rejectFlaw(f):
			*dst = a
		}
	}
}
