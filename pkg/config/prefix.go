// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
)

// prefix returns the value of n when it is a prefix without host bits, and reports anything else.
func (n node) prefix() (netip.Prefix, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p, n.rejectFlaw(prefixFlaw(p))
	}
	hint := "write it like 10.96.0.0/12"
	if a, err := netip.ParseAddr(text); err == nil {
		hint = fmt.Sprintf("write %s/%d for one address", a.WithZone("").Unmap(), a.Unmap().BitLen())
	}
	n.reject("not a prefix", hint)
	return netip.Prefix{}, false
}

// prefixFlaw says what keeps a prefix from being the only spelling of its addresses.
func prefixFlaw(p netip.Prefix) flaw {
	if a := p.Addr(); a.Is4In6() {
		f := flaw{what: "an IPv4 prefix in IPv6 form"}
		if short, err := a.Unmap().Prefix(p.Bits() - (a.BitLen() - a.Unmap().BitLen())); err == nil {
			f.hint = "write " + short.String()
		}
		return f
	}
	if p != p.Masked() {
		return flaw{what: "an address with bits beyond the prefix length", hint: "write " + p.Masked().String()}
	}
	return flaw{}
}

// client returns the value of n when it is a prefix or one address, as a prefix of all its bits. It reports anything else.
func (n node) client() (netip.Prefix, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return netip.Prefix{}, false
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, n.rejectFlaw(prefixFlaw(p))
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		hint := ""
		if _, err := netip.ParseAddrPort(text); err == nil {
			hint = "leave out the port: a client comes from any"
		}
		n.reject("not an IP address or a prefix", hint)
		return netip.Prefix{}, false
	}
	f := addressFlaw(a)
	switch {
	case f.what != "":
	case a.IsUnspecified():
		f = flaw{what: "not the address of one host", hint: fmt.Sprintf("write %s/0 for every address of the family", a.WithZone(""))}
	case a.Zone() != "":
		f = flaw{what: "an address with a zone", hint: "write " + a.WithZone("").String()}
	}
	return netip.PrefixFrom(a, a.BitLen()), n.rejectFlaw(f)
}
