// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// directive is what becomes of plugins, or of options of a plugin: a note, a conversion, both, or nothing.
type directive struct {
	names     string // separated by spaces
	why, hint string // reason and hint of the note; why empty: no note
	kept      bool   // the note is about a difference: the directive is converted, or needs no conversion
	take      func(l *line)
}

func (d *directive) is(name string) bool { return slices.Contains(strings.Fields(d.names), name) }

func (d *directive) apply(l *line) {
	if d.why != "" {
		l.c.note(l.at, d.kept, l.what(), d.why, d.hint)
	}
	if d.take != nil {
		d.take(l)
	}
}

// line is a statement under conversion.
type line struct {
	*statement

	c  *converter
	s  *server
	of string // the plugin that it is an option of; empty: it is a plugin
}

// what returns the line for notes.
func (l *line) what() string {
	if l.of == "" {
		return l.text()
	}
	return l.of + ": " + l.text()
}

func (l *line) lost(why, hint string) { l.c.lost(l.at, l.what(), why, hint) }

func (l *line) differs(why, hint string) { l.c.differs(l.at, l.what(), why, hint) }

func (l *line) unknown() { l.lost("unknown option", "check docs/configuration.md for a matching key") }

// lostAnyway is like lost, but its note stays even if the block is left to the old server.
func (l *line) lostAnyway(why, hint string) {
	l.lost(why, hint)
	l.s.kept = append(l.s.kept, l.c.notes[len(l.c.notes)-1])
}

// leave leaves zones, or if nil all names of the block, to the old server, because node-cache cannot give the same answers. If
// the old server does not stay, the line is lost, and the names of the zones fail: they must not go to another server.
func (l *line) leave(zones []string, why, hint string) {
	if !l.c.stays {
		l.lost(why, hint)
		for _, zone := range zones {
			l.s.failed = append(l.s.failed, sourced[string]{zone, l.origin()})
		}
		return
	}
	which := "the names of " + strings.Join(zones, " ")
	if zones == nil {
		zones, l.s.whole, which = l.s.zones, true, "all names of the block"
	}
	if len(zones) == 0 {
		return
	}
	l.differs(why+": the old server is asked for "+which, hint)
	note := &l.c.notes[len(l.c.notes)-1]
	note.Left = true
	l.s.kept = append(l.s.kept, *note)
	for _, zone := range zones {
		l.s.left = append(l.s.left, sourced[string]{zone, l.origin()})
		l.s.own = append(l.s.own, zone)
	}
}

// arg returns an argument, or a default if there is none.
func (l *line) arg(i int, otherwise string) string {
	if i < len(l.args()) {
		return l.args()[i]
	}
	return otherwise
}

// all returns the arguments as one text.
func (l *line) all() string { return strings.Join(l.args(), " ") }

// option returns a statement in the block of the line.
func (l *line) option(st *statement) *line { return &line{st, l.c, l.s, l.words[0]} }

// options converts the options in the block of a plugin.
func (l *line) options(table ...directive) {
	for _, st := range l.body {
		if i := slices.IndexFunc(table, func(d directive) bool { return d.is(st.words[0]) }); i >= 0 {
			table[i].apply(l.option(&st))
		} else {
			l.option(&st).unknown()
		}
	}
}

// set records the origin of a key's value, and reports whether the key has this value. The first server block to set a key
// of the whole program wins; a different later value is noted.
func (l *line) set(path, value string) bool {
	before, again := l.c.origins[path]
	if again && before.value != value {
		l.lost(path+" is one for all zones, and already "+before.value+" by "+before.at.String(), "")
	}
	if !again {
		l.c.origins[path] = origin{l.at, l.text(), value}
	}
	return !again
}

// origin returns the line as an origin.
func (l *line) origin() origin { return origin{at: l.at, text: l.text()} }

// parseDuration parses a duration, or a number of seconds.
func parseDuration(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.Atoi(text); numErr == nil && n >= 0 && n < 1<<31 {
		d, err = time.Duration(n)*time.Second, nil
	}
	return d, err == nil
}

