// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// forward converts a route.
func (c *corefile) forward(s *server, st *statement) {
	if len(st.args()) < 2 {
		c.noteLost(st.at, st.text(), "the zone or the upstream is missing", "")
		return
	}
	from, err := zones(fillPlaceholders(st.args()[0]))
	if err != nil {
		c.noteLost(st.at, st.text(), oneLine(err), "")
		return
	}
	routed := overlap(s.zones, from)
	if len(routed) == 0 {
		c.noteLost(st.at, st.text(), "it does not apply to any zone of this server", "")
		return
	}
	options := c.forwardOptions(st)
	to, made := []config.Target(nil), false
	for _, zone := range routed {
		s.own = append(s.own, zone)
		if c.isCentral(zone, st.args()[1:]) {
			continue
		}
		if !made {
			to, made = c.targets(st, options), true
		}
		if len(to) == 0 {
			c.noteLost(st.at, st.text(), "no upstream is left, so there is no route for "+zone, "")
			continue
		}
		r := config.DefaultRoute(zone, to...)
		r.Policy, r.Method, r.CA = options.policy, options.method, options.ca
		c.route(r, st)
	}
	c.except(st, options.except)
}

// proxy converts CoreDNS's predecessor of forward.
func (c *corefile) proxy(s *server, st *statement) {
	as := statement{at: st.at, words: st.words}
	for _, option := range st.body {
		text := option.text()
		switch {
		case text == "protocol dns":
		case text == "protocol dns force_tcp":
			as.body = append(as.body, statement{at: option.at, words: []string{"force_tcp"}})
		case option.words[0] == "protocol":
			c.noteLost(st.at, st.text()+", "+text, "upstreams support UDP, TCP, TLS and HTTPS only", "write a route to a server with one of these: {zone: …, to: […]}")
			return
		case option.words[0] == "fail_timeout", option.words[0] == "spray":
			c.optionDiffers(st, &option, "node-cache judges upstreams by their answers and probes failed ones, with its own timers", "docs/upstreams.md has the times")
		case text == "policy least_conn":
			c.optionDiffers(st, &option, "the fastest upstream is used", "")
		default:
			as.body = append(as.body, option)
		}
	}
	c.forward(s, &as)
}

// overlap returns the zones of a server that are in those of a plugin, and vice versa.
func overlap(served, from []string) []string {
	var list []string
	add := func(zone string) {
		if !slices.Contains(list, zone) {
			list = append(list, zone)
		}
	}
	for _, zone := range served {
		for _, f := range from {
			switch {
			case below(zone, f):
				add(zone)
			case below(f, zone):
				add(f)
			}
		}
	}
	return list
}

// route adds a route unless its zone has one.
func (c *corefile) route(r config.Route, st *statement) {
	if c.cluster.domain == r.Zone {
		c.noteLost(st.at, st.text(), "the cluster domain cannot be forwarded", "names below it may have a route of their own")
		return
	}
	i := slices.IndexFunc(c.routes, func(other route) bool { return other.Zone == r.Zone })
	switch {
	case i < 0:
		c.routes = append(c.routes, route{Route: r, at: st.at, text: st.text()})
	case c.routes[i].early && (r.Zone != "." || slices.Contains(st.args(), upstreams)):
		// NodeLocal DNSCache prefers these servers to those of the Corefile.
		r.To = c.routes[i].To
		c.routes[i].Route, c.routes[i].early = r, false
	case c.routes[i].early:
		c.routes[i] = route{Route: r, at: st.at, text: st.text()}
		c.noteLost(place{file: upstreamNameservers}, "the list", fmt.Sprintf("%s has other upstreams for all names", st.at), "")
	default:
		c.noteLost(st.at, st.text(), fmt.Sprintf("%s already has a route, by %s", r.Zone, c.routes[i].at),
			"a zone has one route: list all upstreams in it, in order and with policy sequential")
	}
}

// forwardOptions are the options of a forward.
type forwardOptions struct {
	except     []string
	tcp        bool
	ca         string
	serverName string
	policy     config.Policy
	method     config.HTTPMethod
}

