// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// maxRecords bounds the records of a zone file.
const maxRecords = 10_000

// file converts a zone whose text is in the Corefile's ConfigMap: names with addresses go to hosts.
func (c *corefile) file(s *server, st *statement) {
	args := st.args()
	if len(args) == 0 || c.shared[path.Base(args[0])].name == "" {
		why, hint := unsupported(st.words[0])
		c.noteLost(st.at, st.text(), why, hint)
		return
	}
	served, onward := s.zones, false
	if len(args) > 1 {
		served = overlap(s.zones, c.namedZones(st, args[1:]))
	}
	for _, option := range st.body {
		switch option.words[0] {
		case "fallthrough":
			onward = true
		case "reload", "upstream": // the converted zone does not change by itself
		default:
			c.unknown(st, &option)
		}
	}
	for _, zone := range served {
		records, err := zoneRecords(c.shared[path.Base(args[0])].text, zone)
		if err != nil {
			c.noteLost(st.at, st.text(), "the file is not read as that of "+zone+": "+err.Error(), "list the addresses of the zone in hosts.names")
			continue
		}
		c.zone(st, zone, records)
		s.own = append(s.own, zone)
		if !onward {
			apex := config.Template{Zone: zone, Match: []string{"^" + regexp.QuoteMeta(zone) + "$"}} // the apex always exists
			c.templates = append(c.templates, sourced[config.Template]{apex, st.at, st.text()})
			c.denied = append(c.denied, sourced[string]{zone, st.at, st.text() + ", its other names"})
		}
		c.noteDiffers(st.at, st.text(), "the addresses of "+zone+" are in hosts, with one TTL and with their reverse names, and without its SOA and NS records", "")
	}
}

// zoneRecords parses the records of a zone. Records of other zones are an error.
func zoneRecords(text, zone string) ([]dns.RR, error) {
	parser := dns.NewZoneParser(strings.NewReader(text), zone, "")
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

// zoneNames are the names of a zone: those with addresses, and the aliases.
type zoneNames struct {
	zone      string
	addresses map[string][]netip.Addr
	aliases   map[string]string // the targets
}

// zone moves the addresses of a zone into hosts, and those of its wildcards into templates, the longest names first.
func (c *corefile) zone(st *statement, zone string, records []dns.RR) {
	z := zoneNames{zone, map[string][]netip.Addr{}, map[string]string{}}
	order := make([]string, 0, len(records))
	for _, rr := range records {
		order = append(order, rr.Header().Name)
		c.record(st, &z, rr)
	}
	rank := func(name string) int { // a wildcard has lower precedence than other names and longer wildcards
		if strings.HasPrefix(name, "*.") {
			return dns.CountLabel(name)
		}
		return math.MaxInt
	}
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a, b)) })
	for _, name := range slices.Compact(order) {
		c.zoneName(st, &z, name)
	}
}

// record converts one record of a zone, or notes that it is left out.
func (c *corefile) record(st *statement, z *zoneNames, rr dns.RR) {
	name := rr.Header().Name
	switch rr := rr.(type) {
	case *dns.A:
		a, _ := netip.AddrFromSlice(rr.A.To4())
		z.addresses[name] = append(z.addresses[name], a)
	case *dns.AAAA:
		a, _ := netip.AddrFromSlice(rr.AAAA.To16())
		z.addresses[name] = append(z.addresses[name], a.Unmap())
	case *dns.CNAME:
		z.aliases[name] = dns.CanonicalName(rr.Target)
	case *dns.SOA, *dns.NS:
		if name != z.zone {
			c.noteLost(st.at, st.words[0]+": "+name, "delegations are not followed", "write a route for it: {zone: …, to: […]}")
		}
	default:
		c.noteLost(st.at, st.words[0]+": "+name+" "+dns.TypeToString[rr.Header().Rrtype], "hosts has only addresses", "a template can have the record")
	}
}

// resolveAlias returns the end of a chain of aliases in the zone.
func (z *zoneNames) resolveAlias(name string) (end string, arrived bool) {
	for range len(z.aliases) {
		target, isAlias := z.aliases[name]
		if !isAlias || !below(name, z.zone) {
			break
		}
		name = target
	}
	_, isAlias := z.aliases[name]
	return name, !isAlias
}

// zoneName converts one name of a zone: with its addresses, or with those of its alias's target in the zone.
func (c *corefile) zoneName(st *statement, z *zoneNames, name string) {
	expression := "^" + regexp.QuoteMeta(name) + "$"
	parent, isWildcard := strings.CutPrefix(name, "*.")
	if isWildcard {
		expression = `^.+\.` + regexp.QuoteMeta(parent) + "$"
	}
	end, arrived := z.resolveAlias(name)
	switch list := z.addresses[end]; {
	case len(list) > 0 && isWildcard:
		c.hostTemplates(st, parent, expression, list)
	case len(list) > 0:
		for _, a := range list {
			c.host(name, a)
		}
		if _, set := c.sources["hosts.names"]; !set {
			c.sources["hosts.names"] = st.at.String() + ": " + st.text()
		}
	case end != name && arrived && !below(end, z.zone):
		answer := fmt.Sprintf("{{ .Name }} %d IN CNAME %s", aliasTTL, end)
		c.aliases = append(c.aliases, sourced[config.Template]{config.Template{Zone: parent, Match: []string{expression}, Answer: []string{answer}}, st.at, st.text()})
	case end != name:
		c.noteLost(st.at, st.words[0]+": "+name+" CNAME", "it has no address", "")
	}
}
