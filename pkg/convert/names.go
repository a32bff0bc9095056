// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// Rcodes of the templates.
const (
	rcodeServFail = dns.RcodeServerFailure
	rcodeNXDomain = dns.RcodeNameError
)

// hosts converts names with addresses: those of a file, and those in the block.
func (c *corefile) hosts(s *server, st *statement) {
	file, served := "", s.zones
	if args := st.args(); len(args) > 0 {
		file = args[0]
		if len(args) > 1 {
			served = overlap(s.zones, c.namedZones(st, args[1:]))
		}
	}
	ttl := statement{words: []string{"ttl"}}
	for _, option := range st.body {
		if option.words[0] == "ttl" {
			ttl = option
		}
	}
	c.hostsTTL(&ttl)
	var inline, onward bool
	for _, option := range st.body {
		args := option.args()
		switch option.words[0] {
		case "fallthrough":
			onward = true
			if len(args) > 0 {
				c.noteDiffers(option.at, "hosts: "+option.text(), "unknown names are always looked up, in all zones", "")
			}
		case "ttl": // read before: wildcards contain it
		case "no_reverse":
			c.cfg.Hosts.NoReverse = true
		case "reload", "fallthrough_unsupported": // files are always watched
		default:
			inline = true
			c.hostsLine(s, st, &option, served)
		}
	}
	c.hostsFile(s, st, file, inline)
	if !onward {
		c.denyOthers(st, served)
	}
}

func (c *corefile) hostsTTL(option *statement) {
	if len(option.args()) == 0 {
		return
	}
	if d, ok := c.span(option, option.args()[0], 0, time.Hour); ok && c.setKey("hosts.ttl", option, d.String()) {
		c.cfg.Hosts.TTL = d.Truncate(time.Second)
	}
}

// namedZones returns the zones in the arguments of a plugin.
func (c *corefile) namedZones(st *statement, hosts []string) []string {
	var list []string
	for _, host := range hosts {
		named, err := zones(fillPlaceholders(host))
		if err != nil {
			c.noteLost(st.at, st.text(), oneLine(err), "")
			continue
		}
		list = append(list, named...)
	}
	return list
}

// hostsLine converts an address and its names, as in hosts(5).
func (c *corefile) hostsLine(s *server, st, line *statement, served []string) {
	address, err := netip.ParseAddr(line.words[0])
	if err != nil {
		c.unknown(st, line)
		return
	}
	address = address.Unmap().WithZone("")
	for _, name := range line.args() {
		lower := strings.ToLower(strings.TrimSuffix(name, ".")) + "."
		if !slices.ContainsFunc(served, func(zone string) bool { return below(lower, zone) }) {
			c.noteLost(line.at, "hosts: "+line.text(), name+" is in no zone of the server, so it is not answered there either", "")
			continue
		}
		if parent, found := strings.CutPrefix(lower, "*."); found {
			c.wildcard(line, parent, address)
			continue
		}
		if _, err := config.ParseZone(name); err != nil || lower == "." {
			c.noteLost(line.at, "hosts: "+line.text(), "not a name that can be asked for: "+name, "")
			continue
		}
		if c.serverFor(lower) != s {
			c.noteDiffers(line.at, "hosts: "+line.text(), "another server is asked for "+name+" there, and it is answered here", "leave it out")
		}
		c.host(lower, address)
		if _, set := c.sources["hosts.names"]; !set {
			c.sources["hosts.names"] = line.at.String() + ": " + st.text()
		}
	}
}

// host adds an address to a name, without duplicates.
func (c *corefile) host(name string, address netip.Addr) {
	names := &c.cfg.Hosts.Names
	i, again := c.hostAt[name]
	if !again {
		i = len(*names)
		c.hostAt[name] = i
		*names = append(*names, config.Host{Name: name})
	}
	if have := &(*names)[i].Addresses; !slices.Contains(*have, address) {
		*have = append(*have, address)
	}
}

