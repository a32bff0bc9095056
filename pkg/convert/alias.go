// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// aliasTTL is the TTL of the aliases for rules with expressions, in seconds.
const aliasTTL = 30

// alias converts a rule that rewrites names by expression. The names become aliases, whose targets are looked up. If the
// rule has one target with addresses in hosts, the names get these addresses.
func (c *corefile) alias(s *server, st *statement, from, to string) {
	const hint = "write a rule with exact, prefix or suffix for each group of names that is meant"
	expression, err := regexp.Compile(from)
	if err != nil {
		c.noteLost(st.at, st.text(), "not a Go regular expression: "+err.Error(), hint)
		return
	}
	target, ok := groupTemplate(to, expression.NumSubexp())
	if !ok {
		c.noteLost(st.at, st.text(), "not a name: "+strconv.Quote(to), hint)
		return
	}
	zones := s.zones
	for _, zone := range zones {
		if matchesAll([]string{from}) && c.otherServerBelow(s, zone) != "" {
			c.noteLost(st.at, st.text(), "it would also match all names of "+c.otherServerBelow(s, zone)+", which have another server", hint)
			return
		}
	}
	name := strings.ToLower(strings.TrimSuffix(to, ".")) + "."
	if i, listed := c.hostAt[name]; listed {
		c.noteDiffers(st.at, st.text(), "a template gives the addresses that hosts has for "+name, "")
		for _, zone := range zones {
			c.hostTemplates(st, zone, from, c.cfg.Hosts.Names[i].Addresses)
		}
		return
	}
	c.noteDiffers(st.at, st.text(), "the names are aliases: what is looked up is the same, and the answer begins with a CNAME record", "")
	for _, zone := range zones {
		answer := fmt.Sprintf("{{ .Name }} %d IN CNAME %s", aliasTTL, target)
		c.aliases = append(c.aliases, sourced[config.Template]{config.Template{Zone: zone, Match: []string{from}, Answer: []string{answer}}, st.at, st.text()})
		c.noteTemplateScope(s, st, zone)
	}
}

// aliasAnswers notes the other answer rules. The answer always has the client's name.
func (c *corefile) aliasAnswers(st *statement, rest []string, lines []statement) {
	words := slices.Clone(rest)
	for _, line := range lines {
		words = append(words, line.words...)
	}
	if slices.Contains(words, "value") {
		c.noteLost(st.at, st.text()+", answer value", "targets in the answer are given as they are", "")
	}
}

// aliasesFirst moves the aliases before all templates except those that drop a type for all names: these apply to
// rewritten names too.
func (c *corefile) aliasesFirst() {
	var types, others []sourced[config.Template]
	for _, t := range c.templates {
		if matchesAll(t.value.Match) && isEmpty(&t.value) && len(t.value.Types) > 0 {
			types = append(types, t)
			continue
		}
		others = append(others, t)
	}
	if len(c.aliases) > 0 {
		c.templates = slices.Concat(types, c.aliases, others)
	}
}

// hostTemplates answers the names that match an expression by templates: with the addresses, and without data for other types.
func (c *corefile) hostTemplates(st *statement, zone, expression string, addresses []netip.Addr) {
	add := func(t config.Template) {
		t.Zone, t.Match = zone, []string{expression}
		c.aliases = append(c.aliases, sourced[config.Template]{t, st.at, st.text()})
	}
	for _, family := range []struct {
		rrtype uint16
		is     func(netip.Addr) bool
	}{{dns.TypeA, netip.Addr.Is4}, {dns.TypeAAAA, netip.Addr.Is6}} {
		t := config.Template{Types: []uint16{family.rrtype}}
		for _, a := range addresses {
			if family.is(a) {
				t.Answer = append(t.Answer, fmt.Sprintf("{{ .Name }} %d IN %s %s", int(c.cfg.Hosts.TTL.Seconds()), dns.TypeToString[family.rrtype], a))
			}
		}
		if len(t.Answer) > 0 {
			add(t)
		}
	}
	add(config.Template{})
}

// groupTemplate converts a replacement to the action of a template, with a trailing dot: {1} is the first group of the
// expression. It reports false if the result cannot be a name.
func groupTemplate(to string, groups int) (text string, ok bool) {
	sample := to
	text = strings.ToLower(to)
	for i := range groups + 1 {
		mark := "{" + strconv.Itoa(i) + "}"
		sample = strings.ReplaceAll(sample, mark, "x")
		text = strings.ReplaceAll(text, mark, "\x00"+strconv.Itoa(i)+"\x01")
	}
	if _, err := config.ParseZone(sample); err != nil || strings.ContainsAny(sample, "{}") || strings.Trim(sample, ".") == "" {
		return "", false
	}
	text = strings.NewReplacer("\x00", `{{ index .Group "`, "\x01", `" }}`).Replace(text)
	if strings.HasSuffix(to, "}") { // the group may end with the name's dot, and none is needed
		return text, true
	}
	return strings.TrimSuffix(text, ".") + ".", true
}

// matchesAll reports whether a template with these expressions applies to all names of its zone.
func matchesAll(match []string) bool {
	return len(match) == 0 || slices.ContainsFunc(match, func(m string) bool {
		tree, err := syntax.Parse(m, syntax.Perl)
		if err != nil {
			return false
		}
		parts := []*syntax.Regexp{tree}
		if tree.Op == syntax.OpConcat {
			parts = tree.Sub
		}
		return !slices.ContainsFunc(parts, func(e *syntax.Regexp) bool { return !matchesAnything(e) })
	})
}

// matchesAnything reports whether a part of an expression matches every text.
func matchesAnything(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText, syntax.OpStar, syntax.OpQuest:
		return e.Op != syntax.OpStar || e.Sub[0].Op == syntax.OpAnyCharNotNL
	case syntax.OpCapture, syntax.OpPlus:
		return matchesAnything(e.Sub[0])
	case syntax.OpAnyCharNotNL, syntax.OpAnyChar:
		return true
	default:
		return false
	}
}
