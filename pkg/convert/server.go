// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// handler takes one statement of a server block.
type handler func(c *corefile, s *server, st *statement)

// handlers are the plugins that have a counterpart. They are called in the order of this list, those that make routes
// before those that say more of them.
func handlers() []struct {
	plugin string
	take   handler
} {
	same := func(*corefile, *server, *statement) {} // node-cache does that in any case
	return []struct {
		plugin string
		take   handler
	}{
		{"bind", same}, // read before all others
		{"kubernetes", (*corefile).kubernetes},
		{"transfer", (*corefile).transfer},
		{"template", (*corefile).template},
		{"hosts", (*corefile).hosts},
		{"file", (*corefile).file},
		{"local", (*corefile).local},
		{"rewrite", (*corefile).rewrite},
		{"dns64", (*corefile).dns64},
		{"forward", (*corefile).forward},
		{"proxy", (*corefile).proxy},
		{"cache", (*corefile).cache},
		{"prometheus", (*corefile).prometheus},
		{"health", (*corefile).health},
		{"ready", (*corefile).ready},
		{"log", (*corefile).log},
		{"errors", (*corefile).errors},
		{"debug", (*corefile).debug},
		{"chaos", (*corefile).chaos},
		{"bufsize", (*corefile).bufsize},
		{"cancel", (*corefile).cancel},
		{"timeouts", (*corefile).timeouts},
		{"loadbalance", (*corefile).loadbalance},
		{"any", same},
		{"loop", same},
		{"metadata", same}, // which tells other plugins something, and clients nothing
		{"reload", same},
		{"root", same}, // read where a path is
	}
}

// server takes all statements of a server block.
func (c *corefile) server(s *server) {
	known := map[string]bool{}
	for _, h := range handlers() {
		known[h.plugin] = true
		for _, st := range s.all(h.plugin) {
			h.take(c, s, &st)
		}
	}
	for _, st := range s.plugins {
		if !known[st.words[0]] {
			why, hint := unsupported(st.words[0])
			c.noteLost(st.at, st.text(), why, hint)
		}
	}
	c.denyUnforwarded(s)
}

// option notes what stands in the block of a plugin and has no counterpart.
func (c *corefile) option(st, option *statement, why, hint string) {
	c.noteLost(option.at, st.words[0]+": "+option.text(), why, hint)
}

// optionDiffers notes what stands in the block of a plugin and is done here in a way of its own.
func (c *corefile) optionDiffers(st, option *statement, why, hint string) {
	c.noteDiffers(option.at, st.words[0]+": "+option.text(), why, hint)
}

// unknown notes an option that the plugin is not known to have.
func (c *corefile) unknown(st, option *statement) {
	c.option(st, option, "the option is not known", "see whether docs/configuration.md has a key for what it does")
}

// noBind is what the note is about that there is no address of the server's own.
const noBind = "no bind"

// kubelets is what to do where pods do not ask the address of the DNS service.
const kubeletHint = "where the kubelets' clusterDNS is the link-local address, write intercept.mode: link-local, and no intercept.services"

// listen takes the addresses of bind.
func (c *corefile) listen() {
	var addresses []netip.Addr
	for _, s := range c.servers {
		binds := s.all("bind")
		c.listensEverywhere = c.listensEverywhere || len(binds) == 0
		for _, st := range binds {
			addresses = c.bind(&st, addresses)
		}
	}
	if c.listensEverywhere || len(addresses) == 0 {
		c.cfg.Listen.Addresses = []netip.Addr{netip.IPv6Unspecified()}
		if len(addresses) > 0 {
			c.noteLost(c.listenAddrs[addresses[0].String()], "bind", "one server listens everywhere, so all do", "write listen.addresses with those that are meant")
		}
		if c.cfg.Listen.Port == 53 && len(c.servers) > 0 {
			c.noteDiffers(c.firstFile, noBind, "queries are taken at every address, which a node may have other servers on",
				"on a node listen on an address of its own, like 169.254.20.10, with interface.manage; convert --daemonset does that")
		}
		return
	}
	if len(addresses) > 1 && slices.ContainsFunc(addresses, netip.Addr.IsUnspecified) {
		addresses = []netip.Addr{c.unspecifiedAddress(addresses)}
		c.listenAddrs[addresses[0].String()] = c.keys["listen.port"].at
	}
	c.splitAddresses(addresses)
}

