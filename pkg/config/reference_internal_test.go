// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// sameFile fails unless a file has the content, which -update writes.
func sameFile(t *testing.T, file, content string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		assert.NoError(t, os.WriteFile(file, []byte(content), 0o644))
	}
	got, err := os.ReadFile(file)
	assert.NoError(t, err)
	assert.Same(t, file+" is not up to date: go test ./pkg/config -run 'TestReference|TestSchema|TestDocumentation' -update", content, string(got))
}

// fieldComments are the comments above the fields of structs, by the names of both.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	assert.NoError(t, err)
	comments := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		assert.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is {
				return true
			}
			if s, is := spec.Type.(*ast.StructType); is {
				for _, f := range s.Fields.List {
					text := strings.Join(strings.Fields(f.Doc.Text()), " ")
					if embedded, is := f.Type.(*ast.Ident); is && len(f.Names) == 0 {
						comments[spec.Name.Name+"."+embedded.Name] = text
					}
					for _, name := range f.Names {
						comments[spec.Name.Name+"."+name.Name] = text
					}
				}
			}
			return true
		})
	}
	return comments
}

// description is the comment of a field.
func description(t *testing.T, comments map[string]string, of reflect.Type, f *field) string {
	t.Helper()
	for _, i := range f.index[:len(f.index)-1] {
		of = of.Field(i).Type
	}
	name := of.Name() + "." + of.Field(f.index[len(f.index)-1]).Name
	if comments[name] == "" {
		t.Errorf("%s has no comment", name)
	}
	return comments[name]
}

// TestReference makes reference.yaml of the structs: their comments, defaults and examples.
func TestReference(t *testing.T) {
	t.Parallel()
	w := referenceWriter{t: t, comments: fieldComments(t)}
	w.WriteString("# SPDX-License-Identifier: Apache-2.0\n# yaml-language-server: $schema=../../docs/configuration.schema.json\n# Every key of the configuration at the agent's default. A file may hold any part of it.\n# docs/configuration.md says how values are written.\n")
	w.mapping(reflect.ValueOf(document{apiVersion, kind, Default(Agent)}), "")
	sameFile(t, "reference.yaml", w.String())
}

type referenceWriter struct {
	bytes.Buffer

	t        *testing.T
	comments map[string]string
}

// comment writes a text in lines of 120 characters.
func (w *referenceWriter) comment(margin, text string) {
	const width = 120
	line := margin + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width {
			w.WriteString(line + "\n")
			line = margin + "#"
		}
		line += " " + word
	}
	w.WriteString(line + "\n")
}

// mapping writes the keys of a struct with their values.
func (w *referenceWriter) mapping(v reflect.Value, margin string) {
	for _, f := range fieldsOf(v.Type()) {
		if margin == "" && f.key != "kind" {
			w.WriteString("\n")
		}
		w.comment(strings.Replace(margin, "- ", "  ", 1), description(w.t, w.comments, v.Type(), &f))
		w.key(&f, f.value(v), margin)
		margin = strings.Replace(margin, "- ", "  ", 1)
	}
}

func (w *referenceWriter) key(f *field, v reflect.Value, margin string) {
	var one writer
	switch item := v.Type(); {
	case f.tag.Get("inherits") != "":
		w.WriteString(margin + f.key + ":\n")
		return
	case item.Kind() == reflect.Slice && f.format.parse == nil:
		if v.Len() > 0 {
			w.WriteString(margin + f.key + ":\n")
			w.mapping(v.Index(0), "- ")
			return
		}
		w.WriteString(f.key + ": []\n")
		w.examples(item.Elem())
		return
	case f.format.parse == nil && v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[Fallback]() && v.Type() != reflect.TypeFor[BlockAnswer]():
		w.WriteString(margin + f.key + ":\n")
		w.mapping(v, strings.Replace(margin, "- ", "  ", 1)+"  ")
		return
	}
	one.key(f, v, reflect.Value{}, 0, "")
	w.WriteString(margin + unquoted(one.String()))
}

// unquoted takes the quotes from strings that mean the same without them.
func unquoted(text string) string {
	return regexp.MustCompile(`"([A-Za-z0-9./][A-Za-z0-9./_-]*[A-Za-z0-9./:]|on|off)"`).ReplaceAllString(text, "$1")
}

// examples writes items as comments.
func (w *referenceWriter) examples(of reflect.Type) {
	item := referenceWriter{t: w.t, comments: w.comments}
	switch of {
	case reflect.TypeFor[Rewrite]():
		item.rewriteExamples()
	default:
		v, lead := newItem(of), "- "
		for _, f := range fieldsOf(of) {
			item.comment("  ", description(w.t, w.comments, of, &f))
			if example, has := f.tag.Lookup("example"); has {
				item.WriteString(lead + f.key + ": " + example + "\n")
			} else {
				item.key(&f, f.value(v), lead)
			}
			lead = "  "
		}
	}
	w.WriteString(regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(item.String(), "\n"), "#") + "\n")
}

// rewriteExamples writes a rule of each kind.
func (w *referenceWriter) rewriteExamples() {
	of := reflect.TypeFor[Rewrite]()
	fields := fieldsOf(of)
	to := fields[len(fields)-1]
	for i, f := range fields[:len(fields)-1] {
		w.comment("  ", description(w.t, w.comments, of, &f))
		w.WriteString("- " + f.key + ": " + f.tag.Get("example") + "\n")
		if i == 0 {
			w.comment("  ", description(w.t, w.comments, of, &to))
		}
		w.WriteString("  to: " + strings.Split(to.tag.Get("example"), ",")[i] + "\n")
	}
}

// TestSchema makes the JSON Schema of the structs: for editors, and for the values of the chart.
func TestSchema(t *testing.T) {
	t.Parallel()
	schema := structSchema(t, fieldComments(t), reflect.TypeFor[document]())
	schema["$schema"], schema["title"] = "http://json-schema.org/draft-07/schema#", "Configuration of node-cache"
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false)
	assert.NoError(t, encoder.Encode(schema))
	sameFile(t, "../../docs/configuration.schema.json", text.String())
}

// structSchema is the schema of a mapping.
func structSchema(t *testing.T, comments map[string]string, of reflect.Type) map[string]any {
	t.Helper()
	properties := map[string]any{}
	for _, f := range fieldsOf(of) {
		s := fieldSchema(t, comments, &f, of.FieldByIndex(f.index).Type)
		s["description"] = description(t, comments, of, &f)
		properties[f.key] = s
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// fieldSchema is the schema of the value of a key.
func fieldSchema(t *testing.T, comments map[string]string, f *field, of reflect.Type) map[string]any {
	t.Helper()
	texts := map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	switch {
	case of == reflect.TypeFor[Fallback]():
		return map[string]any{"anyOf": []any{map[string]any{"enum": []string{"central", "none"}}, texts}}
	case of == reflect.TypeFor[BlockAnswer]():
		return map[string]any{"anyOf": []any{map[string]any{"enum": []string{"nxdomain", "nodata"}}, texts}}
	case of.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": texts}
	case of.Kind() == reflect.Slice && f.format.parse != nil:
		return map[string]any{"type": "array", "items": f.format.schema}
	case of.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": structSchema(t, comments, of.Elem())}
	case f.format.parse == nil:
		return structSchema(t, comments, of)
	}
	s := map[string]any{}
	maps.Copy(s, f.format.schema)
	switch {
	case f.tag.Get("inherits") != "":
		s["type"] = []string{"string", "null"}
	case s["type"] == "integer":
		s["minimum"], s["maximum"] = f.min, f.max
	}
	return s
}