func (c *corefile) forwardOptions(st *statement) forwardOptions {
	var o forwardOptions
	for _, option := range st.body {
		args := option.args()
		switch option.words[0] {
		case "except":
			o.except = append(o.except, args...)
		case "force_tcp":
			o.tcp = true
		case "prefer_udp": // the default
		case "failover":
			c.failover(st, &option)
		case "tls_servername":
			o.serverName = strings.Join(args, " ")
		case "doh_method":
			if strings.EqualFold(strings.Join(args, " "), "get") {
				o.method = config.MethodGet
			}
		case "policy":
			o.policy = c.policy(st, &option)
		case "tls":
			o.ca = c.certificates(st, &option)
		case "max_concurrent":
			c.maxConcurrent(&option)
		default:
			c.forwardNone(st, &option)
		}
	}
	return o
}

// failover notes rcodes that do not cause a failover here.
func (c *corefile) failover(st, option *statement) {
	for _, code := range option.args() {
		if !slices.Contains([]string{"SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"}, strings.ToUpper(code)) {
			c.option(st, option, "no failover for answers with "+code, "SERVFAIL, REFUSED and missing answers cause a failover to the next upstream")
			return
		}
	}
}

func (c *corefile) policy(st, option *statement) config.Policy {
	switch strings.Join(option.args(), " ") {
	case "sequential":
		return config.PolicySequential
	case "random":
		return config.PolicyRandom
	case "round_robin":
		c.noteDiffers(option.at, st.words[0]+": "+option.text(), "upstreams are drawn, each as often as the others, and do not take turns", "")
		return config.PolicyRandom
	}
	c.unknown(st, option)
	return config.PolicyFastest
}

// certificates converts the arguments of tls: none, the CA, the client's certificate, or both.
func (c *corefile) certificates(st, option *statement) string {
	args := option.args()
	if len(args) >= 2 {
		c.option(st, option, "client certificates are not supported", "let the upstream identify this client by its address")
	}
	if len(args) == 1 || len(args) == 3 {
		c.noteDiffers(option.at, st.words[0]+": "+option.text(), "the file is read where the agent runs, and the configuration is refused where it is not there",
			"mount a Secret with it into the agents' pods, and write its path there into tls.ca")
		return args[len(args)-1]
	}
	return ""
}

// maxConcurrent bounds the in-flight queries of all upstreams together.
func (c *corefile) maxConcurrent(option *statement) {
	n, err := strconv.Atoi(strings.Join(option.args(), ""))
	if err != nil || n < 0 {
		c.noteLost(option.at, "forward: "+option.text(), "not a number", "")
		return
	}
	if n == 0 { // no limit
		return
	}
	n = min(n, 1<<20)
	if c.setKey("limits.inflight", option, strconv.Itoa(n)) {
		c.cfg.Limits.Inflight = n
		c.cfg.Limits.Waiting = max(c.cfg.Limits.Waiting, n)
		c.noteDiffers(option.at, "forward: "+option.text(), "the bound is on all upstreams together, and identical queries count once", "see limits.inflight")
	}
}

// forwardNone notes an unsupported option.
func (c *corefile) forwardNone(st, option *statement) {
	const (
		judged      = "node-cache judges upstreams by their answers and probes failed ones, with its own timers"
		connections = "node-cache keeps and renews connections with its own timers"
	)
	switch option.words[0] {
	case "max_fails", "health_check", "failfast_all_unhealthy_upstreams":
		c.optionDiffers(st, option, judged, "docs/upstreams.md has the times")
	case "expire", "max_idle_conns", "max_age":
		c.optionDiffers(st, option, connections, "forward[].connections says how many there are")
	case "max_connect_attempts", "read_timeout":
		c.optionDiffers(st, option, "the timeout depends on the upstream's usual response time", "limits.deadline bounds each query")
	case "next", "next_on_nodata":
		c.option(st, option, "the content of an answer does not cause a failover", "SERVFAIL and REFUSED cause a failover to the next upstream")
	case "source_address":
		c.option(st, option, "the kernel chooses the address that upstreams see", "set a route with a source address: ip route add … src …")
	case "resolver":
		c.option(st, option, "upstreams have addresses", "")
	default:
		c.unknown(st, option)
	}
}

// targets returns the upstreams with an address, without duplicates.
func (c *corefile) targets(st *statement, o forwardOptions) []config.Target {
	var to []config.Target
	for _, word := range st.args()[1:] {
		for _, t := range c.wordTargets(st, word, o.serverName) {
			if o.tcp && t.Kind == config.Plain {
				t.Kind = config.TCP
			}
			if !slices.Contains(to, t) {
				to = append(to, t)
			}
		}
	}
	if o.tcp && slices.ContainsFunc(to, func(t config.Target) bool { return t.Kind == config.ResolvConf }) {
		c.noteDiffers(st.at, st.words[0]+": force_tcp", "the servers of a resolv.conf are queried over UDP, and over TCP after truncation",
			"write tcp:// and their addresses in place of the file where UDP must not be used")
	}
	return to
}

