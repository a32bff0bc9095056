// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// The note about the address of the DNS service, with a hint for pods that do not use it.
const (
	intercepted = "the address of the DNS service is not listened on, its queries are intercepted"
	kubeletHint = "where the kubelets' clusterDNS is the link-local address, write intercept.mode: link-local, and no intercept.services"
)

// listen converts the addresses of bind.
func (c *converter) listen() {
	addresses := c.boundAddresses()
	listensEverywhere := func(s *server) bool { return len(s.all("bind")) == 0 }
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	switch {
	case len(addresses) == 0 || slices.ContainsFunc(c.servers, listensEverywhere):
		c.cfg.Listen.Addresses = []netip.Addr{any6}
		if len(addresses) > 0 {
			c.lost(c.listenAddrs[addresses[0]], "bind", "one server listens on every address, so all do", "list the addresses in listen.addresses")
		}
		if c.cfg.Listen.Port == 53 && len(c.servers) > 0 {
			c.differs(c.firstFile, noBind, "it listens on every address, where a node may have other servers",
				"on a node listen on an address of its own, like 169.254.20.10, with interface.manage; convert --daemonset does that")
		}
		return
	case len(addresses) > 1 && slices.ContainsFunc(addresses, netip.Addr.IsUnspecified):
		only := any4
		if slices.ContainsFunc(addresses, netip.Addr.Is6) {
			if only = any6; !slices.Contains(addresses, any6) {
				c.differs(c.listenAddrs[any4], "bind 0.0.0.0", "it listens on every address, including IPv6, since IPv6 addresses are listed", "list single addresses to avoid that")
			}
		}
		c.listenAddrs[only] = c.listenAddrs[addresses[slices.IndexFunc(addresses, netip.Addr.IsUnspecified)]]
		addresses = []netip.Addr{only}
	}
	c.splitAddresses(addresses)
}

// boundAddresses returns the addresses of bind in all servers, and records the place of each.
func (c *converter) boundAddresses() []netip.Addr {
	var addresses []netip.Addr
	for _, s := range c.servers {
		for _, st := range s.all("bind") {
			for _, a := range bind(&line{&st, c, s, ""}) {
				if !slices.Contains(addresses, a) {
					addresses = append(addresses, a)
					c.listenAddrs[a] = st.at
				}
			}
		}
	}
	return addresses
}

// bind returns the addresses of one bind.
func bind(l *line) (addresses []netip.Addr) {
	for _, word := range l.args() {
		a, err := netip.ParseAddr(fillPlaceholders(word))
		switch {
		case word == "lo":
			l.c.differs(l.at, "bind lo", "it listens on the usual addresses of the link, 127.0.0.1 and ::1", "add others that it has to listen.addresses")
			addresses = append(addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
		case word == clusterIP:
			l.c.cfg.Interface.Manage, l.c.cfg.Intercept.Manage, l.c.cfg.Intercept.Mode = true, true, config.ModeTransparent
			if l.c.firstTime(clusterIP) {
				l.c.differs(l.at, "bind "+clusterIP, intercepted, "the address is that of cluster.central.service; "+kubeletHint)
			}
		case err != nil && placeholder(placeholders(), word) != "": // noted before
		case err != nil:
			l.c.lost(l.at, "bind "+word, "links cannot be given by name", "list the addresses of the link in listen.addresses")
		default:
			addresses = append(addresses, a.Unmap())
		}
	}
	for _, st := range l.body {
		l.option(&st).lost("it listens on all listed addresses", "list only the wanted addresses, without except")
	}
	return addresses
}

// splitAddresses separates the node's own addresses from that of the DNS service, as NodeLocal DNSCache binds both.
func (c *converter) splitAddresses(addresses []netip.Addr) {
	isOwn := func(a netip.Addr) bool { return a.IsLinkLocalUnicast() && a.Zone() == "" }
	others := slices.DeleteFunc(slices.Clone(addresses), isOwn)
	at := c.listenAddrs[addresses[0]]
	c.origins["listen"], c.origins["listen.addresses"] = origin{at: at}, origin{at: at, text: "bind"}
	if len(others) == len(addresses) {
		c.cfg.Listen.Addresses = addresses
		return
	}
	c.cfg.Listen.Addresses = slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !isOwn(a) })
	c.cfg.Interface.Manage = true
	c.origins["interface.manage"] = origin{text: "NodeLocal DNSCache makes the link as well"}
	if len(others) > 0 {
		c.cfg.Intercept.Manage, c.cfg.Intercept.Mode, c.cfg.Intercept.Services = true, config.ModeTransparent, others
		c.differs(c.listenAddrs[others[0]], "bind "+others[0].String(), intercepted, kubeletHint)
		c.origins["intercept.services"] = origin{at: c.listenAddrs[others[0]], text: "bind, the address of the DNS service"}
	}
}

// parseAddress parses a key of a server block: a zone or a prefix, with an optional transport and port. The port is 0 if it is
// not a number.
func parseAddress(key string) (transport, host string, port uint16) {
	transport, host, found := strings.Cut(key, "://")
	if !found {
		transport, host = "dns", key
	}
	number := "53"
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, number = h, cmp.Or(p, number)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		n = 0 // of a number out of range, it is the nearest
	}
	return strings.ToLower(transport), cmp.Or(host, "."), uint16(n)
}

