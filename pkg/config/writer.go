// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// writer writes a document line by line.
type writer struct {
	strings.Builder

	at        []string                 // the keys that lead to where it stands, one for each level
	heads     []string                 // the lines of those that are not written yet
	usual     map[string]string        // values that need not be written, by their paths with [] for every item; nil: there are none
	written   map[string]string        // where not nil: all values, likewise
	noForward bool                     // there is nothing in the routes that need be written
	note      func(path string) string // the comment for a path such as forward[0].to; nil: there are none
}

// line writes a key with its value.
func (w *writer) line(indent int, key, value string) {
	path := w.enter(indent, key)
	every := everyItem(path)
	if w.written != nil {
		w.written[every] = value
	}
	if usual, known := w.usual[every]; known && usual == value {
		return
	}
	w.flush()
	w.remark(indent, path)
	w.WriteString(strings.Repeat(" ", indent) + key + ": " + value + "\n")
}

// head writes a key whose value follows, if there is to be one.
func (w *writer) head(key string) {
	body := strings.TrimLeft(key, " ")
	w.enter(len(key)-len(body), body)
	w.heads = append(w.heads, key+":")
}

// items writes the key of a list of mappings, or that there are none.
func (w *writer) items(key string, n int) {
	if n == 0 {
		w.line(0, key, "[]")
		return
	}
	w.enter(0, key)
	w.heads = append(w.heads[:0], key+":")
}

// item begins an item of the list: the line that follows is its first.
func (w *writer) item(list string, i int) {
	w.at = append(w.at[:0], fmt.Sprintf("%s[%d]", list, i))
	w.flush()
	w.remark(0, w.at[0])
}

// first writes the first line of an item, which no default can spare.
func (w *writer) first(key, value string) { w.WriteString("- " + key + ": " + value + "\n") }

// enter moves to a key, and returns its path.
func (w *writer) enter(indent int, key string) string {
	level := indent / 2
	if len(w.at) > level {
		w.at = w.at[:level]
	}
	for len(w.heads) > 0 {
		last := w.heads[len(w.heads)-1]
		if len(last)-len(strings.TrimLeft(last, " ")) < indent {
			break
		}
		w.heads = w.heads[:len(w.heads)-1] // nothing below it was written
	}
	w.at = append(w.at, key)
	return strings.Join(w.at, ".")
}

// flush writes the heads that lead to what is written next.
func (w *writer) flush() {
	for _, head := range w.heads {
		w.WriteString(head + "\n")
	}
	w.heads = w.heads[:0]
}

// remark writes the comment of a path, if it has one.
func (w *writer) remark(indent int, path string) {
	if w.note == nil {
		return
	}
	if text := w.note(path); text != "" {
		w.WriteString(strings.Repeat(" ", indent) + "# " + text + "\n")
	}
}

// everyItem is a path without the number of the item that it leads through.
func everyItem(path string) string {
	list, rest, found := strings.Cut(path, "[")
	if !found || strings.ContainsAny(list, ".\"") {
		return path
	}
	_, rest, _ = strings.Cut(rest, "]")
	return list + "[]" + rest
}
