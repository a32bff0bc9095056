// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// hosts converts names with addresses: those of a file, and those in the block.
func hosts(l *line) {
	c, served, inline, onward := l.c, l.s.zones, false, false
	if len(l.args()) > 1 {
		served = overlap(l.s.zones, l.zones(l.args()[1:]))
	}
	hostsTTL(l)
	options := []directive{
		{names: "fallthrough", take: func(l *line) {
			if onward = true; len(l.args()) > 0 {
				l.differs("unknown names are always looked up, in all zones", "")
			}
		}},
		{names: "ttl reload"},              // read before; files are always watched
		{names: "fallthrough_unsupported"}, // other types of the names are always looked up
		flag("no_reverse", &c.cfg.Hosts.NoReverse),
	}
	for _, st := range l.body {
		if i := slices.IndexFunc(options, func(d directive) bool { return d.is(st.words[0]) }); i >= 0 {
			options[i].apply(l.option(&st))
		} else {
			inline = true
			hostsLine(l, l.option(&st), served)
		}
	}
	hostsFile(l, inline)
	for _, zone := range served { // unknown names of the root have other answers
		switch {
		case onward:
		case zone == "." && (len(c.servers) > 1 || c.servesCluster):
			l.lost("unknown names are looked up, not denied: fallthrough is always on", "")
		default:
			c.denied = append(c.denied, sourced[string]{zone, origin{at: l.at, text: l.text() + ", without fallthrough"}})
		}
	}
}

// hostsTTL converts the TTL of all names.
func hostsTTL(l *line) {
	c := l.c
	for _, st := range l.body {
		if st.words[0] == "ttl" && len(st.words) > 1 { // wildcards contain it
			l.option(&st).setDuration(st.words[1], "hosts.ttl", 0, time.Hour, &c.cfg.Hosts.TTL)
			c.cfg.Hosts.TTL = c.cfg.Hosts.TTL.Truncate(time.Second)
		}
	}
	if _, written := c.origins["hosts.ttl"]; !written {
		changed(c, l.at, l.text(), "the names have TTL 30s, 1h there", "hosts.ttl: 1h", func() { c.cfg.Hosts.TTL = time.Hour })
	}
}

// hostsLine converts an address and its names, as in hosts(5).
func hostsLine(hosts, l *line, served []string) {
	address, err := netip.ParseAddr(l.words[0])
	if err != nil {
		l.unknown()
		return
	}
	address = address.Unmap().WithZone("")
	for _, name := range l.args() {
		lower := strings.ToLower(strings.TrimSuffix(name, ".")) + "."
		parent, isWildcard := strings.CutPrefix(lower, "*.")
		_, err := config.ParseZone(name)
		switch {
		case !slices.ContainsFunc(served, func(zone string) bool { return below(lower, zone) }):
			l.lost(name+" is in no zone of the server, so it is not answered there either", "")
			continue
		case isWildcard:
			wildcard(l, parent, address)
			continue
		case err != nil || lower == ".":
			l.lost("not a name that can be asked for: "+name, "")
			continue
		case l.c.serverFor(lower) != l.s:
			l.differs("another server is asked for "+name+" there, and it is answered here", "leave it out")
		}
		l.c.host(origin{at: l.at, text: hosts.text()}, lower, address)
	}
}

// host adds addresses to a name, without duplicates.
func (c *converter) host(from origin, name string, addresses ...netip.Addr) {
	if c.cfg.Hosts.Names == nil {
		c.cfg.Hosts.Names = map[string][]netip.Addr{}
	}
	for _, a := range addresses {
		c.cfg.Hosts.Names[name] = appendNew(c.cfg.Hosts.Names[name], a)
	}
	if _, set := c.origins["hosts.names"]; !set {
		c.origins["hosts.names"] = from
	}
}

