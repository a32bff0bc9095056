// SPDX-License-Identifier: Apache-2.0

package config

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