// usualPort uses the port of most server blocks for all, on a tie the first.
func (c *converter) usualPort(blocks []*server) {
	count := map[uint16]int{}
	var all []sourced[uint16]
	for _, s := range blocks {
		for _, key := range s.keys {
			if transport, _, port := parseAddress(fillPlaceholders(key)); port > 0 && transport == "dns" {
				count[port]++
				all = append(all, sourced[uint16]{port, origin{at: s.at}})
			}
		}
	}
	most := 0
	for _, port := range all {
		if n := count[port.value]; n > most {
			most, c.cfg.Listen.Port, c.origins["listen.port"] = n, port.value, port.origin
		}
	}
}

// otherPort is a server block on a port of its own, which other blocks may forward to.
type otherPort struct {
	*server

	what, zone  string
	port        uint16
	forwardedTo bool // a forward uses it
	inlined     bool // its upstreams replace it in the forward
	to          []config.Target
}

// port reports whether a server block has the listen port. Blocks on other ports are collected.
func (c *converter) port(s *server, host string, port uint16, what string) bool {
	if port == 0 {
		c.lost(s.at, what, "not a port number", "")
		return false
	}
	if port == c.cfg.Listen.Port {
		return true
	}
	zone, err := config.ParseZone(host)
	if err != nil {
		zone = "" // not a zone of a route
	}
	c.otherPorts = append(c.otherPorts, &otherPort{server: s, what: what, zone: zone, port: port})
	return false
}

// noteUnusedPorts notes the server blocks on other ports that no forward uses.
func (c *converter) noteUnusedPorts() {
	for _, b := range c.otherPorts {
		hint := "put the zone under that port, or run another agent for it"
		if b.forwardedTo {
			hint = "a route leads to it: run another agent, or a CoreDNS, with this block at that address"
		}
		if !b.inlined {
			c.lost(b.at, b.what, fmt.Sprintf("the agent listens on one port: %d", c.cfg.Listen.Port), hint)
		}
	}
}

// otherPortOf returns the server block of this host on the port of an upstream, first that of the root, or nil.
func (c *converter) otherPortOf(t config.Target) (found *otherPort) {
	if t.Kind == config.Plain || t.Kind == config.TCP {
		for _, b := range c.otherPorts {
			if t.Addr.Addr().IsLoopback() && b.port == t.Addr.Port() && (found == nil || b.zone == "." && found.zone != ".") {
				found = b
			}
		}
	}
	return found
}

// otherPortUpstreams returns the upstreams of the server block on another port of this host that a forward uses. Such
// blocks serve for upstreams with several TLS names. It reports false if there is none, or if it does more than forward.
func (c *converter) otherPortUpstreams(l *line, t config.Target) (to []config.Target, ok bool) {
	b := c.otherPortOf(t)
	if b == nil || b.zone != "." {
		return nil, false
	}
	if b.forwardedTo = true; !c.onlyForwards(b) {
		return nil, false
	}
	if !b.inlined {
		inner := &line{&b.all("forward")[0], c, l.s, ""}
		_, _, upstreams := parseForward(inner)
		b.inlined, b.to = true, upstreams()
		c.differs(b.at, b.what, "its upstreams are used directly by the route to it, at "+l.at.String(), "")
	}
	return b.to, true
}

// onlyForwards reports whether a server block only forwards all queries, without options that a route does not have, and
// not to another such block.
func (c *converter) onlyForwards(b *otherPort) bool {
	asWell := strings.Fields("forward bind errors log cache loop reload any debug loadbalance bufsize prometheus health ready")
	if slices.ContainsFunc(b.plugins, func(st statement) bool { return !slices.Contains(asWell, st.words[0]) }) {
		return false
	}
	all := b.all("forward")
	if len(all) != 1 || len(all[0].args()) < 2 || all[0].args()[0] != "." {
		return false
	}
	more := func(option statement) bool {
		return slices.Contains([]string{"except", "tls", "doh_method"}, option.words[0])
	}
	loops := func(word string) bool {
		t, err := target(word, "")
		return err == nil && c.otherPortOf(t) != nil
	}
	return !slices.ContainsFunc(all[0].body, more) && !slices.ContainsFunc(all[0].args()[1:], loops)
}

// zones returns the zones of a host: itself, or the reverse zones of a prefix.
func zones(host string) ([]string, error) {
	if p, err := netip.ParsePrefix(host); err == nil {
		return config.ReverseZones(p.Masked()), nil
	}
	zone, err := config.ParseZone(host)
	if err != nil {
		return nil, err
	}
	return []string{zone}, nil
}

// isReverse reports whether a zone is a reverse zone.
func isReverse(zone string) bool { return below(zone, "in-addr.arpa.") || below(zone, "ip6.arpa.") }

// below reports whether name is zone or below it. Both are absolute and in lower case.
func below(name, zone string) bool {
	return zone == "." || name == zone || strings.HasSuffix(name, "."+zone)
}

// overlap returns the zones of a server that are in those of a plugin, and vice versa.
func overlap(served, from []string) []string {
	var list []string
	for _, zone := range served {
		for _, f := range from {
			both := zone
			if below(f, zone) {
				both = f
			}
			if below(both, f) && !slices.Contains(list, both) {
				list = append(list, both)
			}
		}
	}
	return list
}
