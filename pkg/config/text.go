// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// checkText reports what the YAML reader would answer without a line, or pass
// over in silence: bytes that are not text, and a second document, of which it
// reads nothing. It reports whether the reader may have the text.
func checkText(data []byte, r *report) bool {
	if len(data) > maxBytes {
		r.add(Problem{What: "larger than " + formatSize(maxBytes)})
		return false
	}
	begun, ended := false, false
	for line, rest := 1, strings.TrimPrefix(string(data), "\uFEFF"); rest != ""; line++ {
		var text string
		text, rest = cutLine(rest)
		if what := unprintable(text); what != "" {
			r.add(Problem{Path: lineName(line), What: what})
			return false
		}
		// A marker in the first column is one wherever it stands, in quoted and block text as well.
		tail, marker := cutMarker(text, "---")
		_, end := cutMarker(text, "...")
		switch {
		case marker || end:
			ended = begun
			begun = begun || marker
		case !begun && strings.HasPrefix(text, "%"):
			continue
		}
		if end || isBlank(tail) {
			continue // an empty second document does no harm
		}
		if ended {
			r.add(Problem{Path: lineName(line), What: "a second document", Hint: "one file holds one configuration"})
			return false
		}
		begun = true
	}
	return true
}

func lineName(line int) string { return fmt.Sprintf("line %d", line) }

// cutLine cuts the first line from text, by the line breaks of YAML 1.1.
func cutLine(text string) (line, rest string) {
	for i, c := range text {
		switch c {
		case '\r':
			return text[:i], strings.TrimPrefix(text[i+1:], "\n")
		case '\n', 0x85, 0x2028, 0x2029:
			return text[:i], text[i+utf8.RuneLen(c):]
		}
	}
	return text, ""
}

// countLines counts the lines of text by the same line breaks.
func countLines(text string) int {
	n := 0
	for ; text != ""; n++ {
		_, text = cutLine(text)
	}
	return n
}

// cutMarker cuts a document marker from the start of a line. Without one it returns the line as it is.
func cutMarker(line, marker string) (tail string, found bool) {
	tail, found = strings.CutPrefix(line, marker)
	if !found || (tail != "" && tail[0] != ' ' && tail[0] != '\t') {
		return line, false
	}
	return tail, true
}

// isBlank reports whether a line holds nothing but a comment.
func isBlank(line string) bool {
	line = strings.TrimLeft(line, " \t")
	return line == "" || line[0] == '#'
}

// unprintable says what in a line is no YAML text, empty when all of it is.
func unprintable(line string) string {
	for i, c := range line {
		switch {
		case c == utf8.RuneError && !strings.HasPrefix(line[i:], string(utf8.RuneError)):
			return "not UTF-8 text"
		case (c < ' ' && c != '\t') || (c >= 0x7F && c <= 0x9F) || c == 0xFFFE || c == 0xFFFF:
			return fmt.Sprintf("control character %U", c)
		}
	}
	return ""
}
