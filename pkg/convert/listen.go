// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
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
	if c.cfg.Cluster.Central.Service != (config.ServiceName{}) && c.cfg.Interface.Manage && !c.cfg.Intercept.Manage {
		c.cfg.Intercept.Manage = true
		c.origins["intercept.manage"] = origin{text: "queries go to the central resolver while the agent does not answer"}
	}
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
		case err != nil && placeholder(placeholders(), word) != "": // lex has noted the placeholder
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
	at := c.listenAddrs[addresses[0]]
	c.origins["listen"], c.origins["listen.addresses"] = origin{at: at}, origin{at: at, text: "bind"}
	if !slices.ContainsFunc(addresses, isOwn) {
		if !c.isNodeLocal || slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.IsUnspecified() || a.IsLoopback() }) {
			c.cfg.Listen.Addresses = addresses
			return
		}
		own := c.healthAddress(addresses)
		isOwn = func(a netip.Addr) bool { return a == own }
	}
	others := slices.DeleteFunc(slices.Clone(addresses), isOwn)
	c.cfg.Listen.Addresses = slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !isOwn(a) })
	c.cfg.Interface.Manage = true
	c.origins["interface.manage"] = origin{text: "NodeLocal DNSCache makes the link as well"}
	if len(others) > 0 {
		c.cfg.Intercept.Manage, c.cfg.Intercept.Mode, c.cfg.Intercept.Services = true, config.ModeTransparent, others
		c.differs(c.listenAddrs[others[0]], "bind "+others[0].String(), intercepted, kubeletHint)
		c.origins["intercept.services"] = origin{at: c.listenAddrs[others[0]], text: "bind, the address of the DNS service"}
	}
}

// healthAddress returns the address that NodeLocal DNSCache has for itself: that of its health page, or the first one.
func (c *converter) healthAddress(addresses []netip.Addr) netip.Addr {
	for _, s := range c.servers {
		for _, st := range s.all("health") {
			a, err := netip.ParseAddrPort((&line{&st, c, s, ""}).arg(0, ""))
			if err == nil && slices.Contains(addresses, a.Addr()) {
				return a.Addr()
			}
		}
	}
	return addresses[0]
}

// parseAddress parses a key of a server block: a zone or a prefix, with an optional transport and port. The port is 0 if it is
// not a number.
func parseAddress(key string) (transport, host string, port uint16) {
	transport, host, found := strings.Cut(key, "://")
	if !found {
		transport, host = "dns", key
	}
	number := "53"
	if strings.EqualFold(transport, "tls") {
		number = "853"
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, number = h, cmp.Or(p, number)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		n = 0 // ParseUint returns the nearest value for a number out of range
	}
	return strings.ToLower(transport), cmp.Or(host, "."), uint16(n)
}

// tlsKey is a key of a server block over TLS.
type tlsKey struct {
	*server

	what, host string
	port       uint16
}

// overTLS converts the server blocks over TLS if those over UDP are the same, since the agent has one set of answers, and if they have one
// certificate. Where the old server stays, so do its clients over TLS.
func (c *converter) overTLS() {
	if len(c.tlsKeys) == 0 {
		return
	}
	first := c.tlsKeys[0]
	files, same := first.all("tls"), !c.stays && first.port > 0 && first.port != c.cfg.Listen.Port
	plain, secured := map[string]string{}, map[string]string{}
	add := func(blocks map[string]string, s *server, zones []string) {
		for _, zone := range zones {
			same = same && blocks[zone] == "" // else the query decides which block answers
			blocks[zone] = form(s.plugins, func(st *statement) bool { return !strings.Contains(noAnswers, " "+st.words[0]+" ") })
		}
	}
	for _, s := range c.servers {
		add(plain, s, s.zones)
	}
	all := func(*statement) bool { return true }
	for _, k := range c.tlsKeys {
		list, err := zones(k.host)
		same = same && err == nil && k.port == first.port && form(k.all("tls"), all) == form(files, all)
		add(secured, k.server, list)
	}
	if same && maps.Equal(plain, secured) && len(files) == 1 && len(files[0].words) == 3 && len(files[0].body) == 0 {
		l := line{&files[0], c, first.server, ""}
		if cert, key := l.args()[0], l.args()[1]; path.IsAbs(cert) && path.IsAbs(key) {
			c.cfg.Listen.ListenTLS = config.ListenTLS{TLSPort: first.port, Cert: cert, Key: key}
			c.origins["listen.tls.cert"] = l.origin()
			l.differs("the files are read where the agent runs, and the configuration is refused where they are not there",
				"mount the Secret with them into the agent's pods")
			return
		}
	}
	for _, k := range c.tlsKeys {
		c.lost(k.at, k.what, "the agent gives the same answers over TLS as over UDP, so it has no such block", "if clients ask over TLS, set listen.tls")
	}
}

// noAnswers are plugins without an effect on answers.
const noAnswers = " tls errors log health ready prometheus reload loop pprof "

// form returns the selected statements as a text that is equal for equal statements.
func form(list []statement, selected func(*statement) bool) string {
	var parts []string
	for i := range list {
		if st := &list[i]; selected(st) {
			parts = append(parts, fmt.Sprintf("%q", st.words), form(st.body, func(*statement) bool { return true }))
		}
	}
	return "{" + strings.Join(parts, "") + "}"
}

// usualPort sets the listen port to the most frequent port of the blocks' keys, on a tie to the first.
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

	what        string
	port        uint16
	forwardedTo bool // a forward has an upstream at this port
}

// port reports whether a server block has the listen port. Blocks on other ports are collected.
func (c *converter) port(s *server, port uint16, what string) bool {
	if port == 0 {
		c.lost(s.at, what, "not a port number", "")
		return false
	}
	if port == c.cfg.Listen.Port {
		return true
	}
	c.otherPorts = append(c.otherPorts, &otherPort{server: s, what: what, port: port})
	return false
}

// noteUnusedPorts notes the server blocks on other ports. If the old server stays, those that it forwards to need no note.
func (c *converter) noteUnusedPorts() {
	for _, b := range c.otherPorts {
		hint := "put the zone under that port, or run another agent for it"
		if b.forwardedTo {
			hint = "a route leads to it: run another agent, or a CoreDNS, with this block at that address"
		}
		if !b.forwardedTo || !c.stays {
			c.lost(b.at, b.what, fmt.Sprintf("the agent listens on one port: %d", c.cfg.Listen.Port), hint)
		}
	}
}

// forwardsTo records that a forward uses the server blocks on the port of an upstream that is this host.
func (c *converter) forwardsTo(t config.Target) {
	for _, b := range c.otherPorts {
		b.forwardedTo = b.forwardedTo || t.Addr.Addr().IsLoopback() && b.port == t.Addr.Port()
	}
}

// zones returns the zones that a key of a server block or an argument means: the name itself, or the reverse zones of a prefix.
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

// overlap returns the served zones that are at or below a zone in from, and the zones in from that are at or below a served zone.
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
