// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// DNS64 makes IPv6 addresses of IPv4 ones (RFC 6147), for clients that reach the latter through a NAT64.
type DNS64 struct {
	Prefix       netip.Prefix // of IPv6, its length 32, 40, 48, 56, 64 or 96 (RFC 6052 section 2.2); the zero value, the default: off
	TranslateAll bool         // also where there are IPv6 addresses; default false
	Clients      DNS64Clients // default DNS64IPv6
}

// DNS64Clients says who gets these addresses.
type DNS64Clients uint8

// The clients.
const (
	DNS64IPv6 DNS64Clients = iota // those that ask over IPv6
	DNS64All                      // all
)

func (DNS64Clients) words() []string { return []string{"ipv6", "all"} }

// String returns the spelling of c in a configuration.
func (c DNS64Clients) String() string { return spell(c) }

// dns64Prefix reads the prefix of a NAT64. The empty string is the zero value.
func dns64Prefix(dst *netip.Prefix) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		if text == "" {
			*dst = netip.Prefix{}
			return
		}
		p, err := netip.ParsePrefix(text)
		f := flaw{what: "not a prefix", hint: `write it like 64:ff9b::/96, or "" for none`}
		if err == nil {
			f = dns64Flaw(p)
		}
		if n.rejectFlaw(f) {
			*dst = p
		}
	}
}

// dns64Flaw says what keeps a prefix from being one of RFC 6052.
func dns64Flaw(p netip.Prefix) flaw {
	if f := prefixFlaw(p); f.what != "" {
		return f
	}
	bytes := p.Addr().As16()
	switch {
	case p.Addr().Is4():
		return flaw{what: "not a prefix of IPv6", hint: "write it like 64:ff9b::/96"}
	case !slices.Contains([]int{32, 40, 48, 56, 64, 96}, p.Bits()):
		return flaw{what: fmt.Sprintf("a prefix of %d bits", p.Bits()), hint: "an IPv4 address follows 32, 40, 48, 56, 64 or 96 bits (RFC 6052 section 2.2)"}
	case bytes[8] != 0:
		return flaw{what: "a prefix whose bits 64 to 71 are not zero", hint: "they must be (RFC 6052 section 2.2)"}
	}
	return flaw{}
}
