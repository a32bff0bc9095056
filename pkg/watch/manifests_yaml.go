// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// toJSON turns the YAML document into JSON. Keys that are set twice are told of; the last one counts.
func (r *manifestReader) toJSON() ([]byte, bool) {
	text, err := yaml.YAMLToJSONStrict(r.doc.text)
	if err == nil {
		return text, true
	}
	if list, found := strings.CutPrefix(err.Error(), "yaml: unmarshal errors:\n"); found {
		repeated := regexp.MustCompile(`(?m)^  line (\d+): key (.*) already set in map$`)
		for _, m := range repeated.FindAllStringSubmatch(list, -1) {
			r.syntax(m[1], 0, "key "+m[2]+" is set twice", "")
		}
		if text, err = yaml.YAMLToJSON(r.doc.text); err == nil {
			return text, true
		}
	}
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	line := ""
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(what); m != nil {
		line, what = m[1], what[len(m[0]):]
	}
	r.syntax(line, parserLine(what), "YAML: "+what, syntaxHint(what))
	return nil, false
}

// syntax adds a problem of the text. The line is as the YAML reader counts it within the document.
func (r *manifestReader) syntax(line string, more int, what, hint string) {
	at := r.doc.line
	if n, err := strconv.Atoi(line); err == nil {
		at = r.doc.fileLine(n + more)
	}
	r.problems = append(r.problems, Problem{File: r.file, Document: r.doc.number, Line: at, What: what, Hint: hint})
}

// parserLine is what the line of a syntax error lacks: the YAML reader's scanner counts lines from 1, its parser from 0.
func parserLine(what string) int {
	for _, start := range []string{
		"did not find expected <", "did not find expected node content", "did not find expected '-' indicator",
		"did not find expected key", "did not find expected ',' or", "found undefined tag handle",
	} {
		if strings.HasPrefix(what, start) {
			return 1
		}
	}
	return 0
}

func syntaxHint(what string) string {
	switch {
	case strings.HasPrefix(what, "found character that cannot start any token"):
		return "indent with spaces, not with tabs, and quote a value that begins with @ or `"
	case strings.HasPrefix(what, "mapping values are not allowed"):
		return "quote a value that holds a colon and a space, and check the indentation"
	case strings.HasPrefix(what, "found unexpected end of stream"):
		return "close the quotes"
	case parserLine(what) > 0:
		return "check the indentation and the brackets"
	}
	return ""
}