// wildcard answers all names one label below a name, with a template for each family.
func wildcard(l *line, parent string, address netip.Addr) {
	c, match := l.c, []string{oneLabelBelow(parent)}
	rrtype := dns.TypeA
	if address.Is6() {
		rrtype = dns.TypeAAAA
	}
	record := c.addressRecord(rrtype, address)
	for i := range c.templates {
		if have := &c.templates[i].value; have.Zone == parent && slices.Equal(have.Types, []uint16{rrtype}) && slices.Equal(have.Match, match) {
			have.Answer = append(have.Answer, record)
			return
		}
	}
	from := origin{at: l.at, text: l.what()}
	if last := len(c.wild) - 1; last < 0 || c.wild[last].value != parent {
		c.wild = append(c.wild, sourced[string]{parent, origin{at: l.at, text: from.text + ", other types"}})
	}
	c.templates = append(c.templates, sourced[config.Template]{config.Template{Zone: parent, Types: []uint16{rrtype}, Match: match, Answer: []string{record}}, from})
	l.differs("a template answers the names; names in hosts take precedence", "")
}

// oneLabelBelow returns an expression for the names one label below another.
func oneLabelBelow(parent string) string { return `^[^.]+\.` + regexp.QuoteMeta(parent) + `$` }

// addressRecord returns the record of a template with an address.
func (c *converter) addressRecord(rrtype uint16, a netip.Addr) string {
	return fmt.Sprintf("{{ .Name }} %d IN %s %s", int(c.cfg.Hosts.TTL.Seconds()), dns.TypeToString[rrtype], a)
}

// hostsFile converts the file, by default /etc/hosts.
func hostsFile(l *line, inline bool) {
	c := l.c
	if len(l.args()) == 0 && inline {
		l.differs("/etc/hosts is not read in addition to inline names", "write files: [/etc/hosts] into hosts if needed")
		return
	}
	file := l.arg(0, "/etc/hosts")
	if roots := l.s.all("root"); !filepath.IsAbs(file) && len(roots) > 0 && len(roots[0].args()) == 1 {
		file = filepath.Join(roots[0].args()[0], file)
	}
	file = filepath.Clean(file)
	if slices.Contains(c.cfg.Hosts.Files, file) {
		return
	}
	c.cfg.Hosts.Files = append(c.cfg.Hosts.Files, file)
	c.origins["hosts.files"], c.origins["hosts"] = l.origin(), origin{at: l.at}
	if file != "/etc/hosts" {
		l.differs("the file is read on the agent's host and must exist there",
			"mount what has it into the agents' pods and write its path there into hosts.files, or list the names in hosts.names")
	}
	if len(c.servers) > 1 || !slices.Equal(l.s.zones, []string{"."}) {
		l.differs("the names of a file are answered in all zones", "")
	}
}

// local converts the names of the host itself.
func local(l *line) {
	if _, again := l.c.cfg.Hosts.Names["localhost."]; !again {
		l.c.origins["hosts.names"] = l.origin()
		l.c.host(l.origin(), "localhost.", netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	l.differs("localhost is answered, and not the names below a search domain that begin with it", "")
}

// dns64 converts the prefix of a NAT64.
func dns64(l *line) {
	prefix, all, v4 := l.arg(0, "64:ff9b::/96"), false, false
	l.options(text("prefix", &prefix), flag("translate_all", &all), flag("allow_ipv4", &v4))
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		l.lost("not a prefix: "+prefix, "")
		return
	}
	if !l.set("dns64.prefix", p.Masked().String()) {
		return
	}
	l.c.cfg.DNS64.Prefix, l.c.cfg.DNS64.TranslateAll = p.Masked(), all
	if v4 {
		l.c.cfg.DNS64.Clients = config.DNS64All
	}
	if len(l.c.servers) > 1 {
		l.differs("it applies to the names of all servers", "")
	}
}

// template converts answers by pattern.
func template(l *line) {
	c := l.c
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
	zones := l.s.zones
	if len(l.args()) > 2 {
		zones = overlap(l.s.zones, l.zones(l.args()[2:]))
	}
	onward := templateBody(l, &t)
	for _, zone := range zones {
		if other := c.otherServerBelow(l.s, zone); other != "" && matchesAll(t.Match) && !isEmpty(&t) {
			l.lost("it would also answer for "+other+", which has its own server: templates come before routes",
				"write a route for "+zone+" to a name server")
			continue
		}
		one := t
		one.Zone = zone
		c.templates = append(c.templates, sourced[config.Template]{one, l.origin()})
		noteScope(l, zone)
		if len(t.Match) > 0 && !onward {
			c.templates = append(c.templates, sourced[config.Template]{
				config.Template{Zone: zone, Types: t.Types, Rcode: dns.RcodeServerFailure}, origin{at: l.at, text: l.text() + ", without fallthrough"},
			})
		}
	}
}

// templateBody parses the block, and reports whether it has fallthrough.
func templateBody(l *line, t *config.Template) (onward bool) {
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
			if !known || code > dns.RcodeRefused {
				l.lost("an answer has one of the first six codes", "")
				return
			}
			t.Rcode = code
		}},
		directive{names: "fallthrough", take: func(l *line) {
			if onward = true; len(l.args()) > 0 {
				l.differs("names that do not match are always looked up, in all zones", "")
			}
		}},
		lost("ederror", "templates do not support Extended DNS Errors", ""),
		directive{names: "upstream"}, // CoreDNS ignores it as well
	)
	return onward
}

