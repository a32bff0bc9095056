// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A section is a part of the file that another command owns, from its begin marker to its end marker:
//
//	<!-- begin NAME -->
//	<!-- end NAME -->
type section struct {
	name string
	text string // with both markers
}

// readReport reads a file and its sections. There may be no such file yet.
func readReport(path string) (string, []section, error) {
	if path == "" {
		return "", nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading the old report: %w", err)
	}
	sections, err := findSections(string(text))
	if err != nil {
		return "", nil, fmt.Errorf("reading the sections of %s: %w", filepath.Base(path), err)
	}
	return string(text), sections, nil
}

// findSections returns the sections in order. Text whose markers do not pair is an error: rewriting it would lose a section.
func findSections(text string) ([]section, error) {
	var (
		found []section
		open  string
		body  strings.Builder
	)
	seen := make(map[string]bool)
	for line := range strings.Lines(text) {
		verb, name := marker(line)
		switch {
		case verb == "begin" && open != "":
			return nil, fmt.Errorf("section %q begins inside %q", name, open)
		case verb == "begin" && seen[name]:
			return nil, fmt.Errorf("section %q begins twice", name)
		case verb == "end" && name != open:
			return nil, fmt.Errorf("section %q ends without a begin", name)
		case verb == "begin":
			open = name
			seen[name] = true
			body.Reset()
		}
		if open != "" {
			body.WriteString(line)
		}
		if verb == "end" {
			found = append(found, section{name: open, text: body.String()})
			open = ""
		}
	}
	if open != "" {
		return nil, fmt.Errorf("section %q has no end", open)
	}
	return found, nil
}

// marker splits a marker line into its verb and the section's name; other lines have neither.
func marker(line string) (verb, name string) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(line), "<!--")
	if !ok {
		return "", ""
	}
	inner, ok = strings.CutSuffix(inner, "-->")
	words := strings.Fields(inner)
	if !ok || len(words) != 2 || (words[0] != "begin" && words[0] != "end") {
		return "", ""
	}
	return words[0], words[1]
}

// keepSections puts the old sections into new text: at the place of the section with the same name, else at the end.
func keepSections(text string, old []section) string {
	places, err := findSections(text)
	if err != nil {
		places = nil // checked before; without places every section goes to the end
	}
	for _, s := range old {
		placed := false
		for _, place := range places {
			if place.name == s.name {
				text = strings.Replace(text, place.text, s.text, 1)
				placed = true
			}
		}
		if !placed {
			text = strings.TrimLeft(strings.TrimRight(text, "\n")+"\n\n"+strings.TrimRight(s.text, "\n")+"\n", "\n")
		}
	}
	return text
}
