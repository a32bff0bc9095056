// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// host is a name with an address.
type host struct {
	name    string // canonical
	address netip.Addr
	origin
}

// addHosts moves the names of a block into the configuration. A template for each name answers its other types with no record.
func (c *converter) addHosts(s *server) {
	for _, h := range s.hosts {
		if c.cfg.Hosts.Names == nil {
			c.cfg.Hosts.Names = map[string][]netip.Addr{}
		}
		if c.cfg.Hosts.Names[h.name] == nil {
			c.origins[fmt.Sprintf("templates[%d]", len(c.cfg.Templates))] = origin{h.at, "other types of " + h.name, ""}
			c.cfg.Templates = append(c.cfg.Templates, config.Template{Zone: h.name, Match: []string{"^" + regexp.QuoteMeta(h.name) + "$"}})
		}
		c.cfg.Hosts.Names[h.name] = appendNew(c.cfg.Hosts.Names[h.name], h.address)
		if _, set := c.origins["hosts.names"]; !set {
			c.origins["hosts.names"] = h.origin
		}
	}
}

// hosts converts names with addresses: those of a file, and those in the block.
func hosts(l *line) {
	c, s, served := l.c, l.s, l.s.zones
	if len(l.args()) > 1 {
		served = overlap(s.zones, l.zones(l.args()[1:]))
	}
	onward, isThrough, reverse, ttl := []string(nil), false, true, time.Hour
	for _, st := range l.body {
		switch option := l.option(&st); st.words[0] {
		case "fallthrough":
			isThrough, onward = true, option.zones(option.args())
		case "reload": // files are always watched
		case "fallthrough_unsupported":
			option.leave(nil, "other types of its names are looked up, not denied", "")
		case "no_reverse":
			reverse = false
		case "ttl":
			if d, ok := parseDuration(option.arg(0, "")); ok && d > 0 {
				ttl = d
			} else {
				option.lost("not a number of seconds", "")
			}
		default:
			hostsLine(l, option, served)
		}
	}
	isFile := len(l.args()) > 0 && l.arg(0, "") != "/etc/hosts"
	stays := func(zone string) bool {
		return len(onward) > 0 && !slices.ContainsFunc(onward, func(o string) bool { return below(zone, o) })
	}
	others := slices.ContainsFunc(s.plugins, func(st statement) bool {
		return slices.Contains(strings.Fields("forward proxy kubernetes file etcd auto secondary k8s_external"), st.words[0])
	})
	switch {
	case isFile && (c.stays || len(c.servers) > 1 || !slices.Equal(served, []string{"."})):
		l.leave(nil, "the names of a file are answered in all zones", "list the names in hosts.names")
	case isThrough && slices.ContainsFunc(served, stays), !isThrough && others:
		l.leave(nil, "unknown names are looked up, not failed", "")
	}
	hostsTTL(l, ttl)
	hostsReverse(l, reverse)
	hostsFile(l, isFile)
}

// hostsTTL sets hosts.ttl, which is for all names, to the TTL that clients of CoreDNS get, within the bounds of the plugin cache.
func hostsTTL(l *line, ttl time.Duration) {
	bounds, _, isCached := clientTTLs(l.s)
	if isCached {
		ttl = min(max(ttl, bounds[0]), bounds[1])
	}
	ttl = ttl.Truncate(time.Second)
	before, again := l.c.origins["hosts.ttl"]
	switch {
	case ttl > time.Hour, again && before.value != ttl.String():
		l.leave(nil, "the TTL of hosts is one for all zones, and at most 1h", "")
	default:
		l.set("hosts.ttl", ttl.String())
		l.c.cfg.Hosts.TTL = ttl
	}
}

// hostsReverse sets whether the reverse names of the addresses are answered: only a block that has them answers them.
func hostsReverse(l *line, wanted bool) {
	for _, h := range l.s.hosts {
		name, err := dns.ReverseAddr(h.address.String())
		is := wanted && err == nil && l.c.serverFor(name) == l.s
		before, again := l.c.origins["hosts.reverse"]
		if text := strconv.FormatBool(is); again && before.value != text {
			l.leave(nil, "the reverse names of hosts are answered for all zones, or for none", "")
			return
		} else if !again {
			l.set("hosts.reverse", text)
			l.c.cfg.Hosts.NoReverse = !is
		}
	}
}