// duration parses a duration, or a number of seconds, and clamps it to the range.
func (l *line) duration(text string, least, most time.Duration) (time.Duration, bool) {
	d, ok := parseDuration(text)
	if !ok {
		l.lost(strconv.Quote(text)+" is not a duration", "")
		return 0, false
	}
	near := min(max(d, least), most)
	if near != d {
		l.differs("it is "+near.String()+" here, the nearest valid value", "")
	}
	return near, true
}

// setDuration sets a key to a duration.
func (l *line) setDuration(text, path string, least, most time.Duration, to *time.Duration) {
	if d, ok := l.duration(text, least, most); ok && l.set(path, d.String()) {
		*to = d
	}
}

// zones returns the zones of arguments.
func (l *line) zones(hosts []string) []string {
	var list []string
	for _, host := range hosts {
		named, err := zones(fillPlaceholders(host))
		if err != nil {
			l.lost(oneLine(err), "")
		}
		list = append(list, named...)
	}
	return list
}

// duration returns an option that sets the key at path to its duration, clamped to a range.
func duration(name, path string, least, most time.Duration, to *time.Duration) directive {
	return directive{names: name, take: func(l *line) { l.setDuration(l.all(), path, least, most, to) }}
}

// textOption returns an option that stores its arguments in *to, as one text.
func textOption(name string, to *string) directive {
	return directive{names: name, take: func(l *line) { *to = l.all() }}
}

// flag returns an option without arguments that sets *to to true.
func flag(name string, to *bool) directive {
	return directive{names: name, take: func(*line) { *to = true }}
}

// lost returns directives without a counterpart.
func lost(names, why, hint string) directive { return directive{names: names, why: why, hint: hint} }

// differs returns directives whose effect differs, or that need no conversion.
func differs(names, why, hint string) directive {
	return directive{names: names, why: why, hint: hint, kept: true}
}

// left returns directives with which all names of the block are left to the old server.
func left(names, why, hint string) directive {
	return directive{names: names, take: func(l *line) { l.leave(nil, why, hint) }}
}

// ownZones returns plugins that serve zones from data which node-cache does not read, or reads in another way.
func ownZones(names, why, hint string) directive {
	return directive{names: names, take: func(l *line) { l.leave(l.ownZones(), why, hint) }}
}

// ownZones returns the zones that a plugin serves: its arguments or those of the server.
func (l *line) ownZones() []string {
	if list := l.zonesAmong(l.args()); len(list) > 0 {
		return list
	}
	return l.s.zones
}

// zonesAmong returns the zones among the arguments of a plugin: ZONE, ZONE:ID, or of azure GROUP:ZONE.
func (l *line) zonesAmong(words []string) (list []string) {
	for _, word := range words {
		first, last, _ := strings.Cut(fillPlaceholders(word), ":")
		if l.words[0] == "azure" && last != "" {
			first = last
		}
		named, err := zones(first)
		if _, notAddress := netip.ParseAddr(first); err == nil && notAddress != nil && !strings.Contains(word, "//") && !strings.HasPrefix(word, "/") {
			list = append(list, named...)
		}
	}
	return overlap(l.s.zones, list)
}

// known reports whether a table has a plugin.
func known(c *converter, name string) bool {
	is := func(d directive) bool { return d.is(name) }
	return slices.ContainsFunc(settings(c), is) || slices.ContainsFunc(answers(c), is)
}

// unknownPlugin notes a plugin that no table has. CoreDNS does not start with a misspelt name. Another plugin may give any answer.
func unknownPlugin(l *line) {
	for _, table := range [][]directive{settings(l.c), answers(l.c)} {
		for _, d := range table {
			for name := range strings.FieldsSeq(d.names) {
				if isMisspelt(l.words[0], name) {
					l.lost("unknown plugin, with which CoreDNS does not start", "write "+name+", if that is meant")
					return
				}
			}
		}
	}
	zones := slices.DeleteFunc(l.zonesAmong(l.args()), func(zone string) bool { return strings.Count(zone, ".") < 2 })
	if l.c.stays {
		zones = nil
	}
	l.leave(zones, "unknown plugin", "check docs/configuration.md for a matching key")
}

