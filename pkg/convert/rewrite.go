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

// rewrite converts a rule for names if its names and targets are in zones of the block. Other rules are left, because
// CoreDNS looks up the rewritten name in the same block.
func rewrite(l *line) {
	words := slices.Clone(l.args())
	for _, st := range l.body {
		words = append(words, st.words...)
	}
	if len(words) == 0 {
		l.lost("the rule is empty", "")
		return
	}
	goesOn := words[0] == "continue"
	if goesOn || words[0] == "stop" {
		words = words[1:]
	}
	l = &line{&statement{at: l.at, words: append([]string{"rewrite"}, words...)}, l.c, l.s, ""}
	field := strings.ToLower(l.arg(0, ""))
	if field == "edns0" && slices.ContainsFunc(words, func(word string) bool { return word == "subnet" || strings.Contains(word, "{client_ip}") }) {
		l.lostAnyway("options with the client's address are not added, and "+perNode, "clientSubnet: pass in a route hands on that of the client")
	}
	if field != "name" {
		l.leave(nil, "only names are rewritten", "")
		return
	}
	kind, words := "exact", words[1:]
	if len(words) > 2 {
		kind, words = strings.ToLower(words[0]), words[1:]
	}
	if len(words) < 2 {
		l.lost("it needs two names", "")
		return
	}
	from, to, answers := words[0], words[1], words[2:]
	isAuto := kind == "exact" && len(answers) == 0 || slices.Equal(answers, []string{"answer", "auto"})
	if why := otherNames(kind, from, to, answers); why != "" {
		l.lostAnyway(why, "write answer auto")
	}
	r, why := ruleFor(l, kind, from, to)
	switch {
	case why == "" && goesOn:
		why = "a name is rewritten once"
	case why == "" && !isAuto:
		why = "the answer has the original name, and its targets too"
	}
	if why != "" {
		l.leave(nil, why, "")
		return
	}
	l.s.rewrites = append(l.s.rewrites, sourced[config.Rewrite]{r, l.origin()})
}

// ruleFor returns the rule that does the same, or why there is none. Names of the block must stay in it, since CoreDNS looks
// up the result in the same block.
func ruleFor(l *line, kind, from, to string) (r config.Rewrite, why string) {
	const leaves = "a rewritten name is looked up in the block of its zone"
	dotted := func(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) + "." }
	isOurs := func(name string) bool {
		return l.c.serverFor(name) == l.s
	}
	switch kind {
	case "exact":
		if !isOurs(dotted(from)) || !isOurs(dotted(to)) {
			return r, leaves
		}
		return config.Rewrite{Exact: dotted(from), To: dotted(to)}, ""
	case "suffix":
		if !strings.HasPrefix(from, ".") || !strings.HasPrefix(to, ".") || len(from) < 2 || len(to) < 2 {
			return r, "a suffix begins with a dot, and ends whole labels"
		}
		for _, zone := range []string{dotted(from)[1:], dotted(to)[1:]} {
			if !isOurs("x."+zone) || l.c.otherServerBelow(l.s, zone) != "" {
				return r, leaves
			}
		}
		return config.Rewrite{Suffix: dotted(from), To: dotted(to)}, ""
	case "prefix":
		if len(l.c.servers) > 1 || !slices.Equal(l.s.zones, []string{"."}) {
			return r, leaves
		}
		return config.Rewrite{Prefix: dotted(from), To: dotted(to)}, ""
	}
	return r, "names are matched by exact, prefix and suffix"
}

// otherNames returns why the answer of a rule has another name than the question, which a node cache refuses; empty: it has
// the question's.
func otherNames(kind, from, to string, answers []string) string {
	const why = "the answer has another name than the question, and clients do not get it"
	if kind == "exact" || slices.Contains(answers, "auto") {
		return ""
	}
	if _, err := regexp.Compile(from); err != nil { // CoreDNS does not start with an invalid expression
		return ""
	}
	i := slices.Index(answers, "name")
	if i < 0 || i+2 >= len(answers) {
		return why
	}
	back, err := regexp.Compile(answers[i+1])
	if err != nil {
		return why
	}
	asked, result := sample(kind, from, to)
	groups := back.FindStringSubmatch(result)
	text := answers[i+2]
	for i, group := range groups {
		text = strings.ReplaceAll(text, "{"+strconv.Itoa(i)+"}", group)
	}
	if asked != "" && (len(groups) == 0 || strings.TrimSuffix(text, ".") != strings.TrimSuffix(asked, ".")) {
		return why
	}
	return ""
}

// sample returns a name that a rule matches, and what it becomes; empty: none is known.
func sample(kind, from, to string) (asked, result string) {
	switch kind {
	case "suffix":
		return "x" + from, "x" + to
	case "prefix":
		return from + "x", to + "x"
	case "substring":
		return from, to
	}
	tree, err := syntax.Parse(from, syntax.Perl)
	if err != nil {
		return "", ""
	}
	asked = example(tree)
	groups := regexp.MustCompile(from).FindStringSubmatch(asked)
	if len(groups) == 0 {
		return "", ""
	}
	for i, group := range groups {
		to = strings.ReplaceAll(to, "{"+strconv.Itoa(i)+"}", group)
	}
	return asked, to
}

// example returns a short text that the expression matches, for most expressions.
func example(e *syntax.Regexp) (text string) {
	if e.Op == syntax.OpLiteral {
		return string(e.Rune)
	}
	if e.Op == syntax.OpCharClass {
		return string(e.Rune[:1])
	}
	if e.Op == syntax.OpAnyChar || e.Op == syntax.OpAnyCharNotNL {
		return "x"
	}
	if e.Op == syntax.OpAlternate {
		return example(e.Sub[0])
	}
	for range max(e.Min, 1) {
		for _, sub := range e.Sub {
			text += example(sub)
		}
	}
	return text
}
