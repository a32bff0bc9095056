// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nodecache/node-cache/pkg/config"
)

// forward converts the plugin forward to a route for each of its zones.
func forward(l *line) {
	c := l.c
	if len(l.args()) < 2 {
		l.lost("the zone or the upstream is missing", "")
		return
	}
	from := l.zones(l.args()[:1])
	routed := overlap(l.s.zones, from)
	if len(from) > 0 && len(routed) == 0 {
		l.lost("it does not apply to any zone of this server", "")
	}
	if len(routed) == 0 {
		return
	}
	f := parseForward(l)
	for _, zone := range routed {
		if isCentral(c, zone, l.args()[1:]) {
			l.s.own = append(l.s.own, zone)
			continue
		}
		switch none := len(f.targets()) == 0; {
		case f.other != "" && (c.stays || none):
			l.leave([]string{zone}, f.other, f.hint)
			continue
		case none:
			l.leave([]string{zone}, "no upstream is left", "")
			continue
		case f.other != "":
			l.lost(f.other, f.hint)
		}
		l.s.own = append(l.s.own, zone)
		r := config.DefaultRoute(zone, f.targets()...)
		r.Policy, r.Method, r.CA = f.Policy, f.Method, f.CA
		c.route(r, l)
	}
	addExcepted(l, f.except)
}

// addExcepted adds the zones that a forward excepts: their names get SERVFAIL, as from CoreDNS.
func addExcepted(l *line, hosts []string) {
	c := l.c
	for _, host := range hosts {
		list, err := zones(fillPlaceholders(host))
		if err != nil {
			c.lost(l.at, "forward: except "+host, oneLine(err), "")
		}
		for _, zone := range list {
			l.s.closed = append(l.s.closed, sourced[string]{zone, origin{at: l.at, text: "except " + host}})
		}
	}
}

const (
	ownTimers  = "node-cache judges upstreams by their answers and probes failed ones, with its own timers"
	timersHint = "docs/upstreams.md has the times"
)

// proxy converts the plugin proxy, the predecessor of forward in CoreDNS.
func proxy(l *line) {
	as := &line{&statement{at: l.at, words: l.words}, l.c, l.s, ""}
	for _, st := range l.body {
		option := l.option(&st)
		switch text := option.text(); {
		case text == "protocol dns":
		case text == "protocol dns force_tcp":
			as.body = append(as.body, statement{at: st.at, words: []string{"force_tcp"}})
		case st.words[0] == "protocol":
			l.leave(overlap(l.s.zones, l.zones([]string{l.arg(0, ".")})), text+": upstreams support UDP, TCP, TLS and HTTPS only",
				"write a route to a server with one of these: {zone: …, to: […]}")
			return
		case st.words[0] == "fail_timeout", st.words[0] == "spray":
			option.differs(ownTimers, timersHint)
		case text == "policy least_conn":
			option.differs("the fastest upstream is used", "")
		default:
			as.body = append(as.body, st)
		}
	}
	forward(as)
}

// route adds a route to the block, unless the zone is the cluster domain or has a route in the block already.
func (c *converter) route(r config.Route, l *line) {
	if c.cfg.Cluster.Resolver != config.ResolverNone && c.clusterZone == r.Zone && !slices.Contains(c.cfg.Cluster.Fallthrough, r.Zone) {
		return // cluster.resolver answers all names of the cluster domain, so forward gets none of them
	}
	isEarly := func(other route) bool { return other.Zone == r.Zone && other.early }
	again := slices.IndexFunc(l.s.routes, func(other route) bool { return other.Zone == r.Zone })
	early := slices.IndexFunc(c.routes, isEarly)
	switch {
	case again >= 0:
		why, hint := fmt.Sprintf("%s already has a route, by %s", r.Zone, l.s.routes[again].at), "a zone has one route: list all upstreams in it, in order and with policy sequential"
		if !c.stays {
			l.lost(why, hint)
		} else {
			l.leave([]string{r.Zone}, why, hint)
		}
		return
	case early >= 0 && (r.Zone != "." || slices.Contains(l.args(), upstreams)):
		r.To = c.routes[early].To // NodeLocal DNSCache prefers these servers to those of the Corefile
	case early >= 0:
		c.lost(place{file: upstreamNameservers}, "the list", l.at.String()+" has other upstreams for all names", "")
	}
	c.routes = slices.DeleteFunc(c.routes, isEarly)
	l.s.routes = append(l.s.routes, route{Route: r, origin: l.origin()})
}

// forwarding is what a forward says: its upstreams and its options.
type forwarding struct {
	config.Route // policy, method and CA

	except      []string
	other, hint string                 // why no route does the same as this forward; empty: a route does
	targets     func() []config.Target // returns the upstreams, and notes those that cannot be converted
}

