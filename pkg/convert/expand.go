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

// document is the text of a Corefile or of a part of one.
type document struct {
	name       string // in notes
	first      int    // first line of the text in the file
	text       string
	unknownKey place // of an unknown key; zero: the key is known
}

// Bounds on expanded imports.
const (
	maxImportDepth = 8
	maxTokens      = 200_000
)

// expander expands the imports of a Corefile.
type expander struct {
	shared map[string]document // available files, by base name
	used   map[string]bool     // those that were imported
	notes  []Note
	lines  []string
	places []place

	snippets map[string]int // tokens of each snippet so far, including its imports
	tokens   int
	unfilled map[string]bool // noted placeholders
	forms    *regexp.Regexp  // of placeholders
}

// expand appends the lines of a document with its imports expanded.
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

// importFiles expands the available files that a pattern selects.
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
			File: at.file, Line: at.line, What: "import " + pattern, Why: "the imported files were not given",
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

// scan finds the lines that import a file, which the Corefile parser would read on this host, and environment variables
// that are not set here. It bounds the size of snippets.
func (e *expander) scan(d document) (map[int]string, error) {
	words := caddyfile.NewDispenser(d.name, strings.NewReader(d.text))
	s := scanner{document: d, snippets: e.snippets, files: map[int]string{}}
	for words.Next() {
		s.tokens = append(s.tokens, caddyfile.Token{Line: words.Line(), Text: words.Val()})
	}
	plugin := "" // or the first word of the line
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

// scanner scans the words of a document.
type scanner struct {
	document

	tokens   []caddyfile.Token
	snippets map[string]int // tokens of each snippet so far, including its imports
	files    map[int]string // imports of files, by line

	depth   int    // open braces
	snippet string // the current snippet, if any
	size    int    // tokens so far, with expanded snippets
}

func (s *scanner) place(t caddyfile.Token) place { return place{s.name, s.first + t.Line - 1} }

// begins reports whether a token is the first of its line. A quoted token may span lines.
func (s *scanner) begins(i int) bool {
	return i == 0 || s.tokens[i-1].Line+strings.Count(s.tokens[i-1].Text, "\n") != s.tokens[i].Line
}

// token scans the next word.
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

// imports scans the name after import: a snippet, or a file on a line of its own.
func (s *scanner) imports(i int, t caddyfile.Token) error {
	behind := func(n int) bool { return i+n < len(s.tokens) && s.tokens[i+n].Line == t.Line }
	if !behind(1) {
		return fmt.Errorf("reading the Corefile: %s: import without a name", s.place(t))
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

// placeholder notes each placeholder once. Records of templates may contain such marks as well.
func (e *expander) placeholder(plugin, word string, at place) {
	if slices.Contains([]string{"answer", "authority", "additional"}, plugin) {
		return
	}
	found := placeholder(e.forms, word)
	if found == "" || e.unfilled[found] {
		return
	}
	e.unfilled[found] = true
	e.notes = append(e.notes, Note{File: at.file, Line: at.line, What: found, Why: "it is a placeholder without a value", Hint: unfilledHint})
}

// environment notes each environment variable that is not set here.
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

// unfilledHint is the hint for a template that is not rendered.
const unfilledHint = "fill it in first, or convert what the cluster has: kubectl get configmap -o yaml"

// unfilled finds the first line for a template tool, such as Helm or Ansible, which is not a line of a Corefile.
func unfilled(text string) (line int, found bool) {
	at := regexp.MustCompile(`(?m)^[^"#\n]*\{(?:%|\{-?\s*(?:if|else|end|range|with|include|template|toYaml|tpl|define|default)\b).*$`).FindStringIndex(text)
	if at == nil {
		return 0, false
	}
	return 1 + strings.Count(text[:at[0]], "\n"), true
}

// unfilledError returns the error for a template. first is the line of the file where the text begins.
func unfilledError(text string, first int) error {
	line, found := unfilled(text)
	if !found {
		return nil
	}
	return fmt.Errorf("line %d has {{ … }} or {%% … %%}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml", first+line-1)
}

// placeholders returns an expression for words of a Corefile that are placeholders.
func placeholders() *regexp.Regexp {
	return regexp.MustCompile(`__[A-Z][A-Z0-9_]*__|^\$\{?[A-Za-z_][A-Za-z0-9_]*\}?$|^<[A-Za-z][^<>]*>$|^\{\{.*|^(?:CLUSTER_DOMAIN|REVERSE_CIDRS|UPSTREAMNAMESERVER)$`)
}

// placeholder returns the placeholder in a word, except those of NodeLocal DNSCache.
func placeholder(forms *regexp.Regexp, word string) string {
	for _, known := range []string{clusterIP, centralServers, upstreams, "__PILLAR__LOCAL__DNS__", "__PILLAR__DNS__DOMAIN__"} {
		word = strings.ReplaceAll(word, known, "")
	}
	return forms.FindString(word)
}