// wildcard answers all names one label below a name, with a template for each family.
func (c *corefile) wildcard(line *statement, parent string, address netip.Addr) {
	t := config.Template{Zone: parent, Types: []uint16{dns.TypeA}, Match: []string{oneLabelBelow(parent)}}
	record := "A"
	if address.Is6() {
		t.Types, record = []uint16{dns.TypeAAAA}, "AAAA"
	}
	text := fmt.Sprintf("{{ .Name }} %d IN ", int(c.cfg.Hosts.TTL.Seconds())) + record + " " + address.String()
	for i := range c.templates {
		if have := &c.templates[i].value; have.Zone == t.Zone && slices.Equal(have.Types, t.Types) && slices.Equal(have.Match, t.Match) {
			have.Answer = append(have.Answer, text)
			return
		}
	}
	t.Answer = []string{text}
	if last := len(c.wild) - 1; last < 0 || c.wild[last].value != parent {
		c.wild = append(c.wild, sourced[string]{parent, line.at, "hosts: " + line.text() + ", other types"})
	}
	c.templates = append(c.templates, sourced[config.Template]{t, line.at, "hosts: " + line.text()})
	c.noteDiffers(line.at, "hosts: "+line.text(), "a template answers the names; names in hosts take precedence", "")
}

// oneLabelBelow returns an expression for the names one label below another.
func oneLabelBelow(parent string) string { return `^[^.]+\.` + regexp.QuoteMeta(parent) + `$` }

// hostsFile converts the file, by default /etc/hosts.
func (c *corefile) hostsFile(s *server, st *statement, file string, inline bool) {
	switch {
	case file == "" && inline:
		c.noteDiffers(st.at, st.text(), "/etc/hosts is not read in addition to inline names", "write files: [/etc/hosts] into hosts if needed")
		return
	case file == "":
		file = "/etc/hosts"
	}
	if roots := s.all("root"); !filepath.IsAbs(file) && len(roots) > 0 && len(roots[0].args()) == 1 {
		file = filepath.Join(roots[0].args()[0], file)
	}
	if slices.Contains(c.cfg.Hosts.Files, filepath.Clean(file)) {
		return
	}
	c.cfg.Hosts.Files = append(c.cfg.Hosts.Files, filepath.Clean(file))
	c.sources["hosts.files"] = st.at.String() + ": " + st.text()
	c.keys["hosts"] = keySet{at: st.at}
	if filepath.Clean(file) != "/etc/hosts" {
		c.noteDiffers(st.at, st.text(), "the file is read on the agent's host and must exist there",
			"mount what has it into the agents' pods and write its path there into hosts.files, or list the names in hosts.names")
	}
	if len(c.servers) > 1 || !slices.Equal(s.zones, []string{"."}) {
		c.noteDiffers(st.at, st.text(), "the names of a file are answered in all zones", "")
	}
}

// denyOthers denies the other names of zones that only hosts answers. Names of the root zone have other answers.
func (c *corefile) denyOthers(st *statement, served []string) {
	for _, zone := range served {
		if zone == "." {
			c.noteLost(st.at, st.text(), "unknown names are looked up, not denied: fallthrough is always on", "")
			continue
		}
		c.denied = append(c.denied, sourced[string]{zone, st.at, st.text() + ", without fallthrough"})
	}
}

// denialTemplates writes templates that deny the zones of hosts, and the types without data at wildcard names.
func (c *corefile) denialTemplates() {
	for _, w := range c.wild {
		c.templates = append(c.templates, sourced[config.Template]{config.Template{Zone: w.value, Match: []string{oneLabelBelow(w.value)}}, w.at, w.text})
	}
	for _, d := range c.denied {
		if c.isServedBelow(d.value) {
			c.noteLost(d.at, d.text, "unknown names are looked up, not denied: there is a route in "+d.value, "")
			continue
		}
		c.templates = append(c.templates, sourced[config.Template]{config.Template{Zone: d.value, Rcode: rcodeNXDomain}, d.at, d.text})
	}
}

// template converts answers by pattern.
func (c *corefile) template(s *server, st *statement) {
	args := st.args()
	if len(args) < 2 {
		c.noteLost(st.at, st.text(), "class and type are missing", "")
		return
	}
	if class := strings.ToUpper(args[0]); class != "IN" && class != "ANY" {
		c.noteLost(st.at, st.text(), "only questions of class IN are answered", "")
		return
	}
	var t config.Template
	if typ := strings.ToUpper(args[1]); typ != "ANY" {
		value, known := dns.StringToType[typ]
		if !known {
			c.noteLost(st.at, st.text(), args[1]+" is not a type", "")
			return
		}
		t.Types = []uint16{value}
	}
	zones := s.zones
	if len(args) > 2 {
		zones = overlap(s.zones, c.namedZones(st, args[2:]))
	}
	onward := c.templateBody(st, &t)
	for _, zone := range zones {
		if other := c.otherServerBelow(s, zone); other != "" && matchesAll(t.Match) && !isEmpty(&t) {
			c.noteLost(st.at, st.text(), "it would also answer for "+other+", which has its own server: templates come before routes",
				"write a route for "+zone+" to a name server")
			continue
		}
		one := t
		one.Zone = zone
		c.templates = append(c.templates, sourced[config.Template]{one, st.at, st.text()})
		c.noteTemplateScope(s, st, zone)
		if len(t.Match) > 0 && !onward {
			c.templates = append(c.templates, sourced[config.Template]{
				config.Template{Zone: zone, Types: t.Types, Rcode: rcodeServFail}, st.at, st.text() + ", without fallthrough",
			})
		}
	}
}

