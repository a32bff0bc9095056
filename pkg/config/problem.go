// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Error holds everything that is wrong with one configuration.
type Error struct {
	Path     string    // of the file; empty for text that was given to Parse
	Problems []Problem // never empty; in the order of the sections, text before keys
}

// Problem is one thing that is wrong.
type Problem struct {
	Path string // a key such as "forward[1].to[0]", or "line 3" where no key can be named; empty: the whole text
	What string // what is wrong; begins with the value, quoted, where there is one
	Hint string // what to write in its place; empty: there is nothing to add
}

// maxProblems bounds a report: the file may be a megabyte of something else.
const maxProblems = 100

// Error lists the problems, one on a line, each with its hint on the next line, indented.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		if e.Path != "" {
			b.WriteString(e.Path + ": ")
		}
		b.WriteString(p.String())
		if p.Hint != "" {
			b.WriteString("\n  hint: " + p.Hint)
		}
	}
	return b.String()
}

// String returns the problem on one line, without its hint.
func (p Problem) String() string {
	if p.Path == "" {
		return p.What
	}
	return p.Path + ": " + p.What
}

// report collects the problems of one text.
type report struct {
	problems []Problem
	more     int // found after the report was full
}

func (r *report) add(p Problem) {
	if len(r.problems) == maxProblems {
		r.more++
		return
	}
	r.problems = append(r.problems, p)
}

// clean reports whether no problem is at or below any of the keys. A rule between keys is
// checked only then: the default that replaces a bad value could break the rule, and the
// user would get a second problem for one mistake.
func (r *report) clean(paths ...string) bool {
	for _, p := range r.problems {
		for _, path := range paths {
			below, found := strings.CutPrefix(p.Path, path)
			if found && (below == "" || below[0] == '.' || below[0] == '[') {
				return false
			}
		}
	}
	return true
}

// err returns the report as an error, nil when it is empty.
func (r *report) err(path string) error {
	if len(r.problems) == 0 {
		return nil
	}
	if r.more > 0 {
		r.problems = append(r.problems, Problem{What: fmt.Sprintf("%d more problems", r.more)})
	}
	return &Error{Path: path, Problems: r.problems}
}

// flaw is what is wrong with a scalar; the zero value: nothing. It becomes a Problem where the path is known.
type flaw struct{ what, hint string }
