// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// Notes about a rule with continue.
const (
	noMore     = "a name is rewritten once; no further rule applies to the result"
	noMoreHint = "write one rule with the combined result"
)

// rewrite converts a rule for names.
func (c *corefile) rewrite(s *server, st *statement) {
	words := st.args()
	goesOn := len(words) > 0 && words[0] == "continue"
	if len(words) > 0 && (words[0] == "continue" || words[0] == "stop") {
		words = words[1:]
	}
	var answers []statement
	if len(words) == 0 && len(st.body) > 0 {
		words = st.body[0].words
		answers = st.body[1:]
	}
	if len(words) == 0 {
		c.noteLost(st.at, st.text(), "the rule is empty", "")
		return
	}
	line := statement{at: st.at, words: append([]string{"rewrite"}, words...)}
	if len(words) > 3 && words[0] == "name" && strings.EqualFold(words[1], "regex") && !isSuffixRule(words[2], words[3]) {
		c.alias(s, &line, words[2], words[3])
		c.aliasAnswers(&line, words[4:], answers)
		if goesOn {
			c.noteDiffers(st.at, line.text(), noMore, noMoreHint)
		}
		return
	}
	if words[0] != "name" {
		why, hint := rewriteNone(words[0])
		c.noteLost(st.at, line.text(), why, hint)
		return
	}
	rule, rest, ok := c.rule(&line, words[1:])
	if !ok {
		return
	}
	c.answers(&line, rest, answers)
	if goesOn {
		c.noteDiffers(st.at, line.text(), noMore, noMoreHint)
	}
	c.rewrites = append(c.rewrites, sourced[config.Rewrite]{rule, st.at, line.text()})
	c.noteRewriteScope(s, &line, rule)
}

// rewriteNone returns why a field cannot be rewritten.
func rewriteNone(field string) (why, hint string) {
	switch field {
	case "type":
		return "the type of a question is not changed", "ANY is answered with HINFO as it is; templates can answer a type"
	case "class":
		return "the class of a question is not changed", ""
	case "ttl":
		return "TTLs are not changed by name", "minTTL and maxTTL of a route bound those of a zone"
	case "edns0":
		return "no options are added to queries", "clientSubnet: pass in a route hands on that of the client"
	case "cname":
		return "the targets of aliases are not changed", "a rule for the name that is asked, or hosts, changes the target"
	case "rcode":
		return "the rcode of an answer is not changed", ""
	}
	return "unknown field", "see rewrite in docs/configuration.md"
}

// rule parses how a name is rewritten, and returns the remaining words.
func (c *corefile) rule(st *statement, words []string) (rule config.Rewrite, rest []string, ok bool) {
	kind := "exact"
	switch {
	case len(words) > 2:
		kind, words = strings.ToLower(words[0]), words[1:]
	case len(words) < 2:
		c.noteLost(st.at, st.text(), "it needs two names", "")
		return rule, nil, false
	}
	from, to := words[0], words[1]
	// CoreDNS adds a trailing dot to everything except expressions.
	dotted := func(text string) string { return strings.ToLower(strings.TrimSuffix(text, ".")) }
	rule = config.Rewrite{From: dotted(from), To: dotted(to)}
	switch kind {
	case "exact":
		rule.Kind = config.RewriteExact
	case "suffix":
		rule.Kind = config.RewriteSuffix
	case "prefix":
		rule = config.Rewrite{Kind: config.RewritePrefix, From: dotted(from) + ".", To: dotted(to) + "."}
	case "substring":
		rule.Kind = config.RewriteSuffix
		c.noteDiffers(st.at, st.text(), "only names that end in it are rewritten, not those that have it elsewhere", "write a rule with prefix for those that begin with it")
	case "regex":
		suffix, _ := suffixOf(from)
		rule = config.Rewrite{Kind: config.RewriteSuffix, From: dotted(suffix), To: dotted(strings.TrimPrefix(to, "{1}"))}
	default:
		c.noteLost(st.at, st.text(), "names are matched by exact, prefix and suffix", "")
		return rule, nil, false
	}
	return rule, words[2:], true
}

// answers notes rewrites of the answer that differ from restoring the name.
func (c *corefile) answers(st *statement, rest []string, lines []statement) {
	words := slices.Clone(rest)
	for _, line := range lines {
		words = append(words, line.words...)
	}
	for _, word := range words {
		switch word {
		case "name":
			c.noteDiffers(st.at, st.text(), "the answer always has the original name, whatever the rule says", "")
			return
		case "value":
			c.noteDiffers(st.at, st.text(), "targets in the answer are restored if they equal or end in the replacement", "")
			return
		}
	}
}

// noteRewriteScope notes a rule that applies to another server's names.
func (c *corefile) noteRewriteScope(s *server, st *statement, rule config.Rewrite) {
	if rule.Kind == config.RewriteExact {
		if heard := c.serverFor(rule.From + "."); heard != s {
			c.noteDiffers(st.at, st.text(), "the name belongs to another server there, and is rewritten here", "leave the rule out")
		}
		return
	}
	if len(c.servers) > 1 {
		c.noteDiffers(st.at, st.text(), "rules apply to the names of all servers", "")
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
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil || tree.Op != syntax.OpConcat {
		return "", false
	}
	parts := tree.Sub
	if parts[0].Op == syntax.OpBeginText {
		parts = parts[1:]
	}
	if last := len(parts) - 1; last >= 0 && parts[last].Op == syntax.OpEndText {
		parts = parts[:last]
	}
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
