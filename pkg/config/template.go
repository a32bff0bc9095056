// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// checkTemplates tries the records of templates with questions that are made up, and reports those that give none.
func checkTemplates(d *decoder, templates []Template) {
	for i := range templates {
		t, path := &templates[i], fmt.Sprintf("templates[%d]", i)
		if !d.clean(path) {
			continue
		}
		questions := samples(t)
		for key, texts := range map[string][]string{"answer": t.Answer, "authority": t.Authority, "additional": t.Additional} {
			for j, text := range texts {
				if err := tryRecord(text, questions); err != nil {
					d.report(fmt.Sprintf("%s.%s[%d]", path, key, j), quote(text)+": no record: "+err.Error(), recordHint)
				}
			}
		}
	}
}

// tryRecord says why a text gives no record for the first of the questions. One that it gives a record for is enough.
// That it gives nothing at all is no fault: a condition may leave it out.
func tryRecord(text string, questions []TemplateData) (first error) {
	record, err := ParseRecord(text)
	if err != nil {
		return err
	}
	for _, q := range questions {
		_, err := record(&q)
		if err == nil {
			return nil
		}
		if first == nil {
			first = fmt.Errorf("for %s %s: %w", q.Name, q.Type, err)
		}
	}
	return first
}

// samples makes up questions that a template answers, as far as that is possible.
func samples(t *Template) []TemplateData {
	types := t.Types
	if len(types) == 0 {
		types = []uint16{dns.TypeA, dns.TypeAAAA}
	}
	var list []TemplateData
	for _, typ := range types[:min(len(types), 4)] {
		if len(t.Match) == 0 {
			name := underZone("sample", t.Zone)
			list = append(list, TemplateData{
				Name: name, Zone: t.Zone, Type: spellType(typ), Class: "IN",
				Match: []string{name}, Group: map[string]string{"0": name},
			})
		}
		for _, text := range t.Match[:min(len(t.Match), 4)] {
			list = append(list, matching(t.Zone, text, typ)...)
		}
	}
	return list
}

// matching makes up questions with names that an expression matches.
func matching(zone, text string, typ uint16) []TemplateData {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil
	}
	e, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	var list []TemplateData
	for _, wanted := range []rune{'1', 'a'} {
		var b strings.Builder
		writeMatch(&b, wanted, tree, 0)
		name := underZone(strings.ToLower(b.String()), zone)
		groups := e.FindStringSubmatch(name)
		if _, p := parseZone(name); p != nil || groups == nil {
			continue
		}
		q := TemplateData{Name: name, Zone: zone, Type: spellType(typ), Class: "IN", Match: groups, Group: map[string]string{}}
		for i, group := range groups {
			q.Group[strconv.Itoa(i)] = group
		}
		for i, word := range e.SubexpNames() {
			if word != "" {
				q.Group[word] = groups[i]
			}
		}
		list = append(list, q)
	}
	return list
}

// underZone is the name below a zone, unless it ends in it already. A zone with no room for it stands alone.
func underZone(name, zone string) string {
	suffix := "." + strings.TrimPrefix(zone, ".")
	switch {
	case strings.HasSuffix("."+name, suffix):
		return name
	case len(name)+len(suffix)+1 > maxName:
		return zone
	}
	return strings.TrimSuffix(name, ".") + suffix
}

// Bounds of what is made up, and on how deep the expression may be.
const maxSampleName, maxSampleDepth = maxName, 100

// writeMatch writes a short text that an expression matches. The wanted rune is taken wherever that leaves a choice.
func writeMatch(b *strings.Builder, wanted rune, e *syntax.Regexp, depth int) {
	if b.Len() > maxSampleName || depth > maxSampleDepth {
		return
	}
	again := 1
	switch e.Op {
	case syntax.OpLiteral:
		b.WriteString(string(e.Rune))
		return
	case syntax.OpCharClass:
		b.WriteRune(oneOf(e.Rune, wanted))
		return
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteRune(wanted)
		return
	case syntax.OpAlternate:
		writeMatch(b, wanted, e.Sub[0], depth+1)
		return
	case syntax.OpRepeat:
		again = max(1, e.Min)
	default: // once what it is made of, which may be nothing
	}
	for range again {
		for _, part := range e.Sub {
			writeMatch(b, wanted, part, depth+1)
		}
	}
}

// oneOf takes a rune of a class, which is a list of ranges: the one that is wanted, or one that names are made of.
func oneOf(class []rune, wanted rune) rune {
	isIn := func(c rune) bool {
		for i := 0; i+1 < len(class); i += 2 {
			if class[i] <= c && c <= class[i+1] {
				return true
			}
		}
		return false
	}
	for _, c := range append([]rune{wanted}, []rune("1a2b-._")...) {
		if isIn(c) {
			return c
		}
	}
	i := slices.IndexFunc([]rune("abcdefghijklmnopqrstuvwxyz0123456789"), isIn)
	if i < 0 {
		return wanted
	}
	return []rune("abcdefghijklmnopqrstuvwxyz0123456789")[i]
}

// checkRewrites puts the texts of rules in lower case. It reports texts that are not part of a domain name, and rules that never apply.
func checkRewrites(d *decoder, rules []Rewrite) {
	seen := map[string]string{}
	for i := range rules {
		r, path := &rules[i], fmt.Sprintf("rewrite[%d]", i)
		if !d.clean(path) {
			continue
		}
		kinds := slices.DeleteFunc([]string{RewriteExact, RewritePrefix, RewriteSuffix}, func(kind string) bool { return !d.isSet(path + "." + kind) })
		if len(kinds) != 1 {
			d.report(path, fmt.Sprintf("%d of exact, prefix and suffix are set", len(kinds)),
				"a rule has one of them, like {suffix: .old.example, to: .new.example}")
			continue
		}
		kind := kinds[0]
		from := map[string]*string{RewriteExact: &r.Exact, RewritePrefix: &r.Prefix, RewriteSuffix: &r.Suffix}[kind]
		for key, part := range map[string]*string{kind: from, "to": &r.To} {
			text, bad := *part, (*Problem)(nil)
			if *part, bad = parsePart(kind, text, key == "to"); bad != nil {
				d.rejectText(path+"."+key, text, bad)
			}
		}
		first, again := seen[kind+*from]
		switch {
		case !d.clean(path):
		case *from == r.To:
			d.report(path+".to", quote(r.To)+": the same as "+kind, "")
		case again:
			d.report(path+"."+kind, quote(*from)+": already at "+first, "the first rule that fits is taken: leave out one of them")
		default:
			seen[kind+*from] = path
		}
	}
}