// isMisspelt reports whether a word is another with one letter changed, added or left out, or two neighbours exchanged.
func isMisspelt(word, name string) bool {
	if len(name) < 4 || word == name || max(len(word)-len(name), len(name)-len(word)) > 1 {
		return false
	}
	i := 0
	for i < min(len(word), len(name)) && word[i] == name[i] {
		i++
	}
	w, n := word[i:], name[i:]
	return len(w) > 0 && w[1:] == n || len(n) > 0 && w == n[1:] || len(w) > 0 && len(n) > 0 && w[1:] == n[1:] ||
		len(w) > 1 && len(n) > 1 && w[0] == n[1] && w[1] == n[0] && w[2:] == n[2:]
}

// Why answers are not the same, with hints.
const (
	noZones  = "node-cache serves no such zones"
	routeIt  = "write a route for the zone to a name server: {zone: …, to: […]}"
	listZone = "list its addresses in hosts.names if they are few; else " + routeIt
	perNode  = "the client is the node behind a node cache"
)

// settings returns what becomes of each plugin that is no source of answers.
func settings(c *converter) []directive {
	return []directive{
		{names: "bind"}, // converted before, by listen
		{names: "prometheus", take: prometheus},
		{names: "health", take: func(l *line) {
			l.adminPage("/livez", ":8080")
			l.options(differs("lameduck", "pending queries are answered before the exit, without a configured delay", ""))
		}},
		{names: "ready", take: func(l *line) {
			l.adminPage("/readyz", ":8181")
			l.options(differs("monitor", "/readyz checks all parts of the program each time", ""))
		}},
		{names: "log", take: queryLog},
		{names: "errors", take: func(l *line) {
			l.options(differs("consolidate stacktrace show_first", "failures of single queries are counted and not logged, so there are no lines to consolidate",
				"log.queries: errors logs them: see docs/metrics.md for the counts"))
		}},
		{names: "debug", take: func(l *line) {
			if l.set("log.level", "debug") {
				c.cfg.Log.Level = -4 // slog.LevelDebug
			}
		}},
		{names: "chaos", take: chaos},
		{names: "bufsize", take: bufsize},
		{names: "cancel", take: func(l *line) {
			if len(l.args()) > 0 { // without arguments it is 5.001 s, and limits.deadline keeps its default
				l.setDuration(l.args()[0], "limits.deadline", 250*time.Millisecond, time.Minute, &c.cfg.Limits.Deadline)
			}
		}},
		{names: "timeouts", take: func(l *line) {
			l.options(
				duration("idle", "limits.tcpIdle", time.Second, time.Hour, &c.cfg.Limits.TCPIdle),
				differs("read write", "a TCP session has one limit, on the time without a query", "see limits.tcpIdle"))
		}},
		{names: "any loop reload"}, // node-cache always does what these plugins do
		{names: "metadata"},        // for other plugins only, without effect on clients
		{names: "root"},            // read by hostsFile
		{names: "local"},           // see specialNames

		lost("autopath", perNode, "pods.searchPath: on walks the search path of each pod: docs/pods.md"),
		lost("rrl", "responses are not rate-limited by content, and "+perNode, "limits.perClient bounds the in-flight queries of a client"),
		lost("geoip", perNode, "run another agent for clients with other answers"),
		lost("transfer tsig", "zones are not transferred through a node cache", "ask the old server for them, or see cluster.transferTo"),
		{names: "tls", take: func(l *line) {
			if l.c.cfg.Listen.Cert == "" {
				l.lost("the certificate is not taken over", "if clients ask over TLS, set listen.tls")
			}
		}},
		lost("https https3 quic grpc_server", "only UDP, TCP and TLS are supported for clients",
			"upstreams may be asked over TLS and HTTPS: see forward[].to"),
		lost("header", "the flags of an answer are what the protocol asks for", ""),
		{names: "loadbalance", take: func(l *line) {
			if l.arg(0, "round_robin") != "round_robin" || len(l.body) > 0 {
				l.lost("addresses rotate, without weights", "cluster.nodeZone puts the endpoints of the node's own zone first")
			}
		}},
		lost("dnstap", "its messages are not forwarded", "see log.dnstap"),
		lost("trace", "queries are not traced", "metrics have latencies by source; node-cache query --explain explains one query"),
		lost("nsid", "NSID is not supported", "identity.hostname answers queries for hostname.bind in class CH"),
		lost("on", "programs are not run", ""),
		differs("minimal", "authority and additional records are passed on unchanged", ""),
		differs("pprof", "profiles are at /debug/pprof of the unix socket admin.socket", ""),
		differs("shed proxyproto multisocket", "socket options cannot be set", "what goes beyond the limits is shed, and counted: see limits"),
	}
}