// everywhere is the one unspecified address that stands for all of a list.
func (c *corefile) unspecifiedAddress(addresses []netip.Addr) netip.Addr {
	if !slices.ContainsFunc(addresses, netip.Addr.Is6) {
		return netip.IPv4Unspecified()
	}
	if !slices.Contains(addresses, netip.IPv6Unspecified()) {
		c.noteDiffers(c.listenAddrs[netip.IPv4Unspecified().String()], "bind 0.0.0.0", "queries are taken at every address, of IPv6 too, as others of that family are listed", "list single addresses where that must not be")
	}
	return netip.IPv6Unspecified()
}

// bind adds the addresses of one bind to those there are.
func (c *corefile) bind(st *statement, addresses []netip.Addr) []netip.Addr {
	for _, word := range st.args() {
		if word == "lo" {
			c.noteDiffers(st.at, "bind lo", "the addresses that the link has everywhere are listened on, 127.0.0.1 and ::1", "add others that it has to listen.addresses")
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
				if !slices.Contains(addresses, a) {
					addresses = append(addresses, a)
					c.listenAddrs[a.String()] = st.at
				}
			}
			continue
		}
		if a, ok := c.bindAddress(st, word); ok && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
			c.listenAddrs[a.String()] = st.at
		}
	}
	for _, option := range st.body {
		c.option(st, &option, "all listed addresses are listened on", "list those that are meant, without except")
	}
	return addresses
}

// bound reads a word of bind.
func (c *corefile) bindAddress(st *statement, word string) (netip.Addr, bool) {
	word = fillPlaceholders(word)
	if word == clusterIP {
		c.cfg.Interface.Manage, c.cfg.Intercept.Manage, c.cfg.Intercept.Mode = true, true, config.ModeTransparent
		if c.firstTime(clusterIP) {
			c.noteDiffers(st.at, "bind "+clusterIP, "the address of the DNS service is not listened on, its queries are intercepted",
				"the address is that of cluster.central.service; "+kubeletHint)
		}
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(word)
	switch {
	case err != nil && placeholder(placeholders(), word) != "": // which was said
		return a, false
	case err != nil:
		c.noteLost(st.at, "bind "+word, "links are not listened on by their names", "list the addresses of the link in listen.addresses")
		return a, false
	}
	return a.Unmap(), true
}

// split tells the addresses that a node has for itself from that of the DNS service, as NodeLocal DNSCache binds both.
func (c *corefile) splitAddresses(addresses []netip.Addr) {
	own := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() || a.Zone() != "" })
	others := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return slices.Contains(own, a) })
	at := c.listenAddrs[addresses[0].String()]
	c.sources["listen.addresses"] = at.String() + ": bind"
	c.keys["listen"] = keySet{at: at}
	if len(own) == 0 {
		c.cfg.Listen.Addresses = addresses
		return
	}
	c.cfg.Listen.Addresses = own
	c.cfg.Interface.Manage = true
	c.sources["interface.manage"] = "NodeLocal DNSCache makes the link as well"
	if len(others) > 0 {
		c.cfg.Intercept.Manage, c.cfg.Intercept.Mode, c.cfg.Intercept.Services = true, config.ModeTransparent, others
		c.noteDiffers(c.listenAddrs[others[0].String()], "bind "+others[0].String(), "the address of the DNS service is not listened on, its queries are intercepted", kubeletHint)
		c.sources["intercept.services"] = c.listenAddrs[others[0].String()].String() + ": bind, the address of the DNS service"
	}
}

