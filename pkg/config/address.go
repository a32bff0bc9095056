// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/listen"
)

const dnsPort = 53

const portHint = "a port is a number from 1 to 65535"

// Fallback names the servers that get the queries while the agent does not answer. The zero value: none.
type Fallback struct {
	Central   bool             // the servers of cluster.central; Addresses is empty then
	Addresses []netip.AddrPort // unique, the port is never 0
}

// String returns the spelling of f in a configuration: central, none, or a list.
func (f Fallback) String() string {
	switch {
	case f.Central:
		return "central"
	case len(f.Addresses) == 0:
		return "none"
	}
	return flowList(f.Addresses)
}

// BlockAnswer is the answer for names on a list of block. The zero value: NXDOMAIN.
type BlockAnswer struct {
	NoData    bool         // no records; Addresses is empty then
	Addresses []netip.Addr // unique
}

// String returns the spelling of b in a configuration: nxdomain, nodata, or a list.
func (b BlockAnswer) String() string {
	switch {
	case b.NoData:
		return "nodata"
	case len(b.Addresses) == 0:
		return "nxdomain"
	}
	return flowList(b.Addresses)
}

// spellAddress returns the text of an address, a prefix, or an address and a port: the empty string for the zero value.
func spellAddress[T interface {
	IsValid() bool
	String() string
}](v T) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}

// parseListenAddress reads an address without a port.
func parseListenAddress(text string) (netip.Addr, *Problem) {
	return parseHostAddr(text, "the port is listen.port")
}

// parseServiceAddress reads the address of the DNS service.
func parseServiceAddress(text string) (netip.Addr, *Problem) {
	a, p := parseListenAddress(text)
	if p == nil && (a.IsUnspecified() || a.IsLoopback() || a.Zone() != "") {
		p = problem("not the address of a service", "")
	}
	return a, p
}

// parseBootstrap reads the address of a host that an upstream's URL names.
func parseBootstrap(text string) (netip.Addr, *Problem) {
	a, p := parseHostAddr(text, "the port is that of the URL")
	if p == nil && a.IsUnspecified() {
		p = problem("not the address of one host", "")
	}
	return a, p
}

// parseHostAddress reads an address for a name in hosts. 0.0.0.0 and :: are valid: lists that block names have them.
func parseHostAddress(text string) (netip.Addr, *Problem) {
	a, p := parseAddr(text, "leave out the port: a record has none")
	switch {
	case p != nil:
	case a.Zone() != "":
		p = problem("an address with a zone, which no record has", "write "+a.WithZone("").String())
	case a.Is4In6():
		p = hostProblem(a)
	}
	return a, p
}

// parseHostAddr reads an address that can be one end of a connection.
func parseHostAddr(text, portHint string) (netip.Addr, *Problem) {
	a, p := parseAddr(text, portHint)
	if p == nil {
		p = hostProblem(a)
	}
	return a, p
}

// parseAddr reads an address. portHint is the hint for an address with a port.
func parseAddr(text, portHint string) (netip.Addr, *Problem) {
	a, err := netip.ParseAddr(text)
	if err == nil {
		return a, nil
	}
	if _, err := netip.ParseAddrPort(text); err != nil {
		portHint = ""
	}
	return netip.Addr{}, problem("not an IP address", portHint)
}

// hostProblem says what keeps an address from being one end of a connection.
func hostProblem(a netip.Addr) *Problem {
	switch {
	case a.Is4In6():
		return problem("an IPv4 address in IPv6 form", "write the address as "+a.Unmap().String())
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return problem("not the address of one host", "")
	}
	return nil
}

// parseOptionalEndpoint reads an address with its port. The empty string is the zero value.
func parseOptionalEndpoint(text string) (netip.AddrPort, *Problem) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	a, err := netip.ParseAddrPort(text)
	switch port, found := strings.CutPrefix(text, ":"); {
	case found && isDigits(port):
		return a, problem("not an IP address and a port", "write 127.0.0.1:"+port+", or 0.0.0.0:"+port+" for every IPv4 address")
	case err != nil:
		return a, problem("not an IP address and a port", `write it like 127.0.0.1:9253, or "" for none`)
	case a.Port() == 0:
		return a, problem("port 0", portHint)
	}
	return a, hostProblem(a.Addr())
}

// parseServer reads the address of a server that is asked over TCP, with or without a port.
func parseServer(text string) (netip.AddrPort, *Problem) {
	a, err := parseEndpoint(text, dnsPort)
	if err == nil {
		return a, serverProblem(a)
	}
	p := notAnAddress(text, false)
	p.What = "not an IP address with or without a port"
	if strings.Contains(text, "://") {
		p.Hint = "write the address alone: it is always asked over TCP"
	}
	return a, p
}

