// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// The note about a rule with continue.
const (
	rewrittenOnce = "a name is rewritten once; no further rule applies to the result"
	onceHint      = "write one rule with the combined result"
)

// rewrite converts a rule for names.
func rewrite(l *line) {
	words, answers := l.args(), []string(nil)
	goesOn := l.arg(0, "") == "continue"
	if goesOn || l.arg(0, "") == "stop" {
		words = words[1:]
	}
	if len(words) == 0 && len(l.body) > 0 {
		words = l.body[0].words
		for _, st := range l.body[1:] {
			answers = append(answers, st.words...)
		}
	}
	if len(words) == 0 {
		l.lost("the rule is empty", "")
		return
	}
	l = &line{&statement{at: l.at, words: append([]string{"rewrite"}, words...)}, l.c, l.s, ""}
	switch {
	case words[0] != "name":
		rewriteField(l)
		return
	case len(words) > 3 && strings.EqualFold(words[1], "regex") && !isSuffixRule(words[2], words[3]):
		alias(l, words[2], words[3])
		if slices.Contains(append(words[4:], answers...), "value") {
			l.c.lost(l.at, l.text()+", answer value", "targets in the answer are given as they are", "")
		}
		if goesOn {
			l.differs(rewrittenOnce, onceHint)
		}
	case len(words) < 3:
		l.lost("it needs two names", "")
		return
	default:
		rule(l, words[1:], answers, goesOn)
	}
}

// rewriteField notes why a field other than the name cannot be rewritten.
func rewriteField(l *line) {
	fields := []directive{
		lost("type", "the type of a question is not changed", "ANY is answered with HINFO as it is; templates can answer a type"),
		lost("class", "the class of a question is not changed", ""),
		lost("ttl", "TTLs are not changed by name", "minTTL and maxTTL of a route bound those of a zone"),
		lost("edns0", "no options are added to queries", "clientSubnet: pass in a route hands on that of the client"),
		lost("cname", "the targets of aliases are not changed", "a rule for the name that is asked, or hosts, changes the target"),
		lost("rcode", "the rcode of an answer is not changed", ""),
	}
	if i := slices.IndexFunc(fields, func(d directive) bool { return d.is(l.words[1]) }); i >= 0 {
		fields[i].apply(l)
		return
	}
	l.lost("unknown field", "see rewrite in docs/configuration.md")
}

// rule adds a rule that rewrites a name: the kind, unless it is exact, the two names, and what becomes of the answer.
func rule(l *line, words, answers []string, goesOn bool) {
	c, kind := l.c, "exact"
	if len(words) > 2 {
		kind, words = strings.ToLower(words[0]), words[1:]
	}
	// CoreDNS adds a trailing dot to everything except expressions.
	dotted := func(text string) string { return strings.ToLower(strings.TrimSuffix(text, ".")) }
	from, to := dotted(words[0]), dotted(words[1])
	r := config.Rewrite{Suffix: from, To: to}
	switch kind {
	case "exact":
		r = config.Rewrite{Exact: from, To: to}
	case "suffix":
	case "prefix":
		r = config.Rewrite{Prefix: from + ".", To: to + "."}
	case "substring":
		l.differs("only names that end in it are rewritten, not those that have it elsewhere", "write a rule with prefix for those that begin with it")
	case "regex":
		suffix, _ := suffixOf(words[0])
		r.Suffix, r.To = dotted(suffix), dotted(strings.TrimPrefix(words[1], "{1}"))
	default:
		l.lost("names are matched by exact, prefix and suffix", "")
		return
	}
	switch answers := append(words[2:], answers...); {
	case slices.Contains(answers, "name"):
		l.differs("the answer always has the original name, whatever the rule says", "")
	case slices.Contains(answers, "value"):
		l.differs("targets in the answer are restored if they equal or end in the replacement", "")
	}
	if goesOn {
		l.differs(rewrittenOnce, onceHint)
	}
	if r.Exact != "" && c.serverFor(from+".") != l.s {
		l.differs("the name belongs to another server there, and is rewritten here", "leave the rule out")
	} else if r.Exact == "" && len(c.servers) > 1 {
		l.differs("rules apply to the names of all servers", "")
	}
	c.rewrites = append(c.rewrites, sourced[config.Rewrite]{r, l.origin()})
}