// noteScope notes a template that applies to another server's names.
func noteScope(l *line, zone string) {
	if other := l.c.otherServerBelow(l.s, zone); other != "" {
		l.differs("templates apply to all names of their zone, including those of another server: "+other, "check that the expressions do not match these")
	}
}

// otherServerBelow returns a zone below another that a different server has, or "".
func (c *converter) otherServerBelow(s *server, zone string) string {
	for _, other := range c.servers {
		if i := slices.IndexFunc(other.zones, func(z string) bool { return z != zone && below(z, zone) }); other != s && i >= 0 {
			return other.zones[i]
		}
	}
	return ""
}

// isEmpty reports whether a template only says that there is no record.
func isEmpty(t *config.Template) bool {
	return t.Rcode == dns.RcodeSuccess && len(t.Answer)+len(t.Additional) == 0
}

// maxRecords bounds the records of a zone file.
const maxRecords = 10_000

// zoneFile converts a zone whose text is in the Corefile's ConfigMap: names with addresses go to hosts.
func zoneFile(l *line) {
	c := l.c
	file, known := c.files[path.Base(l.arg(0, ""))]
	served, onward := l.s.zones, false
	if len(l.args()) > 1 {
		served = overlap(l.s.zones, l.zones(l.args()[1:]))
	}
	if !known {
		l.unread(served, noZones, listZone)
		return
	}
	l.options(flag("fallthrough", &onward), directive{names: "reload upstream"}) // the converted zone does not change by itself
	for _, zone := range served {
		records, err := zoneRecords(file.Text, zone)
		if err != nil {
			l.lost("the file is not read as that of "+zone+": "+err.Error(), "list the addresses of the zone in hosts.names")
			continue
		}
		convertZone(l, zone, records)
		l.s.own = append(l.s.own, zone)
		if !onward {
			apex := config.Template{Zone: zone, Match: []string{"^" + regexp.QuoteMeta(zone) + "$"}} // the apex always exists
			c.templates = append(c.templates, sourced[config.Template]{apex, l.origin()})
			c.denied = append(c.denied, sourced[string]{zone, origin{at: l.at, text: l.text() + ", its other names"}})
		}
		l.differs("the addresses of "+zone+" are in hosts, with one TTL and with their reverse names, and without its SOA and NS records", "")
	}
}

// zoneRecords parses the records of a zone. Records of other zones are an error.
func zoneRecords(text []byte, zone string) ([]dns.RR, error) {
	parser := dns.NewZoneParser(bytes.NewReader(text), zone, "")
	parser.SetDefaultTTL(3600)
	var list []dns.RR
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		rr.Header().Name = dns.CanonicalName(rr.Header().Name)
		switch {
		case !below(rr.Header().Name, zone):
			return nil, fmt.Errorf("%s is not in the zone", rr.Header().Name)
		case len(list) == maxRecords:
			return nil, fmt.Errorf("more than %d records", maxRecords)
		}
		list = append(list, rr)
	}
	if err := parser.Err(); err != nil {
		return nil, fmt.Errorf("reading the zone: %w", err)
	}
	return list, nil
}