// wordTargets returns the upstreams of one argument of a forward.
func (c *corefile) wordTargets(st *statement, word, serverName string) []config.Target {
	switch {
	case word == upstreams && len(c.upstreams) == 0:
		return []config.Target{{Kind: config.ResolvConf, Path: "/etc/resolv.conf"}}
	case word == upstreams:
		return c.upstreams
	case isDNSService(word):
		c.noteLost(st.at, word, "the endpoints of the DNS service are used for cluster names only", "write the addresses of a server that knows the zone")
		return nil
	}
	t, err := target(word, serverName)
	switch {
	case err != nil && placeholder(placeholders(), word) != "": // noted before
		return nil
	case err != nil:
		c.noteLost(st.at, st.words[0]+": "+word, oneLine(err), "")
		return nil
	}
	if to, ok := c.otherPortUpstreams(st, t); ok {
		return to
	}
	return []config.Target{t}
}

// target parses an upstream with the server name of its certificate.
func target(word, serverName string) (config.Target, error) {
	scheme, rest, isURL := strings.Cut(word, "://")
	if !isURL {
		return config.ParseTarget(word)
	}
	switch scheme {
	case "dns":
		return config.ParseTarget(rest)
	case "tls", "https":
	default:
		return config.ParseTarget(word)
	}
	path := ""
	if i := strings.IndexByte(rest, '/'); i >= 0 && scheme == "https" {
		rest, path = rest[:i], rest[i:]
	}
	if host, name, found := strings.Cut(rest, "%"); found && !strings.HasPrefix(rest, "[fe80") {
		name, port, hasPort := strings.Cut(name, ":")
		rest, serverName = host, name
		if hasPort {
			rest += ":" + port
		}
	}
	if serverName != "" {
		path += "#" + serverName
	}
	return config.ParseTarget(scheme + "://" + rest + path)
}

// except makes names without forwarding get SERVFAIL, as from a server without an upstream.
func (c *corefile) except(st *statement, hosts []string) {
	for _, host := range hosts {
		list, err := zones(fillPlaceholders(host))
		if err != nil {
			c.noteLost(st.at, "forward: except "+host, oneLine(err), "")
			continue
		}
		for _, zone := range list {
			c.excepted = append(c.excepted, sourced[string]{zone, st.at, "except " + host})
		}
	}
}

// exceptTemplates writes templates for the zones that are not forwarded, unless they have a route.
func (c *corefile) exceptTemplates() {
	for _, e := range c.excepted {
		switch {
		case c.isServed(e.value), c.isAnswered(e.value):
			continue
		case c.isServedBelow(e.value):
			c.noteDiffers(e.at, e.text, "there is a route in "+e.value+", so its other names go to the route above it", "write a route for the zone, or templates that deny these names")
			continue
		}
		c.templates = append(c.templates, sourced[config.Template]{config.Template{Zone: e.value, Rcode: rcodeServFail}, e.at, e.text})
	}
}

// isAnswered reports whether a template answers all questions for the zone.
func (c *corefile) isAnswered(zone string) bool {
	return slices.ContainsFunc(c.templates, func(t sourced[config.Template]) bool {
		return t.value.Zone == zone && len(t.value.Types) == 0 && len(t.value.Match) == 0
	})
}

// isServed reports whether this very zone has a route or is the cluster's.
func (c *corefile) isServed(zone string) bool {
	return c.cluster.domain == zone || slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == zone })
}

// isServedBelow reports whether the zone, or one below it, has a route or is the cluster's.
func (c *corefile) isServedBelow(zone string) bool {
	if c.cluster.domain != "" && below(c.cluster.domain, zone) {
		return true
	}
	return slices.ContainsFunc(c.routes, func(r route) bool { return below(r.Zone, zone) })
}

// denyUnforwarded answers SERVFAIL for the names of a server without an upstream, so that no other upstream gets them.
func (c *corefile) denyUnforwarded(s *server) {
	for _, zone := range s.zones {
		isServed := slices.ContainsFunc(s.own, func(own string) bool { return below(zone, own) })
		if zone == "." || isServed {
			continue
		}
		c.excepted = append(c.excepted, sourced[string]{zone, s.at, "no server is asked for the other names of " + zone})
	}
}
