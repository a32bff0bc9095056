// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxProblems bounds the problems reported for one folder: it may contain other kinds of files.
const maxProblems = 100

// Problem is one problem in a folder of manifests.
type Problem struct {
	File     string // name in the folder; empty: the folder itself
	Document int    // of the file, from 1, without documents that hold only comments; 0: the whole file
	Line     int    // of the file, from 1; 0: unknown
	What     string // begins with the object and the field's path, if known
	Hint     string // what to write instead; empty: no hint
}

// String returns the problem on one line, without its hint.
func (p Problem) String() string {
	var where []string
	if p.Document > 0 {
		where = append(where, "document "+strconv.Itoa(p.Document))
	}
	if p.Line > 0 {
		where = append(where, "line "+strconv.Itoa(p.Line))
	}
	var b strings.Builder
	for _, part := range []string{p.File, strings.Join(where, ", ")} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	return b.String() + p.What
}

// boundProblems cuts a long list, and adds the number of further problems.
func boundProblems(list []Problem) []Problem {
	if more := len(list) - maxProblems; more > 0 {
		return append(list[:maxProblems:maxProblems], Problem{What: fmt.Sprintf("%d more problems", more)})
	}
	return list
}

// quoted quotes a value of a file. It shows only the beginning of a long value.
func quoted(text string) string {
	const most = 80
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}

// lineFinder finds the lines of a document's fields. It parses the document at the first call: most documents have no problem.
type lineFinder struct {
	doc  manifestDocument
	root *yaml.Node // nil: not parsed yet
}

// lineOf returns the file's line of the field with that path, such as "spec.ports[1].name". For a missing field, it
// returns the line of its nearest parent, at worst the document's first line.
func (f *lineFinder) lineOf(path string) int {
	if f.root == nil {
		f.root = &yaml.Node{}
		if err := yaml.Unmarshal(f.doc.text, f.root); err != nil {
			f.root = &yaml.Node{} // this parser is stricter than the decoder: report no lines
		}
	}
	if len(f.root.Content) == 0 {
		return f.doc.line
	}
	node, found := f.root.Content[0], f.doc.line
	for _, step := range pathSteps(path) {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		key, value := child(node, step)
		if value == nil {
			return found
		}
		node, found = value, f.doc.fileLine(key.Line)
	}
	return found
}

// pathSteps splits a path at its dots and before its brackets.
func pathSteps(path string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(path, "[", ".["), func(r rune) bool { return r == '.' })
}

// child returns the value of a key or index in node, and the node whose line is that of the pair.
func child(node *yaml.Node, step string) (key, value *yaml.Node) {
	if index, found := strings.CutPrefix(step, "["); found {
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil || node.Kind != yaml.SequenceNode || i < 0 || i >= len(node.Content) {
			return nil, nil
		}
		return node.Content[i], node.Content[i]
	}
	if node.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == step {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}