// alias converts a rule that rewrites names by expression. The names become aliases, whose targets are looked up. If the
// rule has one target with addresses in hosts, the names get these addresses.
func alias(l *line, from, to string) {
	c := l.c
	const hint = "write a rule with exact, prefix or suffix for each group of names that is meant"
	expression, err := regexp.Compile(from)
	if err != nil {
		l.lost("not a Go regular expression: "+err.Error(), hint)
		return
	}
	target, ok := groupTemplate(to, expression.NumSubexp())
	if !ok {
		l.lost("not a name: "+strconv.Quote(to), hint)
		return
	}
	for _, zone := range l.s.zones {
		if other := c.otherServerBelow(l.s, zone); other != "" && matchesAll([]string{from}) {
			l.lost("it would also match all names of "+other+", which have another server", hint)
			return
		}
	}
	name := strings.ToLower(strings.TrimSuffix(to, ".")) + "."
	addresses, listed := c.cfg.Hosts.Names[name]
	if listed {
		l.differs("a template gives the addresses that hosts has for "+name, "")
	} else {
		l.differs("the names are aliases: what is looked up is the same, and the answer begins with a CNAME record", "")
	}
	for _, zone := range l.s.zones {
		if listed {
			hostTemplates(l, zone, from, addresses)
			continue
		}
		l.alias(config.Template{Zone: zone, Match: []string{from}, Answer: []string{aliasRecord(target)}})
		noteScope(l, zone)
	}
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
		parts := partsOf(m)
		return parts != nil && !slices.ContainsFunc(parts, func(e *syntax.Regexp) bool { return !matchesAnything(e) })
	})
}

// partsOf returns the parts that an expression is a sequence of; nil: it is none.
func partsOf(expression string) []*syntax.Regexp {
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	if tree.Op == syntax.OpConcat {
		return tree.Sub
	}
	return []*syntax.Regexp{tree}
}

// matchesAnything reports whether a part of an expression matches every text.
func matchesAnything(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpStar:
		return e.Sub[0].Op == syntax.OpAnyCharNotNL
	case syntax.OpCapture, syntax.OpPlus:
		return matchesAnything(e.Sub[0])
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText, syntax.OpQuest, syntax.OpAnyCharNotNL, syntax.OpAnyChar:
		return true
	default:
		return false
	}
}

// isSuffixRule reports whether a rule changes only the end of a name.
func isSuffixRule(from, to string) bool {
	_, found := suffixOf(from)
	tail, plain := strings.CutPrefix(to, "{1}")
	return found && plain && !strings.Contains(tail, "{")
}

// suffixOf returns the suffix that an expression matches: .old.example for (.*)\.old\.example.
func suffixOf(text string) (string, bool) {
	parts := slices.DeleteFunc(slices.Clone(partsOf(text)), func(e *syntax.Regexp) bool { return e.Op == syntax.OpBeginText || e.Op == syntax.OpEndText })
	if len(parts) < 2 || !isAnything(parts[0]) {
		return "", false
	}
	var suffix strings.Builder
	for _, part := range parts[1:] {
		switch {
		case part.Op == syntax.OpLiteral && part.Flags&syntax.FoldCase == 0:
			suffix.WriteString(string(part.Rune))
		case part.Op == syntax.OpAnyCharNotNL: // an unescaped dot
			suffix.WriteByte('.')
		case part.Op == syntax.OpQuest && part.Sub[0].Op == syntax.OpLiteral && string(part.Sub[0].Rune) == ".": // the trailing dot
		default:
			return "", false
		}
	}
	return suffix.String(), true
}

// isAnything reports whether an expression is the group (.*) or (.+).
func isAnything(e *syntax.Regexp) bool {
	if e.Op != syntax.OpCapture {
		return false
	}
	inner := e.Sub[0]
	return (inner.Op == syntax.OpStar || inner.Op == syntax.OpPlus) && inner.Sub[0].Op == syntax.OpAnyCharNotNL
}