// notAnAddress returns the problem of an invalid target, with a hint that guesses what was meant.
func notAnAddress(text string, isURL bool) *Problem {
	p := problem("not an IP address, a URL or a path", "")
	if isURL {
		p.What = "not a URL of an IP address"
	}
	host, _, _ := strings.Cut(text, ":")
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case strings.HasSuffix(text, "/") && text != "/":
		if _, err := parseEndpoint(strings.TrimSuffix(text, "/"), dnsPort); err == nil {
			p.Hint = "leave out the slash at the end"
		}
	case strings.HasPrefix(text, "./"), strings.HasPrefix(text, "../"), strings.HasSuffix(text, ".conf"):
		p.Hint = "a path begins with a slash"
	case isAddress(host):
		p.Hint = portHint
	case last != "" && !isDigits(last) && !strings.ContainsAny(text, "/[]"):
		p.Hint = "a host name would have to be resolved first: write its address"
	}
	return p
}

// serverProblem says what keeps an address and a port from being those of a server.
func serverProblem(a netip.AddrPort) *Problem {
	switch {
	case a.Port() == 0:
		return problem("port 0", portHint)
	case a.Addr().IsUnspecified():
		return problem("not the address of one host", "")
	}
	return hostProblem(a.Addr())
}

// parseEndpoint reads an address with or without a port, in brackets or not. port is the default.
func parseEndpoint(text string, port uint16) (netip.AddrPort, error) {
	if inner, found := strings.CutPrefix(text, "["); found && strings.HasSuffix(inner, "]") {
		if a, err := netip.ParseAddr(inner[:len(inner)-1]); err == nil && a.Is6() {
			return netip.AddrPortFrom(a, port), nil
		}
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, port), err
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// covers reports whether a socket on the address wide receives what is sent to a. A socket on [::] receives IPv4 as well.
func covers(wide, a netip.Addr) bool {
	return wide == a || (wide.IsUnspecified() && (wide.Is6() || a.Is4()))
}

// parsePrefix reads a prefix without host bits.
func parsePrefix(text string) (netip.Prefix, *Problem) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p, prefixProblem(p)
	}
	hint := "write it like 10.96.0.0/12"
	if a, err := netip.ParseAddr(text); err == nil {
		hint = fmt.Sprintf("write %s/%d for one address", a.WithZone("").Unmap(), a.Unmap().BitLen())
	}
	return p, problem("not a prefix", hint)
}

// prefixProblem says what keeps a prefix from being the only spelling of its addresses.
func prefixProblem(p netip.Prefix) *Problem {
	if a := p.Addr(); a.Is4In6() {
		bad := problem("an IPv4 prefix in IPv6 form", "")
		if short, err := a.Unmap().Prefix(p.Bits() - (a.BitLen() - a.Unmap().BitLen())); err == nil {
			bad.Hint = "write " + short.String()
		}
		return bad
	}
	if p != p.Masked() {
		return problem("an address with bits beyond the prefix length", "write "+p.Masked().String())
	}
	return nil
}

// A TransferClient is an item of cluster.transferTo.
type TransferClient struct {
	Prefix netip.Prefix // addresses that may transfer the zone
	Port   uint16       // port that gets NOTIFY; 0: no NOTIFY. If set, Prefix is one address
}

// IsValid reports whether c is not zero.
func (c TransferClient) IsValid() bool { return c.Prefix.IsValid() }

// String returns the spelling of c in a configuration.
func (c TransferClient) String() string {
	switch c.Port {
	case 0:
		return c.Prefix.String()
	case dnsPort:
		return c.Prefix.Addr().String()
	}
	return c.Server().String()
}

// Server returns the address that gets NOTIFY, if Port is set.
func (c TransferClient) Server() netip.AddrPort { return netip.AddrPortFrom(c.Prefix.Addr(), c.Port) }

// parseClient reads a prefix, or the address of a secondary server.
func parseClient(text string) (c TransferClient, _ *Problem) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return TransferClient{Prefix: p}, prefixProblem(p)
	}
	to, err := netip.ParseAddrPort(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return c, problem("not an IP address, an address with a port, or a prefix", "")
		}
		to = netip.AddrPortFrom(a, dnsPort)
	}
	a := to.Addr()
	bad := hostProblem(a)
	switch {
	case bad != nil:
	case a.IsUnspecified():
		bad = problem("not the address of one host", fmt.Sprintf("write %s/0 for every address of the family", a.WithZone("")))
	case a.Zone() != "":
		bad = problem("an address with a zone", "write "+a.WithZone("").String())
	case to.Port() == 0:
		bad = problem("port 0", portHint)
	}
	return TransferClient{Prefix: netip.PrefixFrom(a, a.BitLen()), Port: to.Port()}, bad
}

