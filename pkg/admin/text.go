// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nodecache/node-cache/pkg/plain"
)

const (
	indent = "  " // what each level of nesting adds

	// maxTable is the most columns that a row of a table may take before its last cell. A list with longer rows becomes blocks.
	maxTable = 120
)

// renderText turns JSON into text for a human. Members that fit on one line come first, aligned. Objects follow as indented
// sections. A list of objects becomes a table, or blocks if its rows would be too long. An empty value becomes "-".
func renderText(data []byte) ([]byte, error) {
	v, err := parseValue(data)
	if err != nil {
		return nil, err
	}
	r := new(strings.Builder)
	switch {
	case v.kind == object:
		writeObject(r, v, "")
	case v.table():
		writeTable(r, v, "")
	default:
		writeLine(r, "", v.inline())
	}
	return []byte(r.String()), nil
}

// writeLine writes one line without blanks at its end.
func writeLine(r *strings.Builder, parts ...string) {
	r.WriteString(strings.TrimRight(strings.Join(parts, ""), " ") + "\n")
}

// writeObject writes the members, those on one line first.
func writeObject(r *strings.Builder, v value, margin string) {
	width := 0
	for i, item := range v.items {
		if item.flat() {
			width = max(width, columns(v.names[i]))
		}
	}
	for i, item := range v.items {
		if item.flat() {
			writeField(r, v.names[i], item.inline(), width, margin)
		}
	}
	for i, item := range v.items {
		if !item.flat() {
			writeSection(r, v.names[i], item, margin)
		}
	}
}

// writeField writes a name and its text; further lines of the text stand below the first.
func writeField(r *strings.Builder, name, text string, width int, margin string) {
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i > 0 {
			name = ""
		}
		writeLine(r, margin, pad(name, width), indent, line)
	}
}

// writeSection writes a member that takes more than a line. A blank line parts those
// of the top level.
func writeSection(r *strings.Builder, name string, v value, margin string) {
	if margin == "" && r.Len() > 0 {
		writeLine(r)
	}
	writeLine(r, margin, name)
	margin += indent
	switch {
	case v.kind == object:
		writeObject(r, v, margin)
	case v.table():
		writeTable(r, v, margin)
	default: // a list of lists, or of mixed kinds
		for _, item := range v.items {
			writeLine(r, margin, oneLine(item.inline()))
		}
	}
}

// writeTable writes a row for each object, with a column for each name in the order
// of its first appearance.
func writeTable(r *strings.Builder, v value, margin string) {
	names := slices.Clone(v.items[0].names)
	for _, item := range v.items[1:] {
		names = append(names, slices.DeleteFunc(slices.Clone(item.names), func(name string) bool { return slices.Contains(names, name) })...)
	}
	rows := make([][]string, 1, 1+len(v.items))
	rows[0] = names
	for _, item := range v.items {
		row := make([]string, len(names))
		for i, name := range names {
			row[i] = oneLine(item.member(name).inline())
		}
		rows = append(rows, row)
	}
	widths := columnWidths(rows)
	before := len(margin) // columns before the last cell
	for _, width := range widths[:max(len(widths)-1, 0)] {
		before += width + len(indent)
	}
	if before > maxTable {
		writeBlocks(r, v, margin)
		return
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = pad(cell, widths[i])
		}
		writeLine(r, margin, strings.Join(row, indent))
	}
}

// writeBlocks writes the objects one after the other, parted by blank lines.
func writeBlocks(r *strings.Builder, v value, margin string) {
	for i, item := range v.items {
		if i > 0 {
			writeLine(r)
		}
		writeObject(r, item, margin)
	}
}

// columnWidths returns the width of each column of a table. The table has at least one row.
func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], columns(cell))
		}
	}
	return widths
}

func pad(s string, width int) string { return s + strings.Repeat(" ", width-columns(s)) }

// columns is how wide a terminal shows s, for text without wide characters.
func columns(s string) int { return utf8.RuneCountInString(s) }

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

// printable is s without what could steer a terminal. Line breaks stay.
func printable(s string) string { return plain.Lines(s) }
