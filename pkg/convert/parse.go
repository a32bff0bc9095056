// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
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

// maxQuoted bounds the part of a Corefile that a note repeats, in bytes.
const maxQuoted = 80

// text returns the line as written, without its block and without control characters.
func (s *statement) text() string {
	text := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(strings.Join(s.words, " "), "?"))
	if runes := []rune(text); len(runes) > maxQuoted {
		return string(runes[:maxQuoted]) + "..."
	}
	return text
}

// block is a server block: its keys, and its plugins by name, each in the order of the file.
type block struct {
	at      place
	keys    []string
	plugins []statement
}

// all returns the statements of a plugin, in the order of the file.
func (b *block) all(name string) []statement {
	var list []statement
	for _, s := range b.plugins {
		if s.words[0] == name {
			list = append(list, s)
		}
	}
	return list
}

// parse parses the server blocks of a Corefile with expanded imports.
func parse(name, text string, places []place) ([]block, error) {
	parsed, err := caddyfile.Parse(name, strings.NewReader(text), nil)
	if err != nil {
		return nil, fmt.Errorf("reading the Corefile: %w", err)
	}
	locate := func(line int) place {
		if line < 1 || line > len(places) {
			return place{file: name}
		}
		return places[line-1]
	}
	var blocks []block
	for _, p := range parsed {
		b := block{keys: p.Keys, at: place{file: name}}
		for _, plugin := range slices.Sorted(maps.Keys(p.Tokens)) {
			b.plugins = append(b.plugins, statements(&cursor{tokens: p.Tokens[plugin]}, locate)...)
		}
		for _, s := range b.plugins { // the parser drops the lines of the keys
			if b.at.line == 0 || s.at.file == b.at.file && s.at.line < b.at.line {
				b.at = s.at
			}
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// cursor iterates over tokens.
type cursor struct {
	tokens []caddyfile.Token
	i      int
}

// statements parses lines until the closing brace of the block, or the end.
func statements(c *cursor, locate func(int) place) []statement {
	var list []statement
	for c.i < len(c.tokens) {
		if c.tokens[c.i].Text == "}" {
			c.i++
			return list
		}
		s := statement{at: locate(c.tokens[c.i].Line), words: []string{c.tokens[c.i].Text}}
		for c.i++; c.i < len(c.tokens) && !c.newLine(); c.i++ {
			if text := c.tokens[c.i].Text; text == "{" || text == "}" {
				break
			}
			s.words = append(s.words, c.tokens[c.i].Text)
		}
		if c.i < len(c.tokens) && c.tokens[c.i].Text == "{" {
			c.i++
			s.body = statements(c, locate)
		}
		list = append(list, s)
	}
	return list
}

// newLine reports whether the token begins a line. A quoted token may span lines.
func (c *cursor) newLine() bool {
	before, now := c.tokens[c.i-1], c.tokens[c.i]
	return before.File != now.File || before.Line+strings.Count(before.Text, "\n") != now.Line
}