// endpoint reads an address to serve HTTP on, of which either part may be left out.
func (c *corefile) endpoint(st *statement, usual string) (netip.AddrPort, bool) {
	text := usual
	if len(st.args()) > 0 {
		text = fillPlaceholders(st.args()[0])
	}
	host, port, found := strings.Cut(text, ":")
	switch {
	case found && host == "":
		text = "[::]:" + port
	case found && host == "localhost":
		text = "127.0.0.1:" + port
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		c.noteLost(st.at, st.text(), "not an IP address and a port", "write both into admin.address")
		return a, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
}

func (c *corefile) prometheus(_ *server, st *statement) {
	if a, ok := c.endpoint(st, "localhost:9153"); ok && c.setKey("admin.address", st, a.String()) {
		c.cfg.Admin.Address = a
	}
	for _, option := range st.body {
		switch option.words[0] {
		case "tls":
			c.option(st, &option, "metrics are served without TLS", "let a NetworkPolicy say who may read them, or put a proxy before admin.address")
		case "runtime_metrics":
			c.optionDiffers(st, &option, "the metrics of the runtime are those of docs/metrics.md", "")
		default:
			c.unknown(st, &option)
		}
	}
}

// page notes a page that the admin server has at another address.
func (c *corefile) adminPage(st *statement, page, usual string) {
	a, ok := c.endpoint(st, usual)
	if !ok {
		return
	}
	if _, set := c.keys["admin.address"]; !set && c.setKey("admin.address", st, a.String()) {
		c.cfg.Admin.Address = a
	}
	c.noteDiffers(st.at, st.text(), "the page is "+page+" at admin.address, where metrics are too", "point the probe there")
}

func (c *corefile) health(_ *server, st *statement) {
	c.adminPage(st, "/livez", ":8080")
	for _, option := range st.body {
		if option.words[0] == "lameduck" {
			c.noteDiffers(option.at, "health: "+option.text(), "queries that wait are answered before the end, without a set time", "")
			continue
		}
		c.unknown(st, &option)
	}
}

func (c *corefile) ready(_ *server, st *statement) {
	c.adminPage(st, "/readyz", ":8181")
	for _, option := range st.body {
		c.option(st, &option, "/readyz asks all parts of the program each time", "")
	}
}

func (c *corefile) log(_ *server, st *statement) {
	mode, classes := config.QueriesAll, []string{}
	for _, option := range st.body {
		if option.words[0] != "class" {
			c.unknown(st, &option)
			continue
		}
		classes = append(classes, option.args()...)
	}
	if len(classes) > 0 && !slices.ContainsFunc(classes, func(class string) bool { return class != "error" }) {
		mode = config.QueriesErrors
	}
	if i := slices.IndexFunc(c.servers, func(s *server) bool { return len(s.all("log")) == 0 }); i >= 0 && mode == config.QueriesAll && c.firstTime("log of some") {
		c.noteDiffers(st.at, st.text(), "the queries for all zones are logged, those of "+c.servers[i].zones[0]+" too", "log.queries: off, slow or a sample writes less")
	}
	query := config.QueryLog{Mode: mode}
	if c.setKey("log.queries", st, query.String()) {
		c.cfg.Log.Queries = query
	}
	if len(st.args()) > 0 && !slices.Equal(st.args(), []string{"."}) || len(classes) > 0 && mode == config.QueriesAll && !slices.Contains(classes, "all") {
		c.noteDiffers(st.at, st.text(), "lines have a format of their own, for all zones, and errors are the only class", "see log.queries, which has a sample too")
	}
}

func (c *corefile) errors(_ *server, st *statement) {
	for _, option := range st.body {
		switch option.words[0] {
		case "consolidate", "stacktrace":
			c.optionDiffers(st, &option, "failures of single queries are counted and not logged, so there are no lines to put together", "log.queries: errors logs them: see docs/metrics.md for the counts")
		default:
			c.unknown(st, &option)
		}
	}
}

func (c *corefile) debug(_ *server, st *statement) {
	if c.setKey("log.level", st, "debug") {
		c.cfg.Log.Level = -4 // slog.LevelDebug
	}
}

func (c *corefile) chaos(_ *server, st *statement) {
	version := ""
	if len(st.args()) > 0 {
		version = st.args()[0]
	}
	if c.setKey("identity.version", st, version) {
		c.cfg.Identity.Version = version
		c.cfg.Identity.Hostname = "auto"
	}
	if len(st.args()) > 1 {
		c.noteLost(st.at, st.text(), "authors.bind is refused", "")
	}
}

func (c *corefile) bufsize(_ *server, st *statement) {
	size := 1232
	if len(st.args()) > 0 {
		n, err := strconv.Atoi(st.args()[0])
		if err != nil || n < 512 || n > 4096 {
			c.noteLost(st.at, st.text(), "not between 512 and 4096", "")
			return
		}
		size = n
	}
	if c.setKey("listen.udpSize", st, strconv.Itoa(size)) {
		c.cfg.Listen.UDPSize = size
	}
}

func (c *corefile) cancel(_ *server, st *statement) {
	if len(st.args()) == 0 {
		return // 5.001 s, with which nobody has meant anything
	}
	if d, ok := c.span(st, st.args()[0], 250*time.Millisecond, time.Minute); ok && c.setKey("limits.deadline", st, d.String()) {
		c.cfg.Limits.Deadline = d
	}
}

func (c *corefile) timeouts(_ *server, st *statement) {
	for _, option := range st.body {
		if option.words[0] != "idle" || len(option.args()) != 1 {
			c.option(st, &option, "a TCP session has one limit, on the time without a query", "see limits.tcpIdle")
			continue
		}
		if d, ok := c.span(&option, option.args()[0], time.Second, time.Hour); ok && c.setKey("limits.tcpIdle", &option, d.String()) {
			c.cfg.Limits.TCPIdle = d
		}
	}
}

func (c *corefile) loadbalance(_ *server, st *statement) {
	if len(st.args()) > 0 && st.args()[0] != "round_robin" {
		c.noteLost(st.at, st.text(), "addresses take turns, all alike", "")
	}
	for _, option := range st.body {
		c.option(st, &option, "addresses take turns, all alike", "cluster.nodeZone puts the endpoints of the node's own zone first")
	}
}

// span reads a duration, or a number of seconds, and puts what is out of range to its nearest end.
func (c *corefile) span(st *statement, text string, least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.Atoi(text); numErr == nil && n >= 0 && n < 1<<31 {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil {
		c.noteLost(st.at, st.text(), strconv.Quote(text)+" is no duration", "")
		return 0, false
	}
	if near := min(max(d, least), most); near != d {
		c.noteDiffers(st.at, st.text(), "it is "+near.String()+" here, the nearest there is", "")
		d = near
	}
	return d, true
}

// between says what happens to names that no server block has.
func (c *corefile) noteUnmatchedNames() {
	const hint = `the route of the zone "." says who is asked for them`
	if slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) {
		return
	}
	if s := c.serverOf("."); s != nil {
		c.noteDiffers(s.at, "server .", "it forwards nothing there, and names that nobody else answers go to /etc/resolv.conf here", hint)
		return
	}
	c.noteDiffers(c.firstFile, cmp.Or(strings.Join(c.servedZones(), " "), "no zones"), "names of no server are refused there, and go to /etc/resolv.conf here", hint)
}

func (c *corefile) servedZones() []string {
	list := make([]string, 0, len(c.servers))
	for _, s := range c.servers {
		list = append(list, s.zones[0])
	}
	return list[:min(len(list), 5)]
}
