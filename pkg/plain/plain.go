// SPDX-License-Identifier: Apache-2.0

// Package plain makes text from other programs and hosts safe to print.
//
// Pods, upstreams, the API server and other processes choose names, records and errors that people read on a terminal. There
// an escape sequence can do anything, a line break forges a line, and a bidirectional override reorders one.
package plain

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns text as one line, with ? for each character that is not printable: control characters, format characters such
// as bidirectional overrides, line separators, spaces but U+0020, and bytes that are not UTF-8.
func Line(text string) string {
	return strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, text)
}

// Lines applies Line to each line of a text. It is for text whose line breaks are the program's own.
func Lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		whole := strings.TrimSuffix(line, "\n")
		b.WriteString(Line(whole) + line[len(whole):])
	}
	return b.String()
}

// Error is Line for the text of an error. It puts "; " between the lines, such as those of [errors.Join].
func Error(text string) string { return Line(strings.ReplaceAll(text, "\n", "; ")) }

// JSON returns a JSON text with the same values, in which the characters that Line replaces are escaped.
func JSON(text []byte) []byte {
	var b bytes.Buffer
	for _, c := range string(text) {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			b.WriteRune(c)
		case c < ' ': // white space between values: JSON strings have no raw control characters
			b.WriteByte(' ')
		default:
			for _, unit := range utf16.Encode([]rune{c}) {
				_, _ = fmt.Fprintf(&b, "\\u%04x", unit)
			}
		}
	}
	return b.Bytes()
}