// parseForward parses the options of a forward.
func parseForward(l *line) *forwarding {
	f, tcp, serverName := &forwarding{}, false, ""
	f.Policy, f.Method = config.PolicyFastest, config.MethodPost
	f.targets = sync.OnceValue(func() []config.Target { return targets(l, f, tcp, serverName) })
	other := func(names, why, hint string) directive {
		return directive{names: names, take: func(l *line) { f.other, f.hint = l.words[0]+": "+why, hint }}
	}
	l.options(
		directive{names: "except", take: func(l *line) { f.except = append(f.except, l.args()...) }},
		flag("force_tcp", &tcp),
		directive{names: "prefer_udp"}, // prefer_udp is what node-cache does by default
		textOption("tls_servername", &serverName),
		directive{names: "doh_method", take: func(l *line) {
			if strings.EqualFold(l.all(), "get") {
				f.Method = config.MethodGet
			}
		}},
		directive{names: "policy", take: func(l *line) { f.Policy = policy(l) }},
		directive{names: "tls", take: func(l *line) {
			if f.CA = certificates(l); len(l.args()) >= 2 {
				f.other, f.hint = "client certificates are not supported", "let the upstream identify this client by its address"
			} else if f.CA != "" && l.c.stays {
				f.other = "the file is on the old server"
			}
		}},
		directive{names: "max_concurrent", take: maxConcurrent},
		directive{names: "failover", take: func(l *line) {
			isOther := func(code string) bool {
				return !slices.Contains([]string{"SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"}, strings.ToUpper(code))
			}
			if i := slices.IndexFunc(l.args(), isOther); i >= 0 {
				f.other, f.hint = "no failover for answers with "+l.args()[i], "SERVFAIL, REFUSED and missing answers cause a failover to the next upstream"
			}
		}},
		differs("max_fails health_check failfast_all_unhealthy_upstreams", ownTimers, timersHint),
		differs("expire max_idle_conns max_age", "node-cache keeps and renews connections with its own timers",
			"forward[].connections says how many there are"),
		differs("max_connect_attempts read_timeout", "the timeout depends on the upstream's usual response time",
			"limits.deadline bounds each query"),
		other("next next_on_nodata", "the content of an answer does not cause a failover",
			"SERVFAIL and REFUSED cause a failover to the next upstream"),
		other("source_address", "the kernel chooses the address that upstreams see",
			"set a route with a source address: ip route add … src …"),
		other("resolver", "upstreams have addresses", ""),
	)
	return f
}

func policy(l *line) string {
	switch l.all() {
	case "sequential":
		return config.PolicySequential
	case "round_robin":
		l.differs("upstreams are drawn, each as often as the others, and do not take turns", "")
		return config.PolicyRandom
	case "random":
		return config.PolicyRandom
	}
	l.unknown()
	return config.PolicyFastest
}

// certificates converts the arguments of tls: none, the CA, the client's certificate, or both.
func certificates(l *line) string {
	args := l.args()
	if len(args) != 1 && len(args) != 3 {
		return ""
	}
	if !l.c.stays {
		l.differs("the file is read where the agent runs, and the configuration is refused where it is not there",
			"mount a Secret with it into the agents' pods, and write its path there into tls.ca")
	}
	return args[len(args)-1]
}

// maxConcurrent bounds the in-flight queries of all upstreams together.
func maxConcurrent(l *line) {
	n, err := strconv.Atoi(l.all())
	if err != nil || n < 0 {
		l.lost("not a number", "")
		return
	}
	n = min(n, 1<<20)
	if limits := &l.c.cfg.Limits; n > 0 && l.set("limits.inflight", strconv.Itoa(n)) { // 0: no limit
		limits.Inflight, limits.Waiting = n, max(limits.Waiting, n)
		l.differs("the bound is on all upstreams together, and identical queries count once", "see limits.inflight")
	}
}

// targets returns the upstreams with an address, without duplicates.
func targets(l *line, f *forwarding, tcp bool, serverName string) []config.Target {
	var to []config.Target
	for _, word := range l.args()[1:] {
		for _, t := range wordTargets(l, f, word, serverName) {
			if tcp && t.Kind == config.Plain {
				t.Kind = config.TCP
			}
			to = appendNew(to, t)
		}
	}
	if tcp && slices.ContainsFunc(to, func(t config.Target) bool { return t.Kind == config.ResolvConf }) {
		l.c.differs(l.at, l.words[0]+": force_tcp", "the servers of a resolv.conf are queried over UDP, and over TCP after truncation",
			"write tcp:// and their addresses in place of the file where UDP must not be used")
	}
	return to
}

// wordTargets returns the upstreams of one argument of a forward.
func wordTargets(l *line, f *forwarding, word, serverName string) []config.Target {
	switch {
	case word == upstreams && len(l.c.upstreams) == 0:
		return []config.Target{{Kind: config.ResolvConf, Path: "/etc/resolv.conf"}}
	case word == upstreams:
		return l.c.upstreams
	case isDNSService(word):
		l.c.lost(l.at, word, "the endpoints of the DNS service are used for cluster names only", "write the addresses of a server that knows the zone")
		return nil
	}
	t, err := target(word, serverName)
	switch {
	case err != nil && placeholder(placeholders(), word) != "": // lex has noted the placeholder
		return nil
	case err != nil:
		f.other, f.hint = oneLine(err), ""
		return nil
	case l.c.stays && t.Addr.Addr().IsLoopback():
		f.other, f.hint = word+" is an address of the old server itself", ""
	case t.Kind == config.ResolvConf && t.Path != "/etc/resolv.conf":
		f.other, f.hint = word+" is a file of the old server", "mount it into the agents' pods, or list its servers"
		if !l.c.stays {
			f.other = ""
		}
	}
	l.c.forwardsTo(t)
	return []config.Target{t}
}

// target parses an upstream with the server name of its certificate.
func target(word, serverName string) (config.Target, error) {
	scheme, rest, _ := strings.Cut(word, "://")
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
