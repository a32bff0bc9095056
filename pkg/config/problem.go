// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Error holds everything that is wrong with one configuration.
type Error struct {
	Path     string    // path of the file; empty for text that was given to Parse
	Problems []Problem // never empty; in the order of the text, those without a line last
}

// Problem is one thing that is wrong.
type Problem struct {
	Line   int    `json:"line"`           // counted from 1; 0: unknown
	Column int    `json:"column"`         // in characters, counted from 1; 0: unknown
	Path   string `json:"path"`           // a key such as "forward[1].to[0]"; empty: the problem is not about one key
	What   string `json:"what"`           // what is wrong; begins with the value, quoted, where there is one
	Hint   string `json:"hint,omitempty"` // what to write in its place; empty: there is nothing to add
}

// maxProblems bounds a report: a file of another kind may have a problem in each line.
const maxProblems = 100

// sortProblems sorts problems in the order of the text, those without a line last.
func sortProblems(list []Problem) {
	slices.SortStableFunc(list, func(a, b Problem) int {
		if a.Line == 0 || b.Line == 0 {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// Error lists the problems, one on a line, each with its hint on the next line, indented.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Describe(p))
		if p.Hint != "" {
			b.WriteString("\n  hint: " + p.Hint)
		}
	}
	return b.String()
}

// Describe returns a problem on one line, with its place in the file as compilers write it, without its hint.
func (e *Error) Describe(p Problem) string {
	place := p.Place(e.Path)
	if place != "" {
		place += ": "
	}
	return place + p.String()
}

// Place returns where a problem is in a file, as compilers write it. The name of the file may be empty.
func (p Problem) Place(file string) string {
	switch {
	case p.Line > 0 && file != "":
		return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
	case p.Line > 0:
		return fmt.Sprintf("line %d:%d", p.Line, p.Column)
	}
	return file
}

// String returns the key of a problem, where it has one, and what is wrong.
func (p Problem) String() string {
	if p.Path == "" {
		return p.What
	}
	return p.Path + ": " + p.What
}

// problem returns a problem with a value. The decoder adds the key's path and puts the value before what.
func problem(what, hint string) *Problem { return &Problem{What: what, Hint: hint} }

// didYouMean is the hint that names the word closest to a mistyped one, empty
// when none is close: at most a third of it wrong, and no more than two letters.
func didYouMean(typed string, words []string) string {
	if len(typed) > 64 {
		return ""
	}
	best, least := "", min(2, max(1, len(typed)/3))+1
	for _, word := range words {
		if d := distance(strings.ToLower(typed), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + strconv.Quote(best) + "?"
}

// distance counts the letters to insert, remove, replace or swap with their
// neighbour that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = last[j]
			if a[i] == b[j] {
				continue
			}
			row[j+1] = 1 + min(last[j], last[j+1], row[j])
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// orList joins words as a sentence does.
func orList(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// quoteYAML quotes a string. The escapes of Go are escapes of YAML as well.
func quoteYAML(s string) string { return strconv.QuoteToASCII(s) }

// flowList returns a list as YAML.
func flowList[T fmt.Stringer](values []T) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = quoteYAML(v.String())
	}
	return "[" + strings.Join(list, ", ") + "]"
}
