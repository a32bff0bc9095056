// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// place is a line of an input file.
type place struct {
	file string
	line int // from 1; 0: the whole file
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// statement is a line of a Corefile with its block in braces.
type statement struct {
	at    place
	words []string // never empty
	body  []statement
}

// args returns the words after the first.
func (s *statement) args() []string { return s.words[1:] }

// maxQuoted bounds the part of a Corefile that a note repeats, in characters.
const maxQuoted = 80

// text returns the line as written, without its block and without control characters.
func (s *statement) text() string {
	text := []rune(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(strings.Join(s.words, " "), "?")))
	if len(text) > maxQuoted {
		return string(text[:maxQuoted]) + "..."
	}
	return string(text)
}

// Bounds on a Corefile with its imports.
const (
	maxImportDepth = 100
	maxTokens      = 200_000
)

// token is a word of a Corefile.
type token struct {
	at    place
	text  string
	first bool // the first word of its line
}

// parser parses a Corefile. It reads imports from the given files, and none from this host.
type parser struct {
	complete bool             // all files that a pattern may match were given
	files    map[string]Input // files to import, by base name
	used     map[string]bool  // the files that were imported
	noted    map[string]bool  // placeholders with a note
	forms    *regexp.Regexp   // matches placeholders
	notes    []Note
	snippets map[string][]token

	words  int     // number of words read so far, with imports; at most maxTokens
	tokens []token // the words, with imports expanded
	next   int     // index of the next token
}

