// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// manifestDocument is one document of a file.
type manifestDocument struct {
	number int    // from 1; documents of nothing but comments are not counted
	first  int    // line of the file where text begins, from 1
	line   int    // line of the file where its content begins, from 1
	text   []byte // with its marks and comments; shares memory with the file
	json   bool   // text is JSON and nothing else
}

// fileLine returns the line of the file, from 1, for a line that the YAML reader counted in the document, from 1. The
// reader also takes a lone carriage return and the separators of Unicode for line breaks (YAML 1.1, section 4.1.4),
// which editors do not count: the result is never past the document's last line.
func (d *manifestDocument) fileLine(counted int) int {
	last := d.first + bytes.Count(bytes.TrimRight(d.text, "\n"), []byte("\n"))
	return min(d.first+counted-1, last)
}

// splitManifest cuts a YAML file at its document marks. What has no content, comments alone, is left out.
//
// A mark is a line that begins with "---" or "..." and ends there or goes on after white space (YAML 1.2, section
// 9.1.2): nothing else may begin so at the left edge, not even a line of a block scalar. Cutting before parsing is
// what keeps a mistake in one document from hiding the others.
func splitManifest(data []byte) []manifestDocument {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var docs []manifestDocument
	current := manifestDocument{first: 1}
	start, pos, line := 0, 0, 0
	directives := false // seen in the current document, whose "---" is still to come
	end := func(at, next int) {
		if current.line > 0 {
			current.text = data[start:at]
			current.number = len(docs) + 1
			docs = append(docs, current)
		}
		current, start, directives = manifestDocument{first: next}, at, false
	}
	for text := range bytes.Lines(data) {
		line++
		switch kind := lineKindOf(text); {
		case kind == lineStart && directives:
			directives = false
			current.line = lineWithContent(text[3:], line)
		case kind == lineStart:
			end(pos, line)
			current.line = lineWithContent(text[3:], line)
		case kind == lineEnd:
			end(pos, line)
			start, current.first = pos+len(text), line+1
		case kind == lineDirective && current.line == 0:
			directives = true
		case kind != lineBlank && current.line == 0:
			current.line = line
		}
		pos += len(text)
	}
	end(len(data), line)
	return docs
}

// lineKind is what a line means to where documents begin and end.
type lineKind uint8

const (
	lineContent   lineKind = iota
	lineBlank              // nothing, or a comment
	lineStart              // "---"
	lineEnd                // "..."
	lineDirective          // "%YAML 1.1", before the first content
)

func lineKindOf(text []byte) lineKind {
	trimmed := bytes.TrimSpace(text)
	switch {
	case len(trimmed) == 0 || trimmed[0] == '#':
		return lineBlank
	case isMark(text, "---"):
		return lineStart
	case isMark(text, "..."):
		return lineEnd
	case text[0] == '%':
		return lineDirective
	}
	return lineContent
}

func isMark(text []byte, mark string) bool {
	rest, found := bytes.CutPrefix(text, []byte(mark))
	return found && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// lineWithContent gives line if there is content after its mark, and 0 if not.
func lineWithContent(rest []byte, line int) int {
	if lineKindOf(bytes.TrimLeft(rest, " \t")) == lineBlank {
		return 0
	}
	return line
}

// splitJSON cuts a file of JSON values, one after the other. The error is about what follows the last of them,
// which begins in the line given with it.
func splitJSON(data []byte) (docs []manifestDocument, line int, err error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	reader := json.NewDecoder(bytes.NewReader(data))
	line, pos := 1, 0
	for {
		var value json.RawMessage
		err := reader.Decode(&value)
		if errors.Is(err, io.EOF) {
			return docs, line, nil
		}
		if err != nil {
			return docs, line + bytes.Count(data[pos:errorOffset(err, data)], []byte("\n")), err
		}
		end := int(reader.InputOffset())
		begin := end - len(value)
		line += bytes.Count(data[pos:begin], []byte("\n"))
		docs = append(docs, manifestDocument{number: len(docs) + 1, first: line, line: line, text: value, json: true})
		line += bytes.Count(value, []byte("\n"))
		pos = end
	}
}

// errorOffset is where in data the error is, the end for one that says nothing about it.
func errorOffset(err error, data []byte) int {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset <= int64(len(data)) {
		return int(syntax.Offset)
	}
	return len(data)
}