// answers lists the plugins that answer queries or change answers, with what becomes of each. Their order matters: plugins that add
// routes come before those that change routes, and hosts before templates, which may match names of hosts.
func answers(c *converter) []directive {
	return []directive{
		{names: "kubernetes", take: kubernetes},
		{names: "federation", take: func(l *line) {
			for _, st := range l.body {
				if st.words[0] != "upstream" { // node-cache resolves aliases itself
					c.federation(l.option(&st).origin(), st.words[0]+"="+strings.Join(st.args(), " "))
				}
			}
		}},
		{names: "hosts", take: hosts},
		{names: "template", take: template},
		{names: "rewrite", take: rewrite},
		{names: "dns64", take: dns64},
		{names: "forward", take: forward},
		{names: "proxy", take: proxy},
		{names: "cache", take: cache},
		{names: "acl", take: acl},
		{names: "view", take: view},

		ownZones("k8s_external", "its zones are not converted", "cluster.external.zones serves such names: docs/external-names.md"),
		ownZones("multicluster", "its zones are not converted", "cluster.clusterSet serves such names: docs/multi-cluster.md"),
		ownZones("etcd", "its zones are not converted", "etcd.zones serves such names: docs/etcd.md"),
		ownZones("file auto secondary", noZones, listZone),
		ownZones("route53 azure clouddns nomad consul k8s_gateway mdns mysql netbox records redis tailscale", noZones, routeIt),
		{names: "docker pdsql sqlite traefik", take: func(l *line) { l.leave(l.s.zones, noZones, routeIt) }}, // their arguments are no zones
		left("sign dnssec", "answers are not signed", routeIt),
		left("recursor unbound", "node-cache is not a recursive resolver", `write a route to such a server: {zone: ".", to: […]}`),
		left("ads blocker blocklist", "lists of names to block are not fetched",
			"templates deny zones, and hosts.files has names; or write a route to a server that blocks"),
		left("fanout alternate kubernetai grpc", "the plugin asks servers in a way of its own",
			"write forward, or kubernetes, in its place, and convert again"),
		left("ocp_dnsnameresolver", "address lookups are not published",
			"leave the names that an EgressFirewall has to the central resolver, and write a route for them"),
		left("erratic whoami", "a plugin for tests", "templates make answers by pattern"),
	}
}

// acl leaves a block whose rules name no clients. Rules for clients mean nothing behind a node cache.
func acl(l *line) {
	for _, rule := range l.body {
		for i, word := range rule.words {
			if word == "net" && (i+1 == len(rule.words) || rule.words[i+1] != "*") {
				l.lostAnyway("answers do not depend on the client's address, and "+perNode, "restrict clients with a NetworkPolicy or the node's firewall")
				return
			}
		}
	}
	l.leave(nil, "types are not filtered", "a template answers a type: {zone: …, types: […]}")
}