// convertZone moves the addresses of a zone into hosts, and those of its wildcards into templates, the longest names first.
func convertZone(l *line, zone string, records []dns.RR) {
	addresses, aliases, order := map[string][]netip.Addr{}, map[string]string{}, make([]string, 0, len(records))
	for _, rr := range records {
		name := rr.Header().Name
		order = append(order, name)
		switch rr := rr.(type) {
		case *dns.A:
			a, _ := netip.AddrFromSlice(rr.A.To4())
			addresses[name] = append(addresses[name], a)
		case *dns.AAAA:
			a, _ := netip.AddrFromSlice(rr.AAAA.To16())
			addresses[name] = append(addresses[name], a.Unmap())
		case *dns.CNAME:
			aliases[name] = dns.CanonicalName(rr.Target)
		case *dns.SOA, *dns.NS:
			if name != zone {
				l.c.lost(l.at, "file: "+name, "delegations are not followed", "write a route for it: {zone: …, to: […]}")
			}
		default:
			l.c.lost(l.at, "file: "+name+" "+dns.TypeToString[rr.Header().Rrtype], "hosts has only addresses", "a template can have the record")
		}
	}
	rank := func(name string) int { // a wildcard has lower precedence than other names and longer wildcards
		if strings.HasPrefix(name, "*.") {
			return dns.CountLabel(name)
		}
		return math.MaxInt
	}
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a, b)) })
	for _, name := range slices.Compact(order) {
		end := name // of the chain of aliases in the zone
		for range len(aliases) {
			if target, isAlias := aliases[end]; isAlias && below(end, zone) {
				end = target
			}
		}
		zoneName(l, zone, name, end, addresses[end], aliases[end] != "")
	}
}

// zoneName converts one name of a zone: with its addresses, or with those of the end of its chain of aliases. endless: the
// chain has no end.
func zoneName(l *line, zone, name, end string, addresses []netip.Addr, endless bool) {
	expression := "^" + regexp.QuoteMeta(name) + "$"
	parent, isWildcard := strings.CutPrefix(name, "*.")
	if isWildcard {
		expression = `^.+\.` + regexp.QuoteMeta(parent) + "$"
	}
	switch {
	case len(addresses) > 0 && isWildcard:
		hostTemplates(l, parent, expression, addresses)
	case len(addresses) > 0:
		l.c.host(l.origin(), name, addresses...)
	case end != name && !endless && !below(end, zone):
		l.alias(config.Template{Zone: parent, Match: []string{expression}, Answer: []string{aliasRecord(end)}})
	case end != name:
		l.c.lost(l.at, "file: "+name+" CNAME", "it has no address", "")
	}
}

// alias adds a template that comes before all others.
func (l *line) alias(t config.Template) {
	l.c.aliases = append(l.c.aliases, sourced[config.Template]{t, l.origin()})
}

// aliasRecord returns the record of a template that makes names aliases.
func aliasRecord(target string) string { return "{{ .Name }} 30 IN CNAME " + target }

// hostTemplates answers the names that match an expression by templates: with the addresses, and without data for other types.
func hostTemplates(l *line, zone, expression string, addresses []netip.Addr) {
	add := func(types []uint16, answer []string) {
		l.alias(config.Template{Zone: zone, Match: []string{expression}, Types: types, Answer: answer})
	}
	for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		var answer []string
		for _, a := range addresses {
			if a.Is4() == (rrtype == dns.TypeA) {
				answer = append(answer, l.c.addressRecord(rrtype, a))
			}
		}
		if len(answer) > 0 {
			add([]uint16{rrtype}, answer)
		}
	}
	add(nil, nil)
}