// hostsLine converts an address and its names, as in hosts(5).
func hostsLine(hosts, l *line, served []string) {
	address, err := netip.ParseAddr(l.words[0])
	if err != nil {
		l.unknown()
		return
	}
	for _, name := range l.args() {
		lower := strings.ToLower(strings.TrimSuffix(name, ".")) + "."
		_, err := config.ParseZone(name)
		switch {
		case l.c.serverFor(lower) != l.s || !slices.ContainsFunc(served, func(zone string) bool { return below(lower, zone) }):
			l.differs(name+" is in no zone of the block, so it is answered neither there nor here", "")
		case strings.HasPrefix(lower, "*."):
			l.leave([]string{strings.TrimPrefix(lower, "*.")}, "names in hosts have no wildcards", "a template answers them: {zone: …, types: […], answer: […]}")
		case err != nil || lower == ".":
			l.lost("not a name that can be asked for: "+name, "")
		default:
			l.s.hosts = append(l.s.hosts, host{lower, address.Unmap().WithZone(""), origin{at: l.at, text: hosts.text()}})
		}
	}
}

// hostsFile converts the hosts file that hosts names, by default /etc/hosts.
func hostsFile(l *line, isFile bool) {
	c, file := l.c, l.arg(0, "/etc/hosts")
	if len(l.args()) == 0 && len(l.s.hosts) > 0 {
		l.differs("/etc/hosts is not read in addition to inline names", "write files: [/etc/hosts] into hosts if needed")
		return
	}
	if roots := l.s.all("root"); !filepath.IsAbs(file) && len(roots) > 0 && len(roots[0].args()) == 1 {
		file = filepath.Join(roots[0].args()[0], file)
	}
	file = filepath.Clean(file)
	if slices.Contains(c.cfg.Hosts.Files, file) {
		return
	}
	c.cfg.Hosts.Files = append(c.cfg.Hosts.Files, file)
	c.origins["hosts.files"], c.origins["hosts"] = l.origin(), origin{at: l.at}
	if isFile {
		l.differs("the file is read on the agent's host and must exist there",
			"mount what has it into the agents' pods and write its path there into hosts.files, or list the names in hosts.names")
	}
}

// dns64 converts the prefix of a NAT64.
func dns64(l *line) {
	prefix, all, v4 := l.arg(0, "64:ff9b::/96"), false, false
	l.options(textOption("prefix", &prefix), flag("translate_all", &all), flag("allow_ipv4", &v4))
	p, err := netip.ParsePrefix(prefix)
	switch {
	case err != nil:
		l.lost("not a prefix: "+prefix, "")
	case len(l.c.servers) > 1:
		l.leave(nil, "IPv6 addresses are synthesized in all zones, or in none", "")
	case l.set("dns64.prefix", p.Masked().String()):
		l.c.cfg.DNS64.Prefix, l.c.cfg.DNS64.TranslateAll = p.Masked(), all
		if v4 {
			l.c.cfg.DNS64.Clients = config.DNS64All
		}
	}
}

// template converts answers by pattern.
func template(l *line) {
	c, s := l.c, l.s
	class, typ := strings.ToUpper(l.arg(0, "")), strings.ToUpper(l.arg(1, ""))
	var t config.Template
	rrtype, known := dns.StringToType[typ]
	switch {
	case typ == "":
		l.lost("class and type are missing", "")
		return
	case class != "IN" && class != "ANY":
		l.lost("only questions of class IN are answered", "")
		return
	case typ != "ANY" && !known:
		l.lost(l.args()[1]+" is not a type", "")
		return
	case typ != "ANY":
		t.Types = []uint16{rrtype}
	}
	zones := s.zones
	if len(l.args()) > 2 {
		zones = overlap(s.zones, l.zones(l.args()[2:]))
	}
	onward, other := templateBody(l, &t)
	var match []*regexp.Regexp
	for _, expression := range t.Match {
		if e, err := regexp.Compile(expression); err == nil { // the validation refuses expressions that do not compile
			match = append(match, e)
		}
	}
	for _, zone := range zones {
		switch {
		case other != "":
		case c.otherServerBelow(s, zone) != "":
			other = "templates apply to all names of their zone, also to those of " + c.otherServerBelow(s, zone)
		case slices.ContainsFunc(s.hosts, func(h host) bool { return below(h.name, zone) && overrides(&t, match, h, s.hosts) }):
			other = "hosts come before templates here, and after them there"
		}
	}
	if other != "" {
		l.leave(nil, other, "")
		return
	}
	bound(s, &t)
	for _, zone := range zones {
		t.Zone = zone
		s.templates = append(s.templates, sourced[config.Template]{t, l.origin()})
		if len(t.Match) > 0 && !onward {
			s.templates = append(s.templates, sourced[config.Template]{
				config.Template{Zone: zone, Types: t.Types, Rcode: dns.RcodeServerFailure}, origin{at: l.at, text: l.text() + ", without fallthrough"},
			})
		}
	}
}

