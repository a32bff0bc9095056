// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// readDocument turns YAML text into the root of the tree. It reports whether
// there is a tree to walk: keys that are set twice are reported, and do not keep
// the rest from being looked at.
func readDocument(data []byte, r *report) (node, bool) {
	if !checkText(data, r) {
		return node{}, false
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil && addRepeated(err, r) {
		text, err = yaml.YAMLToJSON(data)
	}
	if err != nil {
		r.add(syntaxProblem(err, countLines(string(data))))
		return node{}, false
	}
	if !json.Valid(text) {
		// The YAML reader wrote it, so only the depth can be wrong.
		r.add(Problem{What: "nested too deeply"})
		return node{}, false
	}
	root := node{text: text, report: r}
	if root.isNull() {
		root.text = json.RawMessage("{}") // an empty file
	}
	return root, true
}

// addRepeated reports each key that the YAML reader found set twice, and whether that was all it found.
func addRepeated(err error, r *report) bool {
	list, found := strings.CutPrefix(err.Error(), "yaml: unmarshal errors:\n")
	if !found {
		return false
	}
	repeated := regexp.MustCompile(`(?m)^  line (\d+): key (.*) already set in map$`)
	for _, m := range repeated.FindAllStringSubmatch(list, -1) {
		line, _ := strconv.Atoi(m[1]) // digits only, by the expression
		r.add(Problem{Path: lineName(line), What: "key " + m[2] + " is set twice"})
	}
	return true
}

// syntaxProblem says in a problem what the YAML reader said in an error.
//
// The reader counts lines from 0 and leaves line 0 out. Its scanner adds the one
// that is missing, its parser does not. For both the end of the text is a line of its own.
func syntaxProblem(err error, lines int) Problem {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	if p, found := valueProblem(err, what); found {
		return p
	}
	line := 1
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits only, by the expression
		what = what[len(m[0]):]
		if fromParser(what) {
			line++
		}
	}
	p := Problem{Path: lineName(min(line, lines)), What: "YAML: " + what}
	switch {
	case strings.HasPrefix(what, "found character that cannot start any token"):
		p.Hint = "indent with spaces, not with tabs, and quote a value that begins with @ or `"
	case strings.HasPrefix(what, "mapping values are not allowed"):
		p.Hint = "quote a value that holds a colon and a space, and check the indentation"
	case strings.HasPrefix(what, "found unexpected end of stream"):
		p.Hint = "close the quotes"
	case strings.HasPrefix(what, "did not find expected node content"):
		p.Hint = "check the indentation and the brackets, and quote an IPv6 address"
	case fromParser(what):
		p.Hint = "check the indentation and the brackets"
	}
	return p
}

// fromParser reports whether a message is one of the YAML reader's parser.
func fromParser(what string) bool {
	for _, start := range []string{
		"did not find expected <", "did not find expected node content", "did not find expected '-' indicator",
		"did not find expected key", "did not find expected ',' or", "found undefined tag handle",
		"found duplicate %", "found incompatible YAML document",
	} {
		if strings.HasPrefix(what, start) {
			return true
		}
	}
	return false
}

// valueProblem is syntaxProblem for well-formed text with a value that no plan has. The reader knows no line for it.
func valueProblem(err error, what string) (Problem, bool) {
	var value *json.UnsupportedValueError
	switch {
	case errors.As(err, &value):
		return Problem{What: value.Str + ": not a finite number"}, true
	case strings.HasPrefix(what, "unsupported map key"), strings.HasPrefix(what, "invalid map key"):
		return Problem{What: "a key that is not a word"}, true
	}
	for _, start := range []string{
		"unknown anchor", "anchor ", "document contains excessive aliasing", "!!binary", "cannot decode", "map merge",
	} {
		if strings.HasPrefix(what, start) {
			return Problem{What: "YAML: " + what}, true
		}
	}
	return Problem{}, false
}
