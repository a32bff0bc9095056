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

// handler converts one statement of a server block.
type handler func(c *corefile, s *server, st *statement)

// handlers returns the supported plugins in the order of their conversion: those that add routes come before those that
// change them.
func handlers() []struct {
	plugin string
	take   handler
} {
	same := func(*corefile, *server, *statement) {} // node-cache always does that
	return []struct {
		plugin string
		take   handler
	}{
		{"bind", same}, // read first
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
		{"metadata", same}, // for other plugins only, without effect on clients
		{"reload", same},
		{"root", same}, // read with each path
	}
}

// server converts all statements of a server block.
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

// option notes an unsupported option of a plugin.
func (c *corefile) option(st, option *statement, why, hint string) {
	c.noteLost(option.at, st.words[0]+": "+option.text(), why, hint)
}

// optionDiffers notes an option of a plugin that works differently.
func (c *corefile) optionDiffers(st, option *statement, why, hint string) {
	c.noteDiffers(option.at, st.words[0]+": "+option.text(), why, hint)
}

// unknown notes an unknown option of a plugin.
func (c *corefile) unknown(st, option *statement) {
	c.option(st, option, "unknown option", "check docs/configuration.md for a matching key")
}

// noBind is the subject of the note about a server without its own address.
const noBind = "no bind"

// kubeletHint is the hint for pods that do not use the address of the DNS service.
const kubeletHint = "where the kubelets' clusterDNS is the link-local address, write intercept.mode: link-local, and no intercept.services"

// listen converts the addresses of bind.
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
			c.noteLost(c.listenAddrs[addresses[0].String()], "bind", "one server listens on every address, so all do", "list the addresses in listen.addresses")
		}
		if c.cfg.Listen.Port == 53 && len(c.servers) > 0 {
			c.noteDiffers(c.firstFile, noBind, "it listens on every address, where a node may have other servers",
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

// unspecifiedAddress returns the one unspecified address that replaces a list.
func (c *corefile) unspecifiedAddress(addresses []netip.Addr) netip.Addr {
	if !slices.ContainsFunc(addresses, netip.Addr.Is6) {
		return netip.IPv4Unspecified()
	}
	if !slices.Contains(addresses, netip.IPv6Unspecified()) {
		c.noteDiffers(c.listenAddrs[netip.IPv4Unspecified().String()], "bind 0.0.0.0", "it listens on every address, including IPv6, since IPv6 addresses are listed", "list single addresses to avoid that")
	}
	return netip.IPv6Unspecified()
}

// bind adds the addresses of one bind.
func (c *corefile) bind(st *statement, addresses []netip.Addr) []netip.Addr {
	for _, word := range st.args() {
		if word == "lo" {
			c.noteDiffers(st.at, "bind lo", "it listens on the usual addresses of the link, 127.0.0.1 and ::1", "add others that it has to listen.addresses")
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
		c.option(st, &option, "it listens on all listed addresses", "list only the wanted addresses, without except")
	}
	return addresses
}

// bindAddress parses a word of bind.
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
	case err != nil && placeholder(placeholders(), word) != "": // noted before
		return a, false
	case err != nil:
		c.noteLost(st.at, "bind "+word, "links cannot be given by name", "list the addresses of the link in listen.addresses")
		return a, false
	}
	return a.Unmap(), true
}

// splitAddresses separates the node's own addresses from that of the DNS service, as NodeLocal DNSCache binds both.
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

// endpoint parses an HTTP listen address with optional parts.
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
			c.option(st, &option, "metrics are served without TLS", "restrict access with a NetworkPolicy, or put a proxy before admin.address")
		case "runtime_metrics":
			c.optionDiffers(st, &option, "the metrics of the runtime are those of docs/metrics.md", "")
		default:
			c.unknown(st, &option)
		}
	}
}

// adminPage notes a page that the admin server has at another address.
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
			c.noteDiffers(option.at, "health: "+option.text(), "pending queries are answered before the exit, without a configured delay", "")
			continue
		}
		c.unknown(st, &option)
	}
}

func (c *corefile) ready(_ *server, st *statement) {
	c.adminPage(st, "/readyz", ":8181")
	for _, option := range st.body {
		c.option(st, &option, "/readyz checks all parts of the program each time", "")
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
			c.optionDiffers(st, &option, "failures of single queries are counted and not logged, so there are no lines to consolidate", "log.queries: errors logs them: see docs/metrics.md for the counts")
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
		return // 5.001 s, the default
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
		c.noteLost(st.at, st.text(), "addresses rotate, without weights", "")
	}
	for _, option := range st.body {
		c.option(st, &option, "addresses rotate, without weights", "cluster.nodeZone puts the endpoints of the node's own zone first")
	}
}

// span parses a duration, or a number of seconds, and clamps it to the range.
func (c *corefile) span(st *statement, text string, least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.Atoi(text); numErr == nil && n >= 0 && n < 1<<31 {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil {
		c.noteLost(st.at, st.text(), strconv.Quote(text)+" is not a duration", "")
		return 0, false
	}
	if near := min(max(d, least), most); near != d {
		c.noteDiffers(st.at, st.text(), "it is "+near.String()+" here, the nearest valid value", "")
		d = near
	}
	return d, true
}

// noteUnmatchedNames notes what happens to names without a server block.
func (c *corefile) noteUnmatchedNames() {
	const hint = `the route of the zone "." says who is asked for them`
	if slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) {
		return
	}
	if s := c.serverOf("."); s != nil {
		c.noteDiffers(s.at, "server .", "it forwards nothing there; other names go to /etc/resolv.conf here", hint)
		return
	}
	c.noteDiffers(c.firstFile, cmp.Or(strings.Join(c.servedZones(), " "), "no zones"), "names without a server are refused there, and go to /etc/resolv.conf here", hint)
}

func (c *corefile) servedZones() []string {
	list := make([]string, 0, len(c.servers))
	for _, s := range c.servers {
		list = append(list, s.zones[0])
	}
	return list[:min(len(list), 5)]
}