// overrides reports whether a template, with its compiled expressions, gives another answer than hosts for a name.
func overrides(t *config.Template, match []*regexp.Regexp, h host, all []host) bool {
	if len(t.Match) > 0 && !slices.ContainsFunc(match, func(e *regexp.Regexp) bool { return e.MatchString(h.name) }) {
		return false
	}
	isEmpty := t.Rcode == dns.RcodeSuccess && len(t.Answer)+len(t.Authority)+len(t.Additional) == 0
	if !isEmpty || len(t.Types) == 0 {
		return true
	}
	has := func(rrtype uint16) bool {
		return slices.ContainsFunc(all, func(other host) bool {
			return other.name == h.name && other.address.Is4() == (rrtype == dns.TypeA)
		})
	}
	return (t.Types[0] == dns.TypeA || t.Types[0] == dns.TypeAAAA) && has(t.Types[0])
}

// bound limits the TTLs in a template's records to the bounds of the plugin cache, as clients get them from CoreDNS.
func bound(s *server, t *config.Template) {
	answers, denials, isCached := clientTTLs(s)
	if !isCached {
		return
	}
	if len(t.Answer) == 0 {
		answers = denials
	}
	for _, list := range [][]string{t.Answer, t.Authority, t.Additional} {
		for i, record := range list {
			before, after, _ := strings.Cut(record, " ")
			if strings.HasPrefix(record, "{{") {
				name, rest, _ := strings.Cut(record, "}}")
				before, after = name+"}}", strings.TrimPrefix(rest, " ")
			}
			number, rest, _ := strings.Cut(after, " ")
			if d, ok := parseDuration(number); ok && rest != "" {
				list[i] = fmt.Sprintf("%s %d %s", before, int(min(max(d, answers[0]), answers[1]).Seconds()), rest)
			}
		}
	}
}

// templateBody parses the block. It reports whether the block has fallthrough, and why no template does the same; empty: one does.
func templateBody(l *line, t *config.Template) (onward bool, other string) {
	appendTo := func(name string, to *[]string) directive {
		return directive{names: name, take: func(l *line) { *to = append(*to, l.args()...) }}
	}
	l.options(
		directive{names: "match", take: func(l *line) {
			t.Match = append(t.Match, slices.DeleteFunc(slices.Clone(l.args()), func(m string) bool { return slices.Contains(t.Match, m) })...)
		}},
		appendTo("answer", &t.Answer), appendTo("authority", &t.Authority), appendTo("additional", &t.Additional),
		directive{names: "rcode", take: func(l *line) {
			code, known := dns.StringToRcode[strings.ToUpper(l.all())]
			if t.Rcode = code; !known || code > dns.RcodeRefused {
				t.Rcode, other = 0, "an answer has one of the first six codes"
			}
		}},
		directive{names: "fallthrough", take: func(l *line) {
			through := l.zones(l.args())
			stays := func(zone string) bool {
				return !slices.ContainsFunc(through, func(t string) bool { return below(zone, t) })
			}
			if onward = true; len(through) > 0 && slices.ContainsFunc(l.s.zones, stays) {
				other = "names that do not match are looked up in all zones, or fail in all"
			}
		}},
		directive{names: "ederror", take: func(*line) { other = "templates do not support Extended DNS Errors" }},
		directive{names: "upstream"}, // CoreDNS ignores upstream as well
	)
	return onward, other
}

// otherServerBelow returns a zone below zone that another server block than s has, or "".
func (c *converter) otherServerBelow(s *server, zone string) string {
	for _, other := range c.servers {
		if i := slices.IndexFunc(other.zones, func(z string) bool { return z != zone && below(z, zone) }); other != s && i >= 0 {
			return other.zones[i]
		}
	}
	return ""
}