// parse returns the server blocks of a Corefile.
func (p *parser) parse(in Input) ([]*server, error) {
	p.snippets, p.tokens, p.next = map[string][]token{}, nil, 0
	words, err := p.lex(in)
	if err == nil {
		err = p.expand(words, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Corefile: %w", err)
	}
	var servers []*server
	for p.next < len(p.tokens) {
		s := &server{at: p.tokens[p.next].at}
		s.keys = p.keys()
		inBraces, closed := p.take("{"), false
		if s.plugins, closed = p.statements(); inBraces && !closed {
			return nil, fmt.Errorf("reading the Corefile: %s: a closing brace is missing after %s", s.at, strings.Join(append(s.keys, "{"), " "))
		}
		if len(s.keys) > 0 {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// lines returns the statements in a text that is the inside of a block.
func (p *parser) lines(in Input) ([]statement, error) {
	p.tokens, p.next = nil, 0
	words, err := p.lex(in)
	if err == nil {
		err = p.expand(words, 0)
	}
	if err != nil {
		return nil, err
	}
	list, _ := p.statements()
	return list, nil
}

// keys parses the keys of a server block, which are on one line, or on several that end in a comma.
func (p *parser) keys() (list []string) {
	for more := true; p.next < len(p.tokens); p.next++ {
		t := p.tokens[p.next]
		if t.text == "{" || t.first && !more {
			break
		}
		key, comma := strings.CutSuffix(t.text, ",")
		if more = comma; key != "" {
			list = append(list, key)
		}
	}
	return list
}

// take skips the next token if its text is text, and reports whether it was.
func (p *parser) take(text string) bool {
	found := p.next < len(p.tokens) && p.tokens[p.next].text == text
	if found {
		p.next++
	}
	return found
}

// statements parses lines until the closing brace of the block, or the end. closed reports whether there was a brace.
func (p *parser) statements() (list []statement, closed bool) {
	for p.next < len(p.tokens) {
		if p.take("}") {
			return list, true
		}
		t := p.tokens[p.next]
		s := statement{at: t.at, words: []string{t.text}}
		for p.next++; p.next < len(p.tokens); p.next++ {
			t := p.tokens[p.next]
			if t.first || t.text == "{" || t.text == "}" {
				break
			}
			s.words = append(s.words, t.text)
		}
		if p.take("{") {
			if s.body, closed = p.statements(); !closed {
				return list, false
			}
		}
		list = append(list, s)
	}
	return list, false
}

// expand appends words to the tokens, with imports replaced by what they name, and without the snippets.
func (p *parser) expand(words []token, depth int) error {
	open := 0 // braces not yet closed
	for i := 0; i < len(words); i++ {
		t := words[i]
		if p.words++; p.words > maxTokens {
			return fmt.Errorf("%s: more than %d words with what is imported", t.at, maxTokens)
		}
		name, isSnippet := strings.CutPrefix(t.text, "(")
		name, closed := strings.CutSuffix(name, ")")
		switch {
		case isSnippet && closed && t.first && open == 0:
			end := blockEnd(words, i+1)
			p.snippets[name] = words[min(i+2, end):end]
			p.words += end - i
			i = end
			continue
		case t.text == "import" && (t.first || words[i-1].text == "{"):
			if err := checkImport(words[i:]); err != nil {
				return err
			}
			i++
			if err := p.imported(words[i], depth+1); err != nil {
				return err
			}
			continue
		case t.text == "{":
			open++
		case t.text == "}":
			open--
		}
		p.tokens = append(p.tokens, t)
	}
	return nil
}

// checkImport returns an error unless one name follows the import that the words begin with.
func checkImport(words []token) error {
	at := words[0].at
	if len(words) == 1 || words[1].first {
		return fmt.Errorf("%s: import without a name", at)
	}
	if len(words) > 2 && !words[2].first && words[2].text != "}" {
		return fmt.Errorf("%s: import takes one name", at)
	}
	return nil
}

// blockEnd returns the index of the brace that closes the block that begins at i.
func blockEnd(words []token, i int) int {
	open := 0
	for ; i < len(words); i++ {
		switch words[i].text {
		case "{":
			open++
		case "}":
			open--
		}
		if open <= 0 {
			break
		}
	}
	return i
}

// imported expands a snippet, or the files that a pattern selects.
func (p *parser) imported(pattern token, depth int) error {
	if depth > maxImportDepth {
		return fmt.Errorf("%s: files or snippets that import each other", pattern.at)
	}
	if words, known := p.snippets[pattern.text]; known {
		if len(words) > 0 {
			words = slices.Clone(words)
			words[0].first = true
		}
		return p.expand(words, depth)
	}
	names := slices.DeleteFunc(sortedNames(p.files), func(name string) bool {
		matched, err := path.Match(path.Base(pattern.text), name)
		return err != nil || !matched
	})
	if len(names) == 0 && (!p.complete || !strings.Contains(pattern.text, "*")) {
		p.note(pattern.at, "import "+pattern.text, "the imported files were not given", "give them, or the ConfigMap that they are keys of, beside this one")
	}
	for _, name := range names {
		p.used[name] = true
		words, err := p.lex(p.files[name])
		if err == nil {
			err = p.expand(words, depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) note(at place, what, why, hint string) {
	p.notes = append(p.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint})
}

// lex splits a Corefile into words, and replaces environment variables.
func (p *parser) lex(in Input) ([]token, error) {
	if err := unfilledError(in.Text, in.before); err != nil {
		return nil, fmt.Errorf("%s: %w", in.Name, err)
	}
	var words []token
	first, end := "", 0 // the first word of the line, and the line in which the last word ends
	for l := caddyfile.NewDispenser(in.Name, bytes.NewReader(in.Text)); l.Next(); {
		t := token{at: place{in.Name, in.before + l.Line()}, first: len(words) == 0 || l.Line() != end}
		end = l.Line() + strings.Count(l.Val(), "\n") // a quoted word may span lines
		if t.first {
			first = l.Val()
		}
		p.placeholder(first, l.Val(), t.at)
		if t.text = p.environment(l.Val(), t.at); t.text == "" && t.first {
			t.text = l.Val() // an empty first word, such as an unset variable: keep its text for the note about the line
		}
		words = append(words, t)
		if len(words) > maxTokens {
			return nil, fmt.Errorf("%s: more than %d words with what is imported", t.at, maxTokens)
		}
	}
	return words, nil
}

// environment replaces environment variables by their values in this process, and notes those that are not set.
func (p *parser) environment(word string, at place) string {
	for _, brackets := range [][2]string{{"{%", "%}"}, {"{$", "}"}} {
		rest := word
		for word = ""; ; {
			before, after, found := strings.Cut(rest, brackets[0])
			name, tail, closed := strings.Cut(after, brackets[1])
			if !found || !closed || name == "" {
				word += rest
				break
			}
			value, set := os.LookupEnv(name)
			if word, rest = word+before+value, tail; !set {
				p.note(at, brackets[0]+name+brackets[1], "the variable is not set here, so there is nothing in its place",
					"run the conversion with "+name+" set as it is for the server")
			}
		}
	}
	return word
}

// placeholder notes each placeholder once. In the plugin template, such text may be part of a record instead.
func (p *parser) placeholder(plugin, word string, at place) {
	found := placeholder(p.forms, word)
	if found == "" || p.noted[found] || slices.Contains([]string{"answer", "authority", "additional"}, plugin) {
		return
	}
	p.noted[found] = true
	p.note(at, found, "it is a placeholder without a value", "fill it in first, or convert what the cluster has: kubectl get configmap -o yaml")
}

// placeholders returns an expression for words of a Corefile that are placeholders.
func placeholders() *regexp.Regexp {
	return regexp.MustCompile(`__[A-Z][A-Z0-9_]*__|^\$\{?[A-Za-z_][A-Za-z0-9_]*\}?$|^<[A-Za-z][^<>]*>$|^\{\{.*|^(?:CLUSTER_DOMAIN|REVERSE_CIDRS|UPSTREAMNAMESERVER)$`)
}

// placeholder returns the placeholder in a word, except those of NodeLocal DNSCache.
func placeholder(forms *regexp.Regexp, word string) string {
	return forms.FindString(strings.NewReplacer(clusterIP, "", centralServers, "", upstreams, "", localDNS, "", dnsDomain, "").Replace(word))
}

// unfilledError returns an error if the text has a line for a template tool, such as Helm or Ansible, which is not a line
// of a Corefile. before is the number of lines before the text in its file.
func unfilledError(text []byte, before int) error {
	at := regexp.MustCompile(`(?m)^[^"#\n]*\{(?:%|\{-?\s*(?:if|else|end|range|with|include|template|toYaml|tpl|define|default)\b).*$`).FindIndex(text)
	if at == nil {
		return nil
	}
	const hint = " has {{ … }} or {% … %}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml"
	return fmt.Errorf("line %d%s", before+1+bytes.Count(text[:at[0]], []byte{'\n'}), hint)
}
