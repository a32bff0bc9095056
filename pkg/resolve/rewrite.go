// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"fmt"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A RewriteKind is the part of a name that a rule replaces.
type RewriteKind uint8

// Kinds of rules.
const (
	RewriteExact  RewriteKind = iota // the whole name
	RewritePrefix                    // the beginning, not necessarily whole labels
	RewriteSuffix                    // the end, not necessarily whole labels
)

// A Rewrite replaces the name in a query. From and To are text in lower case without the trailing dot:
// letters, digits, '-', '_', and dots between labels.
type Rewrite struct {
	Kind     RewriteKind
	From, To string
}

// Rewrites is a list of rules. The first rule that matches and yields a valid name is applied, once.
//
//	                                  asked               looked up
//	exact   a.example   b.example     a.example           b.example
//	prefix  p-          q-            p-web.example       q-web.example
//	suffix  .old.test   .new.test     web.old.test        web.new.test
//
// Names in the answer are restored: the name that was looked up becomes the client's, and so do names
// below it. With a suffix rule all names with the new suffix get the old one. Rules do not match names
// with a dot within a label.
type Rewrites struct {
	rules    []rewriteRule
	exact    map[string]int // index of the first exact rule, by canonical name
	patterns []int          // indexes of the other rules, in order
}

// A rewriteRule is a rule ready for use.
type rewriteRule struct {
	Rewrite
	name []byte // with RewriteExact: To in wire form
}

// NewRewrites prepares rules. It returns an error for a rule that cannot match, or that yields no
// name.
func NewRewrites(rules []Rewrite) (*Rewrites, error) {
	rs := &Rewrites{exact: map[string]int{}}
	for i, rule := range rules {
		r := rewriteRule{Rewrite: rule}
		switch {
		case rule.From == "":
			return nil, fmt.Errorf("rewrite rule %d: from is empty", i)
		case rule.Kind != RewriteExact:
			rs.patterns = append(rs.patterns, i)
		default:
			from, ok := appendName(nil, []byte(rule.From))
			to, good := appendName(nil, []byte(rule.To))
			if !ok || !good {
				return nil, fmt.Errorf("rewrite rule %d: %q or %q is not a domain name", i, rule.From, rule.To)
			}
			r.name = to
			if _, again := rs.exact[string(from)]; !again {
				rs.exact[string(from)] = i
			}
		}
		rs.rules = append(rs.rules, r)
	}
	return rs, nil
}

// match appends to dst the name to look up in place of name, and returns the rule that applies, nil
// for none.
func (rs *Rewrites) match(dst, name []byte) ([]byte, *rewriteRule) {
	first, found := rs.exact[string(name)]
	if !found {
		first = len(rs.rules)
	}
	if len(rs.patterns) > 0 {
		var room [wire.MaxName]byte
		text, ok := appendPlainText(room[:0], name)
		for _, i := range rs.patterns {
			if !ok || i > first {
				break
			}
			if to, made := rs.rules[i].apply(dst, text); made {
				return to, &rs.rules[i]
			}
		}
	}
	if !found {
		return dst, nil
	}
	return append(dst, rs.rules[first].name...), &rs.rules[first]
}

// target appends the name that the rule yields for name, which it matches.
func (r *rewriteRule) target(dst, name []byte) []byte {
	if r.Kind == RewriteExact {
		return append(dst, r.name...)
	}
	var room [wire.MaxName]byte
	text, _ := appendPlainText(room[:0], name)
	to, _ := r.apply(dst, text)
	return to
}

// apply appends the name that a prefix or suffix rule yields for text. It returns false if the rule
// does not apply.
func (r *rewriteRule) apply(dst, text []byte) ([]byte, bool) {
	if r.Kind == RewriteSuffix {
		return replaceSuffix(dst, text, r.From, r.To)
	}
	rest, ok := bytes.CutPrefix(text, []byte(r.From))
	if !ok || len(r.To)+len(rest) > wire.MaxName {
		return dst, false
	}
	var room [wire.MaxName]byte
	return appendName(dst, append(append(room[:0], r.To...), rest...))
}

// replaceSuffix appends the name for text with suffix to in place of from. It returns false if text
// has no such suffix or the result is not a name.
func replaceSuffix(dst, text []byte, from, to string) ([]byte, bool) {
	kept := len(text) - len(from)
	if kept < 0 || string(text[kept:]) != from || kept+len(to) > wire.MaxName {
		return dst, false
	}
	var room [wire.MaxName]byte
	return appendName(dst, append(append(room[:0], text[:kept]...), to...))
}

// appendPlainText appends the labels of a canonical name with dots between them, without escapes. It
// returns false if a label contains a dot.
func appendPlainText(dst, name []byte) ([]byte, bool) {
	for off := 0; name[off] != 0; {
		next := off + 1 + int(name[off])
		label := name[off+1 : next]
		if bytes.IndexByte(label, '.') >= 0 {
			return dst, false
		}
		if off > 0 {
			dst = append(dst, '.')
		}
		dst = append(dst, label...)
		off = next
	}
	return dst, true
}

// appendName appends the wire form of a name in the format of appendPlainText. It returns false for
// invalid names and for the root.
func appendName(dst, text []byte) ([]byte, bool) {
	start := len(dst)
	for rest := text; ; {
		label, after, more := bytes.Cut(rest, []byte{'.'})
		if len(label) == 0 || len(label) > wire.MaxLabel {
			return dst[:start], false
		}
		dst = append(append(dst, byte(len(label))), label...)
		if len(dst)-start >= wire.MaxName {
			return dst[:start], false
		}
		if !more {
			return append(dst, 0), true
		}
		rest = after
	}
}

// A reverseRenamer restores the names of an answer, see Rewrites. Its slices are canonical names.
type reverseRenamer struct {
	rule              *rewriteRule
	lookupName, asked []byte
}

// rename appends the original name of name, see [wire.Rewriter.Rename].
func (r *reverseRenamer) rename(dst, name []byte) ([]byte, bool) {
	if r.rule.Kind == RewriteSuffix && r.rule.To != "" {
		var room [wire.MaxName]byte
		text, ok := appendPlainText(room[:0], name)
		if !ok {
			return dst, false
		}
		return replaceSuffix(dst, text, r.rule.To, r.rule.From)
	}
	kept := len(name) - len(r.lookupName)
	if kept < 0 || kept+len(r.asked) > wire.MaxName || string(name[kept:]) != string(r.lookupName) || !isLabelAt(name, kept) {
		return dst, false
	}
	return append(append(dst, name[:kept]...), r.asked...), true
}

// isLabelAt reports whether a label of the name begins at an offset.
func isLabelAt(name []byte, at int) bool {
	off := 0
	for off < at {
		off += 1 + int(name[off])
	}
	return off == at
}