// parseNAT64 reads a prefix of RFC 6052. The empty string is the zero value.
func parseNAT64(text string) (netip.Prefix, *Problem) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, problem("not a prefix", `write it like 64:ff9b::/96, or "" for none`)
	}
	if bad := prefixProblem(p); bad != nil {
		return p, bad
	}
	switch {
	case p.Addr().Is4():
		return p, problem("not a prefix of IPv6", "write it like 64:ff9b::/96")
	case !slices.Contains([]int{32, 40, 48, 56, 64, 96}, p.Bits()):
		return p, problem(fmt.Sprintf("a prefix of %d bits", p.Bits()), "an IPv4 address follows 32, 40, 48, 56, 64 or 96 bits (RFC 6052 section 2.2)")
	case p.Addr().As16()[8] != 0:
		return p, problem("a prefix whose bits 64 to 71 are not zero", "they must be (RFC 6052 section 2.2)")
	}
	return p, nil
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// Receives reports whether a query that this host sends to an address comes back to this process. No such address is used as an
// upstream.
func (l *Listen) Receives(addr netip.AddrPort) bool {
	return addr.Port() == l.Port && listen.Receives(l.Addresses, addr.Addr())
}

// isOwn is [Listen.Receives] for the machine that d knows.
func isOwn(d *decoder, l *Listen, addr netip.AddrPort) bool {
	return addr.Port() == l.Port && listen.ReceivesOn(d.hostAddrs, l.Addresses, addr.Addr())
}

// checkOwn reports lists of servers without one that is not the process itself, and warns of own addresses in other lists.
func checkOwn(d *decoder, c *Config) {
	if !d.clean("listen") {
		return
	}
	for i := range c.Forward {
		checkOwnUpstreams(d, &c.Listen, &c.Forward[i], fmt.Sprintf("forward[%d]", i))
	}
	central := ownServers(d, &c.Listen, c.Cluster.Central.Addresses, "cluster.central.addresses")
	switch {
	case len(central) == 0:
	case len(central) == len(c.Cluster.Central.Addresses) && c.Cluster.Resolver != ResolverNone:
		refuseOwn(d, "cluster.central.addresses", central, "name the servers of the central resolver")
	default:
		warnOwn(d, central)
	}
	warnOwn(d, ownServers(d, &c.Listen, c.Intercept.Fallback.Addresses, "intercept.fallback"))
}

// An ownServer is an item of a list of servers that is the process itself.
type ownServer struct{ path, text string }

// refuseOwn reports a list that has only servers of which each is the process itself.
func refuseOwn(d *decoder, path string, own []ownServer, hint string) {
	d.check(true, path, quote(own[0].text)+": no usable upstream: node-cache itself listens there, and the list has no other server", hint)
}

// warnOwn warns of servers that are not asked.
func warnOwn(d *decoder, list []ownServer) {
	for _, s := range list {
		d.warn(s.path, quote(s.text)+": never asked: node-cache itself listens there", "leave it out")
	}
}

// ownServers returns the servers of a list that are the process itself.
func ownServers(d *decoder, l *Listen, servers []netip.AddrPort, path string) (own []ownServer) {
	for i, s := range servers {
		if isOwn(d, l, s) {
			own = append(own, ownServer{fmt.Sprintf("%s[%d]", path, i), s.String()})
		}
	}
	return own
}

// checkOwnUpstreams is checkOwn for a route. What a resolv.conf names is not known here.
func checkOwnUpstreams(d *decoder, l *Listen, r *Route, path string) {
	if !d.clean(path+".to", path+".bootstrap") {
		return
	}
	own, others := []ownServer(nil), false
	for i, t := range r.To {
		one := Route{To: []Target{t}, Bootstrap: r.Bootstrap}
		for _, u := range one.Upstreams() {
			if u.Kind != ResolvConf && isOwn(d, l, u.Addr) {
				own = append(own, ownServer{fmt.Sprintf("%s.to[%d]", path, i), u.String()})
			} else {
				others = true
			}
		}
	}
	if len(own) > 0 && !others {
		refuseOwn(d, path+".to", own, "name another server for "+quote(r.Zone))
	} else {
		warnOwn(d, own)
	}
}
