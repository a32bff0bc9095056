// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Policy says in which order the upstreams of a route are asked.
type Policy uint8

// The policies. With each, others are asked when one is late or fails.
const (
	PolicyFastest    Policy = iota // the quickest first
	PolicySequential               // in the order of the list: the first that does not fail
	PolicyRandom                   // any, each as often as the others
)

func (Policy) words() []string { return []string{"fastest", "sequential", "random"} }

// String returns the spelling of p in a configuration.
func (p Policy) String() string { return spell(p) }

// HTTPMethod says how a query travels over HTTPS (RFC 8484 section 4.1).
type HTTPMethod uint8

// The methods.
const (
	MethodPost HTTPMethod = iota // in the body
	MethodGet                    // in the URL
)

func (HTTPMethod) words() []string { return []string{"post", "get"} }

// String returns the spelling of m in a configuration.
func (m HTTPMethod) String() string { return spell(m) }

// Upstreams are the targets of r with addresses of their own: in place of an HTTPS target that has none stands one
// for each address of Bootstrap.
func (r Route) Upstreams() []Target {
	var list []Target
	for _, t := range r.To {
		if t.Kind != HTTPS || t.Addr.Addr().IsValid() {
			list = append(list, t)
			continue
		}
		for _, a := range r.Bootstrap {
			named := t
			named.Addr = netip.AddrPortFrom(a, t.Addr.Port())
			list = append(list, named)
		}
	}
	return list
}

// routes reads the list of routes.
func routes(dst *[]Route) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		list := make([]Route, len(items))
		seen := map[string]string{}
		for i, item := range items {
			list[i] = item.route()
			name := list[i].Zone
			if first, again := seen[name]; again && name != "" {
				item.report.add(Problem{Path: item.child("zone"), What: quote(name) + ": already at " + first})
				continue
			}
			seen[name] = item.path
		}
		// A zone that could not be read may have been the root.
		if seen["."] == "" && seen[""] == "" {
			n.report.add(Problem{
				Path: n.path, What: `no route for the zone "."`,
				Hint: `add {zone: ".", to: ["/etc/resolv.conf"]}`,
			})
		}
		*dst = list
	}
}

// route returns the value of n as far as it is right, and reports what is not.
func (n node) route() Route {
	r := DefaultRoute("")
	r.inherit()
	if !n.fields(routeFields(&r)) {
		return r
	}
	if r.Zone == "" && n.report.clean(n.child("zone")) {
		n.report.add(Problem{Path: n.child("zone"), What: "missing", Hint: `write "." for all names`})
	}
	if len(r.To) == 0 && n.report.clean(n.child("to")) {
		n.report.add(Problem{Path: n.child("to"), What: "missing", Hint: "name at least one upstream"})
	}
	if n.report.clean(n.child("to"), n.child("bootstrap"), n.child("tls")) {
		n.checkNamed(&r)
		n.checkCertificates(&r)
		n.checkTwice(&r)
	}
	return r
}

// checkNamed reports a host name without addresses, addresses without a host name, and two names for one list of
// addresses.
func (n node) checkNamed(r *Route) {
	first := -1
	for i, t := range r.To {
		switch {
		case t.Kind != HTTPS || t.Addr.Addr().IsValid():
		case first >= 0:
			n.report.add(Problem{
				Path: n.upstream(i), What: quote(t.String()) + ": the second with a host name, after " + n.upstream(first),
				Hint: "bootstrap has the addresses of one host: write https:// and an address with #name behind it",
			})
		default:
			first = i
		}
	}
	switch {
	case first >= 0 && len(r.Bootstrap) == 0:
		n.report.add(Problem{
			Path: n.upstream(first), What: quote(r.To[first].String()) + ": needs " + n.child("bootstrap"),
			Hint: "list the addresses of the host there: no server could be asked for them",
		})
	case first < 0 && len(r.Bootstrap) > 0:
		n.report.add(Problem{
			Path: n.child("bootstrap"), What: "a list: no upstream has a host name in its URL",
			Hint: "leave it out",
		})
	}
}

// checkCertificates reports a file of certificates on a route without a server that presents one.
func (n node) checkCertificates(r *Route) {
	shown := slices.ContainsFunc(r.To, func(t Target) bool { return t.Kind == TLS || t.Kind == HTTPS })
	if r.CA != "" && !shown {
		n.report.add(Problem{
			Path: n.child("tls") + ".ca", What: quote(r.CA) + ": no upstream is asked over TLS or HTTPS",
			Hint: "leave it out, or write tls:// or https:// in " + n.child("to"),
		})
	}
}

// checkTwice reports an address that is asked twice over the same transport.
func (n node) checkTwice(r *Route) {
	type place struct {
		kind TargetKind
		addr netip.AddrPort
	}
	seen := map[place]string{}
	for i, t := range r.To {
		if t.Kind == ResolvConf {
			continue
		}
		one := Route{To: []Target{t}, Bootstrap: r.Bootstrap}
		for _, u := range one.Upstreams() {
			at := place{u.Kind, u.Addr}
			if first, again := seen[at]; again {
				n.report.add(Problem{Path: n.upstream(i), What: fmt.Sprintf("%s: %s is already asked at %s", quote(t.String()), u.Addr, first)})
				break
			}
			seen[at] = n.upstream(i)
		}
	}
}

// upstream is the path of an upstream of the route n.
func (n node) upstream(i int) string { return fmt.Sprintf("%s[%d]", n.child("to"), i) }

// withoutPort returns the value of n when it is an IP address, and reports anything else, with
// a hint of its own if that has a port.
func (n node) withoutPort(hint string) (netip.Addr, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		if _, err := netip.ParseAddrPort(text); err != nil {
			hint = ""
		}
		n.reject("not an IP address", hint)
	}
	return a, err == nil
}

// bootstrap returns the value of n when it is the address of a host, and reports anything else.
func (n node) bootstrap() (netip.Addr, bool) {
	a, ok := n.withoutPort("the port is that of the URL")
	switch {
	case !ok:
		return a, false
	case a.IsUnspecified():
		return a, n.rejectFlaw(flaw{what: "not the address of one host"})
	}
	return a, n.rejectFlaw(addressFlaw(a))
}
