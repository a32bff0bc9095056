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
	number int    // from 1, without documents that hold only comments
	first  int    // line of the file where text begins, from 1
	line   int    // line of the file where its content begins, from 1
	text   []byte // with its marks and comments; shares memory with the file
	json   bool   // text is JSON and nothing else
}

// fileLine returns the line of the file, from 1, for a line that the YAML reader counted in the document, from 1. The
// reader also treats a lone carriage return and the line separators of Unicode as line breaks (YAML 1.1, section 4.1.4),
// which editors do not. The result is at most the document's last line.
func (d *manifestDocument) fileLine(counted int) int {
	last := d.first + bytes.Count(bytes.TrimRight(d.text, "\n"), []byte("\n"))
	return min(d.first+counted-1, last)
}

// splitManifest splits a YAML file at its document marks. It drops documents that hold only comments.
//
// A mark is a line that begins with "---" or "..." and then ends or continues with white space (YAML 1.2, section
// 9.1.2). No other line may begin so, not even in a block scalar. Splitting before parsing keeps a mistake in one
// document from hiding the others.
func splitManifest(data []byte) []manifestDocument {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var docs []manifestDocument
	current := manifestDocument{first: 1}
	start, pos, line := 0, 0, 0
	directives := false // seen in the current document, before its "---"
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

// lineKind is the role of a line for document boundaries.
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

// lineWithContent returns line if there is content after its mark, or 0.
func lineWithContent(rest []byte, line int) int {
	if lineKindOf(bytes.TrimLeft(rest, " \t")) == lineBlank {
		return 0
	}
	return line
}

// splitJSON splits a file of concatenated JSON values. An error is about the text after the last of them, which begins
// at the returned line.
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

// errorOffset returns the position of the error in data, or the end if the error has none.
func errorOffset(err error, data []byte) int {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset <= int64(len(data)) {
		return int(syntax.Offset)
	}
	return len(data)
}