// view leaves a block whose expressions select some of the queries, unless they select by client.
func view(l *line) {
	for _, st := range l.body {
		for _, call := range regexp.MustCompile(`\w+\(`).FindAllString(strings.Join(st.words, " "), -1) {
			if !slices.Contains([]string{"name(", "type(", "class("}, call) {
				l.lostAnyway("answers do not depend on the client, and "+perNode, "run another agent for clients with other answers")
				return
			}
		}
	}
	l.leave(nil, "a block answers all queries for its zones", "templates answer a type or a pattern of names")
}

// prometheus converts the address of the metrics.
func prometheus(l *line) {
	if a, ok := l.endpoint("localhost:9153"); ok && l.set("admin.address", a.String()) {
		l.c.cfg.Admin.Address = a
	}
	l.options(
		lost("tls", "metrics are served without TLS", "restrict access with a NetworkPolicy, or put a proxy before admin.address"),
		differs("runtime_metrics", "the metrics of the runtime are those of docs/metrics.md", ""))
}

// chaos converts the answer to version.bind. With it, hostname.bind is answered too.
func chaos(l *line) {
	identity := &l.c.cfg.Identity
	if version := l.arg(0, ""); l.set("identity.version", version) {
		identity.Version, identity.Hostname = version, "auto"
	}
	if len(l.args()) > 1 {
		l.lost("authors.bind is refused", "")
	}
}

// bufsize converts the largest UDP response.
func bufsize(l *line) {
	size, err := strconv.Atoi(l.arg(0, "1232"))
	if err != nil || size < 512 || size > 4096 {
		l.lost("not between 512 and 4096", "")
		return
	}
	if l.set("listen.udpSize", strconv.Itoa(size)) {
		l.c.cfg.Listen.UDPSize = size
	}
}

// endpoint parses an HTTP listen address with optional parts.
func (l *line) endpoint(usual string) (netip.AddrPort, bool) {
	text := fillPlaceholders(l.arg(0, usual))
	if host, port, _ := strings.Cut(text, ":"); host == "" {
		text = "[::]:" + port
	} else if host == "localhost" {
		text = "127.0.0.1:" + port
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		l.lost("not an IP address and a port", "write both into admin.address")
		return a, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
}

// adminPage notes a page that the admin server has at another address.
func (l *line) adminPage(page, usual string) {
	a, ok := l.endpoint(usual)
	if !ok {
		return
	}
	if _, set := l.c.origins["admin.address"]; !set {
		l.set("admin.address", a.String())
		l.c.cfg.Admin.Address = a
	}
	l.differs("the page is "+page+" at admin.address, where metrics are too", "point the probe there")
}

// queryLog converts the plugin log.
func queryLog(l *line) {
	c, mode, classes := l.c, config.QueriesAll, []string(nil)
	l.options(directive{names: "class", take: func(o *line) { classes = append(classes, o.args()...) }})
	if len(classes) > 0 && !slices.ContainsFunc(classes, func(class string) bool { return class != "error" }) {
		mode = config.QueriesErrors
	}
	i := slices.IndexFunc(c.servers, func(s *server) bool { return len(s.all("log")) == 0 })
	if i >= 0 && mode == config.QueriesAll && c.firstTime("log of some") {
		l.differs("the queries for all zones are logged, those of "+cmp.Or(c.servers[i].zones...)+" too", "log.queries: off, slow or a sample writes less")
	}
	query := config.QueryLog{Mode: mode}
	if l.set("log.queries", query.String()) {
		c.cfg.Log.Queries = query
	}
	if l.arg(0, ".") != "." || len(l.args()) > 1 || len(classes) > 0 && mode == config.QueriesAll && !slices.Contains(classes, "all") {
		l.differs("lines have a format of their own, for all zones, and errors are the only class", "see log.queries, which has a sample too")
	}
}
