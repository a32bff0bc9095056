// SPDX-License-Identifier: Apache-2.0

package config

// ParseZone returns a zone as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseZone(text string) (string, error) {
	name, f := parseZone(text)
	return name, f.err(text)
}

// ParseTarget returns an upstream as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseTarget(text string) (Target, error) {
	t, f := parseTarget(text)
	return t, f.err(text)
}

// err is the flaw of a value as an error, nil without one.
func (f flaw) err(value string) error {
	if f.what == "" {
		return nil
	}
	return &Error{Problems: []Problem{{What: quote(value) + ": " + f.what, Hint: f.hint}}}
}

// Normalize returns c as a file would give it in a role: names in lower case and absolute, lists in order. The error is
// an [*Error] with the problems of what no file could give; there is no plan beside it.
func Normalize(c Config, role Role) (Config, error) {
	var w writer
	w.config(&c)
	return Parse([]byte(w.String()), role)
}
