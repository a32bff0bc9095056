// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"fmt"

	"github.com/nodecache/node-cache/pkg/wire"
)

// RewriteKind says which part of a name a rule replaces.
type RewriteKind uint8

// The kinds of rules.
const (
	RewriteExact  RewriteKind = iota // all of it
	RewritePrefix                    // its beginning, whether or not a label ends there
	RewriteSuffix                    // its end, whether or not a label begins there
)

// A Rewrite asks for another name in place of the client's. From and To are text in
// lower case without the dot at the end of the name, of letters, digits, '-', '_' and
// dots between labels.
type Rewrite struct {
	Kind     RewriteKind
	From, To string
}

// Rewrites are rules, of which the first that makes a name of a name counts. It is
// applied once: what it makes is not looked at by the rules again.
//
//	                                  asked               looked up
//	exact   a.example   b.example     a.example           b.example
//	prefix  p-          q-            p-web.example       q-web.example
//	suffix  .old.test   .new.test     web.old.test        web.new.test
//
// Names in the answer are led back, so that it is one to the client's question: those
// that are, or are below, the name that was looked up become the client's or a name
// below that, and with a suffix rule those that have the new suffix get the old one. A
// name that holds a dot within a label is none of those that rules are about.
type Rewrites struct {
	rules    []rewriteRule
	exact    map[string]int // index of the first exact rule, by canonical name
	patterns []int          // indices of the others, in order
}

// A rewrite is a rule as it is used.
type rewriteRule struct {
	Rewrite
	name []byte // with RewriteExact: To in wire form
}

// NewRewrites makes rules ready for use. There is an error for one that no name can
// fit, or that makes none.
func NewRewrites(rules []Rewrite) (*Rewrites, error) {
	rs := &Rewrites{exact: map[string]int{}}
	for i, rule := range rules {
		r := rewriteRule{Rewrite: rule}
		switch {
		case rule.From == "":
			return nil, fmt.Errorf("rewrite rule %d: it is for nothing", i)
		case rule.Kind != RewriteExact:
			rs.patterns = append(rs.patterns, i)
		default:
			from, ok := appendName(nil, []byte(rule.From))
			to, good := appendName(nil, []byte(rule.To))
			if !ok || !good {
				return nil, fmt.Errorf("rewrite rule %d: %q and %q are not both names", i, rule.From, rule.To)
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

// find appends to dst the name that is looked up in place of name, and gives the rule
// that says so; nil: none does.
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

// of appends the name that the rule makes of name, one that it fits.
func (r *rewriteRule) target(dst, name []byte) []byte {
	if r.Kind == RewriteExact {
		return append(dst, r.name...)
	}
	var room [wire.MaxName]byte
	text, _ := appendPlainText(room[:0], name)
	to, _ := r.apply(dst, text)
	return to
}

// apply appends the name that a loose rule makes of the one with a text. It is false
// if it makes none.
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

// swapEnd appends the name whose text is this one with another end. It is false if
// the text has not the end from, or that is no name.
func replaceSuffix(dst, text []byte, from, to string) ([]byte, bool) {
	kept := len(text) - len(from)
	if kept < 0 || string(text[kept:]) != from || kept+len(to) > wire.MaxName {
		return dst, false
	}
	var room [wire.MaxName]byte
	return appendName(dst, append(append(room[:0], text[:kept]...), to...))
}

// appendFlat appends the text of a canonical name: its labels with dots between them,
// and nothing escaped. It is false if a dot is in a label.
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

// appendName appends the wire form of the name with a text as of appendFlat. It is
// false if there is no such name, or it is the root.
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

// A reversal leads names of an answer back, see Rewrites. Its slices are canonical
// names.
type reverseRenamer struct {
	rule              *rewriteRule
	lookupName, asked []byte
}

// Rename implements [wire.Renamer].
func (r *reverseRenamer) Rename(dst, name []byte) ([]byte, bool) {
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

// isLabelAt tells whether a label of the name begins at an offset.
func isLabelAt(name []byte, at int) bool {
	off := 0
	for off < at {
		off += 1 + int(name[off])
	}
	return off == at
}