// templateBody parses the block, and reports whether it has fallthrough.
func (c *corefile) templateBody(st *statement, t *config.Template) (onward bool) {
	for _, option := range st.body {
		args := option.args()
		switch option.words[0] {
		case "match":
			t.Match = append(t.Match, slices.DeleteFunc(slices.Clone(args), func(m string) bool { return slices.Contains(t.Match, m) })...)
		case "answer":
			t.Answer = append(t.Answer, args...)
		case "authority":
			t.Authority = append(t.Authority, args...)
		case "additional":
			t.Additional = append(t.Additional, args...)
		case "rcode":
			code, known := dns.StringToRcode[strings.ToUpper(strings.Join(args, " "))]
			if !known || code > dns.RcodeRefused {
				c.option(st, &option, "an answer has one of the first six codes", "")
				continue
			}
			t.Rcode = code
		case "fallthrough":
			onward = true
			if len(args) > 0 {
				c.noteDiffers(option.at, "template: "+option.text(), "names that do not match are always looked up, in all zones", "")
			}
		case "ederror":
			c.option(st, &option, "templates do not support Extended DNS Errors", "")
		case "upstream": // CoreDNS ignores it as well
		default:
			c.unknown(st, &option)
		}
	}
	return onward
}

// noteTemplateScope notes a template that applies to another server's names.
func (c *corefile) noteTemplateScope(s *server, st *statement, zone string) {
	if other := c.otherServerBelow(s, zone); other != "" {
		c.noteDiffers(st.at, st.text(), "templates apply to all names of their zone, including those of another server: "+other,
			"check that the expressions do not match these")
	}
}

// otherServerBelow returns a zone below another that a different server has, or "".
func (c *corefile) otherServerBelow(s *server, zone string) string {
	for _, other := range c.servers {
		if other == s {
			continue
		}
		if i := slices.IndexFunc(other.zones, func(z string) bool { return z != zone && below(z, zone) }); i >= 0 {
			return other.zones[i]
		}
	}
	return ""
}

// isEmpty reports whether a template only says that there is no record.
func isEmpty(t *config.Template) bool {
	return t.Rcode == dns.RcodeSuccess && len(t.Answer)+len(t.Additional) == 0
}

// dns64 converts the prefix of a NAT64.
func (c *corefile) dns64(_ *server, st *statement) {
	prefix := "64:ff9b::/96"
	if len(st.args()) > 0 {
		prefix = st.args()[0]
	}
	all, v4 := false, false
	for _, option := range st.body {
		switch option.words[0] {
		case "prefix":
			prefix = strings.Join(option.args(), " ")
		case "translate_all":
			all = true
		case "allow_ipv4":
			v4 = true
		default:
			c.unknown(st, &option)
		}
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		c.noteLost(st.at, st.text(), "not a prefix: "+prefix, "")
		return
	}
	if !c.setKey("dns64.prefix", st, p.Masked().String()) {
		return
	}
	c.cfg.DNS64 = config.DNS64{Prefix: p.Masked(), TranslateAll: all}
	if v4 {
		c.cfg.DNS64.Clients = config.DNS64All
	}
	if len(c.servers) > 1 {
		c.noteDiffers(st.at, st.text(), "it applies to the names of all servers", "")
	}
}

// local converts the names of the host itself.
func (c *corefile) local(_ *server, st *statement) {
	const name = "localhost."
	if _, again := c.hostAt[name]; !again {
		c.host(name, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		c.host(name, netip.IPv6Loopback())
		c.sources["hosts.names"] = st.at.String() + ": " + st.text()
	}
	c.noteDiffers(st.at, st.text(), "localhost is answered, and not the names below a search domain that begin with it", "")
}
