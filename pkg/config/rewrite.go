// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Rewrite asks for another name in place of the one that a client has asked for. Both texts are of names in lower case
// without the dot at their end.
type Rewrite struct {
	Kind RewriteKind
	From string // never empty, never the same as To
	To   string // empty only with RewritePrefix and RewriteSuffix
}

// RewriteKind says which part of a name is replaced.
type RewriteKind uint8

// The kinds.
const (
	RewriteExact  RewriteKind = iota // all of it
	RewritePrefix                    // its beginning, whether or not a label ends there
	RewriteSuffix                    // its end, whether or not a label begins there
)

func (RewriteKind) words() []string { return []string{"exact", "prefix", "suffix"} }

// String returns the spelling of k in a configuration.
func (k RewriteKind) String() string { return spell(k) }

// rewrites reads the list of rules.
func rewrites(dst *[]Rewrite) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		type place struct {
			kind RewriteKind
			from string
		}
		var list []Rewrite
		seen := map[place]string{}
		for _, item := range items {
			r, ok := item.rewrite()
			if !ok {
				continue
			}
			at := place{r.Kind, r.From}
			if first, again := seen[at]; again {
				path := item.child(r.Kind.String())
				n.report.add(Problem{Path: path, What: quote(r.From) + ": already at " + first, Hint: "the first rule that fits is taken: leave out one of them"})
				continue
			}
			seen[at] = item.path
			list = append(list, r)
		}
		*dst = list
	}
}

// rewrite returns the value of n when it is a rule, and reports what is not right.
func (n node) rewrite() (Rewrite, bool) {
	var rules []Rewrite
	var to string
	named := false
	known := make([]field, 0, 4)
	for kind, word := range RewriteKind(0).words() {
		known = append(known, field{word, func(value node) {
			r := Rewrite{Kind: RewriteKind(kind)}
			r.From = value.partOfName(r.Kind, false)
			rules = append(rules, r)
		}})
	}
	known = append(known, field{"to", func(value node) {
		named = true
		if len(rules) == 1 {
			to = value.partOfName(rules[0].Kind, true)
		}
	}})
	if !n.fields(known) || !n.report.clean(n.path) {
		return Rewrite{}, false
	}
	switch {
	case len(rules) != 1:
		n.report.add(Problem{
			Path: n.path, What: fmt.Sprintf("%d of exact, prefix and suffix are set", len(rules)),
			Hint: "a rule has one of them, like {suffix: .old.example, to: .new.example}",
		})
		return Rewrite{}, false
	case !named:
		n.report.add(Problem{Path: n.child("to"), What: "missing", Hint: "say what is asked for in its place"})
		return Rewrite{}, false
	}
	r := rules[0]
	r.To = to
	if r.From == r.To {
		n.report.add(Problem{Path: n.child("to"), What: quote(r.To) + ": the same as " + r.Kind.String()})
		return Rewrite{}, false
	}
	return r, true
}

// partOfName returns the value of n when it is the part of a name that a kind of rule replaces, and reports anything
// else. It is in lower case and has no dot where the name ends.
func (n node) partOfName(kind RewriteKind, mayBeEmpty bool) string {
	text, ok := n.stringOnly()
	if !ok {
		return ""
	}
	if kind == RewriteExact {
		name, f := parseName(text)
		n.rejectFlaw(f)
		return strings.TrimSuffix(name, ".")
	}
	part := text
	if kind == RewriteSuffix {
		part = strings.TrimSuffix(text, ".")
	}
	var f flaw
	switch {
	case part == "" && text != "":
		f = flaw{what: "the end of every name"}
	case part == "" && mayBeEmpty:
		return ""
	case part == "":
		f = flaw{what: "the part of every name", hint: "write the beginning or the end of those that are meant"}
	case kind == RewritePrefix && part == ".":
		f = flaw{what: "the beginning of no name"}
	default:
		f = partFlaw(kind, part)
	}
	n.rejectFlaw(f)
	return strings.ToLower(part)
}

// partFlaw says what keeps a text from being the beginning or the end of a name: made a whole one with a letter, it has
// to be one.
func partFlaw(kind RewriteKind, part string) flaw {
	if strings.Trim(part, ".") == "" {
		return flaw{what: "not a part of a name: an empty label", hint: "write one dot between labels"}
	}
	whole := part + "x"
	if kind == RewriteSuffix || strings.HasSuffix(part, "-") {
		whole = part
	}
	if kind == RewriteSuffix && strings.HasPrefix(part, ".") {
		whole = "x" + part
	}
	_, f := parseName(whole)
	f.what = strings.Replace(f.what, "not a name", "not a part of a name", 1)
	return f
}
