// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// node is one value of a document: JSON text with its path in the file.
type node struct {
	path   string // empty: the whole document
	text   json.RawMessage
	report *report
}

// field is a known key of a mapping, with what reads its value.
type field struct {
	key  string
	read func(node)
}

// maxShown bounds what of a wrong value is repeated, in bytes.
const maxShown = 64

func (n node) isNull() bool { return string(n.text) == "null" }

// reject reports n, whose value is repeated, as what.
func (n node) reject(what, hint string) {
	n.report.add(Problem{Path: n.path, What: n.shown() + ": " + what, Hint: hint})
}

// rejectFlaw rejects n when there is a flaw, and reports whether there is none.
func (n node) rejectFlaw(f flaw) bool {
	if f.what != "" {
		n.reject(f.what, f.hint)
	}
	return f.what == ""
}

// shown is the value of n in a message: a scalar as JSON, the kind of anything else.
func (n node) shown() string {
	switch n.text[0] {
	case '{':
		return "a mapping"
	case '[':
		return "a list"
	case 'n':
		return "empty"
	case '"':
		s, _ := n.str()
		return quote(s)
	}
	return string(n.text)
}

// quote quotes s, or the start of a long one.
func quote(s string) string {
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	end := maxShown
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "..."
}

// str returns the value of n when it is a string.
func (n node) str() (string, bool) {
	var s string
	return s, n.text[0] == '"' && json.Unmarshal(n.text, &s) == nil
}

// isScalar reports whether n is a number, a boolean or a string.
func (n node) isScalar() bool { return !strings.ContainsRune("{[n", rune(n.text[0])) }

// fields hands the value of each known key that is there to its reader, and
// reports the keys that are not known. A key without a value counts as absent.
// It reports whether n is a mapping at all.
func (n node) fields(known []field) bool {
	var values map[string]json.RawMessage
	if n.isNull() || json.Unmarshal(n.text, &values) != nil {
		n.reject("not a mapping", "")
		return false
	}
	for _, f := range known {
		child := node{path: n.child(f.key), text: values[f.key], report: n.report}
		delete(values, f.key)
		if len(child.text) > 0 && !child.isNull() {
			f.read(child)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		n.report.add(Problem{Path: n.child(key), What: "unknown key", Hint: didYouMean(key, keysOf(known))})
	}
	return true
}

// items returns the elements of a list and reports anything else.
func (n node) items() ([]node, bool) {
	var values []json.RawMessage
	if json.Unmarshal(n.text, &values) != nil {
		hint := "begin each item with a dash"
		if n.isScalar() {
			hint = fmt.Sprintf("write [%s]", n.shown())
		}
		n.reject("not a list", hint)
		return nil, false
	}
	list := make([]node, len(values))
	for i, v := range values {
		list[i] = node{path: fmt.Sprintf("%s[%d]", n.path, i), text: v, report: n.report}
	}
	return list, true
}

// child is the path of a key below n.
func (n node) child(key string) string {
	odd := func(c rune) bool { return c != '_' && c != '-' && !isLetterOrDigit(c) }
	if key == "" || len(key) > maxShown || strings.ContainsFunc(key, odd) {
		return n.path + "[" + quote(key) + "]"
	}
	if n.path == "" {
		return key
	}
	return n.path + "." + key
}

func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}
