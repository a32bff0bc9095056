// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
)

// Rewrite is an item of rewrite. One of Exact, Prefix and Suffix is not empty. All are of names in lower case without the dot
// at their end.
type Rewrite struct {
	// The whole name.
	Exact string `yaml:"exact" format:"part" omit:"empty" example:"shop.example"`
	// The beginning of a name; it may end within a label.
	Prefix string `yaml:"prefix" format:"part" omit:"empty" example:"old-"`
	// The end of a name. Start it with a dot to match whole labels.
	Suffix string `yaml:"suffix" format:"part" omit:"empty" example:".old.example"`
	// The replacement: with `exact` the whole name, else a part that may be empty.
	To string `yaml:"to" format:"part" required:"say what is asked for in its place" example:"shop.prod.svc.cluster.local,new-,.new.example"`
}

// Rule returns which part of a name is replaced, RewriteExact, RewritePrefix or RewriteSuffix, and its text.
func (r *Rewrite) Rule() (kind, from string) {
	switch {
	case r.Prefix != "":
		return RewritePrefix, r.Prefix
	case r.Suffix != "":
		return RewriteSuffix, r.Suffix
	}
	return RewriteExact, r.Exact
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
