// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// document is the text of a Corefile, or of a part of one.
type document struct {
	name       string // as notes name it
	first      int    // the line of the file that the text begins at
	text       string
	unknownKey place // of a key whose name does not tell what it is for; zero: it does
}

// Bounds on what imports may make of a text.
const (
	maxImportDepth = 8
	maxTokens      = 200_000
)

// expander puts the files that a Corefile imports in their places.
type expander struct {
	shared map[string]document // the files there are, by the last part of their names
	used   map[string]bool     // those of them that were imported
	notes  []Note
	lines  []string
	places []place

	snippets map[string]int // tokens of each snippet so far, with those that it imports
	tokens   int
	unfilled map[string]bool // what stands for values, as far as it was noted
	forms    *regexp.Regexp  // of that
}

// expand appends the lines of a document, with what they import in place of import.
func (e *expander) expand(d document, depth int) error {
	if depth > maxImportDepth {
		return errors.New("reading the Corefile: files that import each other")
	}
	if err := unfilledError(d.text, d.first); err != nil {
		return fmt.Errorf("reading the Corefile: %s: %w", d.name, err)
	}
	drop, err := e.scan(d)
	if err != nil {
		return err
	}
	number := 0
	for line := range strings.SplitSeq(d.text, "\n") {
		number++
		at := place{d.name, d.first + number - 1}
		pattern, found := drop[number]
		if !found {
			e.lines, e.places = append(e.lines, line), append(e.places, at)
			continue
		}
		if err := e.importFiles(pattern, at, depth); err != nil {
			return err
		}
	}
	return nil
}

// importFiles puts those of the files there are that a pattern means in its place.
func (e *expander) importFiles(pattern string, at place, depth int) error {
	var names []string
	for name := range e.shared {
		if matched, err := path.Match(path.Base(pattern), name); err == nil && matched {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		e.notes = append(e.notes, Note{
			File: at.file, Line: at.line, What: "import " + pattern, Why: "the files that it means were not given",
			Hint: "give them, or the ConfigMap that they are keys of, beside this one",
		})
	}
	for _, name := range names {
		e.used[name] = true
		if err := e.expand(e.shared[name], depth+1); err != nil {
			return err
		}
	}
	return nil
}

// scan finds the lines that import a file, which the reader of Corefiles would look for on this machine, and names of
// the environment that have no value here. It bounds what snippets add up to.
func (e *expander) scan(d document) (map[int]string, error) {
	words := caddyfile.NewDispenser(d.name, strings.NewReader(d.text))
	s := scanner{document: d, snippets: e.snippets, files: map[int]string{}}
	for words.Next() {
		s.tokens = append(s.tokens, caddyfile.Token{Line: words.Line(), Text: words.Val()})
	}
	plugin := "" // or what else the line begins with
	for i, t := range s.tokens {
		if s.begins(i) {
			plugin = t.Text
		}
		e.environment(t.Text, s.place(t))
		e.placeholder(plugin, t.Text, s.place(t))
		if err := s.token(i, t); err != nil {
			return nil, err
		}
	}
	e.tokens += s.size
	if e.tokens > maxTokens {
		return nil, tooLong(d.name)
	}
	return s.files, nil
}

func tooLong(where string) error {
	return fmt.Errorf("reading the Corefile: %s: more than %d words with what is imported", where, maxTokens)
}

// scanner walks along the words of a document.
type scanner struct {
	document

	tokens   []caddyfile.Token
	snippets map[string]int // tokens of each snippet so far, with those that it imports
	files    map[int]string // what is imported and is no snippet, by the line

	depth   int    // braces that are open
	snippet string // the one that the words belong to, if any
	size    int    // tokens so far, those of snippets where they are imported
}

func (s *scanner) place(t caddyfile.Token) place { return place{s.name, s.first + t.Line - 1} }

// begins reports whether a token is the first of its line. One in quotes may have more than one line.
func (s *scanner) begins(i int) bool {
	return i == 0 || s.tokens[i-1].Line+strings.Count(s.tokens[i-1].Text, "\n") != s.tokens[i].Line
}

// token takes the next word.
func (s *scanner) token(i int, t caddyfile.Token) error {
	s.size++
	isName := strings.HasPrefix(t.Text, "(") && strings.HasSuffix(t.Text, ")") && len(t.Text) > 1
	switch {
	case t.Text == "{":
		s.depth++
	case t.Text == "}":
		s.depth--
		if s.depth <= 0 && s.snippet != "" {
			s.snippets[s.snippet] = s.size
			s.snippet = ""
		}
	case isName && s.depth <= 0 && s.begins(i):
		s.snippet, s.size = t.Text[1:len(t.Text)-1], 0
	case t.Text == "import" && (s.begins(i) || s.tokens[i-1].Text == "{"):
		if err := s.imports(i, t); err != nil {
			return err
		}
	}
	if s.size > maxTokens {
		return tooLong(s.place(t).String())
	}
	return nil
}

// imports takes the name behind import: a snippet, or a file that has the line to itself.
func (s *scanner) imports(i int, t caddyfile.Token) error {
	behind := func(n int) bool { return i+n < len(s.tokens) && s.tokens[i+n].Line == t.Line }
	if !behind(1) {
		return fmt.Errorf("reading the Corefile: %s: import of nothing", s.place(t))
	}
	name := s.tokens[i+1].Text
	if added, known := s.snippets[name]; known {
		s.size += added
		return nil
	}
	if !s.begins(i) || behind(2) || strings.Contains(name, "\n") {
		return fmt.Errorf("reading the Corefile: %s: import shares its line: write it on a line of its own", s.place(t))
	}
	s.files[t.Line] = name
	return nil
}

// placeholder notes what is still to be filled in, once. Records of templates have such signs as well.
func (e *expander) placeholder(plugin, word string, at place) {
	if slices.Contains([]string{"answer", "authority", "additional"}, plugin) {
		return
	}
	found := placeholder(e.forms, word)
	if found == "" || e.unfilled[found] {
		return
	}
	e.unfilled[found] = true
	e.notes = append(e.notes, Note{File: at.file, Line: at.line, What: found, Why: "it stands for a value that nobody has filled in", Hint: unfilledHint})
}

// environment notes each variable of the environment that has no value on this machine.
func (e *expander) environment(word string, at place) {
	for _, brackets := range [][2]string{{"{$", "}"}, {"{%", "%}"}} {
		for rest := word; ; {
			_, after, found := strings.Cut(rest, brackets[0])
			name, tail, closed := strings.Cut(after, brackets[1])
			if !found || !closed {
				break
			}
			rest = tail
			if _, set := os.LookupEnv(name); !set && name != "" {
				e.notes = append(e.notes, Note{
					File: at.file, Line: at.line, What: brackets[0] + name + brackets[1],
					Why:  "the variable is not set here, so there is nothing in its place",
					Hint: "run the conversion with " + name + " set as it is for the server",
				})
			}
		}
	}
}
