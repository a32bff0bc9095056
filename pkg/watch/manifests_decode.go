// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"
	k8syaml "sigs.k8s.io/yaml"
)

// Problem is one problem in a folder of manifests.
type Problem struct {
	File     string `json:"file"`           // name in the folder; empty: the folder itself
	Document int    `json:"document"`       // number of the document in the file, from 1, not counting documents of comments only; 0: the whole file
	Line     int    `json:"line"`           // line of the file, from 1; 0: unknown
	What     string `json:"what"`           // begins with the object and the field's path, if known
	Hint     string `json:"hint,omitempty"` // what to write instead; empty: no hint
}

// String returns the problem on one line, without its hint.
func (p Problem) String() string {
	text := p.File
	if p.Document > 0 {
		text += fmt.Sprintf(": document %d", p.Document)
	}
	if p.Line > 0 {
		text += fmt.Sprintf(", line %d", p.Line)
	}
	return strings.TrimPrefix(text+": "+p.What, ": ")
}

// manifestID identifies an object.
type manifestID struct{ kind, namespace, name string }

// String returns the object as "Service shop/web". An odd name is quoted.
func (id manifestID) String() string {
	name := strings.Trim(id.namespace+"/"+id.name, "/")
	if !regexp.MustCompile(`^[\w./-]{0,320}$`).MatchString(name) {
		name = quoted(name)
	}
	return strings.TrimSpace(id.kind + " " + name)
}

// quoted quotes a value of a file. It shows only the beginning of a long value.
func quoted(text string) string {
	const most = 80
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}

// manifest is what one usable document, or one item of a list, gives to the zone.
type manifest struct {
	id       manifestID
	file     string
	document int
	line     int
	objects  []object // one; for Endpoints an EndpointSlice for each subset
}

// manifestReader decodes the documents of one file into objects and problems.
type manifestReader struct {
	file     string
	imports  bool // ServiceImports are used
	doc      manifestDocument
	root     *yaml.Node // parsed document, which only problems need; nil: not parsed yet
	objects  []manifest
	broken   bool // a document is unusable
	problems []Problem
}

// manifestDocument is one document of a file.
type manifestDocument struct {
	number int    // position in the file, from 1, not counting documents of comments only
	first  int    // line of the file where text begins, from 1
	line   int    // line of the file where its content begins, from 1
	text   []byte // includes the mark "---" and comments; shares memory with the file
}

// readFile decodes all documents of a file. A JSON file holds objects, one after the other.
func (r *manifestReader) readFile(data []byte) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if filepath.Ext(r.file) == ".json" {
		r.readJSON(data)
		return
	}
	for _, doc := range splitManifest(data) {
		r.doc, r.root = doc, nil
		if text, ok := r.toJSON(); ok {
			r.readObject(text, "", manifestHead{})
		}
	}
}

// readJSON decodes the objects of a JSON file.
func (r *manifestReader) readJSON(data []byte) {
	pos, line := 0, 1
	lineAt := func(at int) int {
		line += bytes.Count(data[pos:at], []byte("\n"))
		pos = at
		return line
	}
	reader := stdjson.NewDecoder(bytes.NewReader(data))
	for number := 1; ; number++ {
		var value stdjson.RawMessage
		err := reader.Decode(&value)
		if errors.Is(err, io.EOF) {
			return
		}
		r.doc, r.root = manifestDocument{number: number, text: value}, nil
		if err != nil {
			at := len(data)
			if syntax, ok := errors.AsType[*stdjson.SyntaxError](err); ok {
				at = max(pos, min(int(syntax.Offset), at))
			}
			r.broken = true
			r.mistake(lineAt(at), "JSON: "+err.Error(), "the file holds JSON objects, one after the other")
			return
		}
		r.doc.line = lineAt(int(reader.InputOffset()) - len(value))
		r.doc.first = r.doc.line
		r.readObject(value, "", manifestHead{})
	}
}

// splitManifest splits a YAML file at the lines that begin with "---" or "..." and end or continue with white space
// there (YAML 1.2, section 9.1.2). It drops directives, and documents that hold only comments. Splitting before parsing
// keeps a mistake in one document from hiding the others.
func splitManifest(data []byte) (docs []manifestDocument) {
	doc, start, pos, line := manifestDocument{first: 1}, 0, 0, 0
	end := func() {
		if doc.line > 0 {
			doc.number, doc.text = len(docs)+1, data[start:pos]
			docs = append(docs, doc)
		}
		doc, start = manifestDocument{first: line}, pos
	}
	for text := range bytes.Lines(data) {
		line++
		content := text
		switch markOf(text) {
		case "---":
			end()
			content = text[3:]
		case "...":
			end()
			doc.first, start, content = line+1, pos+len(text), nil
		}
		if content = bytes.TrimSpace(content); doc.line == 0 && len(content) > 0 && content[0] != '#' && text[0] != '%' {
			doc.line = line
		}
		pos += len(text)
	}
	end()
	return docs
}

// markOf returns the document mark that a line begins with, or "".
func markOf(line []byte) string {
	if len(line) < 3 || len(line) > 3 && !strings.ContainsRune(" \t\r\n", rune(line[3])) {
		return ""
	}
	if mark := string(line[:3]); mark == "---" || mark == "..." {
		return mark
	}
	return ""
}

// toJSON converts the YAML document to JSON. A key that is set twice is a problem; its last value counts.
func (r *manifestReader) toJSON() (text []byte, ok bool) {
	text, err := k8syaml.YAMLToJSONStrict(r.doc.text)
	if err == nil {
		return text, true
	}
	about, hint := "", ""
	text, fatal := k8syaml.YAMLToJSON(r.doc.text)
	if fatal != nil {
		err, about, hint = fatal, "YAML: ", "check the indentation, which must not have tabs, the quotes and the brackets"
		r.broken = true
	}
	found := regexp.MustCompile(`line (\d+): (.*)`).FindAllStringSubmatch(err.Error(), -1)
	parser := regexp.MustCompile(`^(did not find expected (<|node content|'-'|key|',')|found undefined tag handle)`)
	for _, m := range found {
		line, _ := strconv.Atoi(m[1])
		if parser.MatchString(m[2]) {
			line++ // the YAML reader's scanner counts from 1, its parser from 0
		}
		r.mistake(r.fileLine(line), about+strings.Replace(m[2], "already set in map", "is set twice", 1), hint)
	}
	if len(found) == 0 {
		r.mistake(r.doc.line, about+strings.TrimPrefix(err.Error(), "yaml: "), hint)
	}
	return text, fatal == nil
}

// mistake adds a problem of the document.
func (r *manifestReader) mistake(line int, what, hint string) {
	r.problems = append(r.problems, Problem{File: r.file, Document: r.doc.number, Line: line, What: what, Hint: hint})
}

// problem adds a problem with the object at path in the document. field is relative to path.
func (r *manifestReader) problem(id manifestID, path, field, what, hint string) {
	at := strings.Trim(path+"."+field, ".")
	if at != "" {
		what = at + ": " + what
	}
	if id.kind != "" {
		what = id.String() + ": " + what
	}
	r.mistake(r.lineOf(at), what, hint)
}

// lineOf returns the file's line of the field with that path, such as "spec.ports[1].name". For a missing field, it
// returns the line of its nearest parent, at worst the document's first line.
func (r *manifestReader) lineOf(path string) int {
	node, line := r.content(), r.doc.line
	for step := range strings.FieldsFuncSeq(path, func(c rune) bool { return strings.ContainsRune(".[]", c) }) {
		child, counted := childOf(node, step)
		if child == nil {
			return line
		}
		node, line = child, r.fileLine(counted)
	}
	return line
}

// content returns the top node of the document. It parses the document at the first call.
func (r *manifestReader) content() *yaml.Node {
	if r.root == nil {
		r.root = &yaml.Node{}
		if yaml.Unmarshal(r.doc.text, r.root) != nil || len(r.root.Content) == 0 {
			r.root = &yaml.Node{Content: []*yaml.Node{{}}} // this parser refuses some documents that the decoder accepts: the lines of their fields stay unknown
		}
	}
	return r.root.Content[0]
}

// childOf returns the field or the list item of node that a step of a path names, nil if it is missing, and the line of
// the document where it begins.
func childOf(node *yaml.Node, step string) (child *yaml.Node, line int) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind == yaml.MappingNode {
		for i := 1; i < len(node.Content); i += 2 {
			if key := node.Content[i-1]; key.Value == step {
				return node.Content[i], key.Line
			}
		}
		return nil, 0
	}
	i, err := strconv.Atoi(step)
	if err != nil || i < 0 || i >= len(node.Content) {
		return nil, 0
	}
	return node.Content[i], node.Content[i].Line
}

// fileLine returns the line of the file, from 1, for a line that a YAML reader counted in the document, from 1. The
// reader also treats a lone carriage return and the line separators of Unicode as line breaks (YAML 1.1, section 4.1.4),
// which editors do not. The result is at most the document's last line.
func (r *manifestReader) fileLine(counted int) int {
	last := r.doc.first + bytes.Count(bytes.TrimRight(r.doc.text, "\n"), []byte("\n"))
	return min(r.doc.first+counted-1, last)
}

// A manifestHead has the fields that all objects have, and the items of a list.
type manifestHead struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Items []stdjson.RawMessage `json:"items"`
}

// readObject decodes one object or the objects of a list. path is empty, or the path of a list item. head has the defaults of an
// item: in an API list, items inherit its kind and apiVersion; in a "kubectl get" list, they may be of any kind and set both
// themselves. Objects of unused kinds are skipped, whatever they contain.
func (r *manifestReader) readObject(text []byte, path string, head manifestHead) {
	wrong := json.UnmarshalCaseSensitivePreserveInts(text, &head)
	written, isList := strings.CutSuffix(head.Kind, "List")
	kind, version, used := usedKind(written)
	group, _, grouped := strings.Cut(head.APIVersion, "/")
	switch {
	case !used, kind == importKind && !r.imports:
		return
	case head.Kind != "" && grouped && group != "discovery.k8s.io" && group != importGroup:
		return // another API group has a kind of the same name
	case kind == importKind && slices.ContainsFunc(importVersions(), func(v schema.GroupVersion) bool { return v.String() == head.APIVersion }):
		version = head.APIVersion
	}
	id := manifestID{}
	if head.APIVersion == version && kind == written {
		id.kind = head.Kind
	}
	if what, field, hint := head.mistake(wrong, kind, version, path); what != "" {
		r.broken = true
		r.problem(id, path, field, what, hint)
		return
	}
	if isList {
		r.readItems(head.Items, kind, version)
		return
	}
	id.name = head.Metadata.Name
	if kind != "Namespace" {
		id.namespace = cmp.Or(head.Metadata.Namespace, metav1.NamespaceDefault)
	}
	r.readKind(text, path, id)
}

// usedKind returns the used kind that equals written except for case, and its apiVersion. An empty kind, as of a "kubectl get"
// list, has the apiVersion of such a list.
func usedKind(written string) (kind, version string, used bool) {
	versions := map[string]string{
		"": "v1", "Service": "v1", "Endpoints": "v1", "Namespace": "v1", "Pod": "v1", "EndpointSlice": "discovery.k8s.io/v1",
		importKind: importVersions()[0].String(),
	}
	for kind, version := range versions {
		if strings.EqualFold(written, kind) {
			return kind, version, true
		}
	}
	return written, "", false
}

// mistake describes what is wrong with the head of the object at path, and its field; without a mistake, all are empty.
// wrong is the head's decoding error, and kind and version are what the object must have.
func (h *manifestHead) mistake(wrong error, kind, version, path string) (what, field, hint string) {
	written, isList := strings.CutSuffix(h.Kind, "List")
	switch {
	case written != kind:
		return quoted(h.Kind) + ": not a kind", "kind", "did you mean " + quoted(kind) + "?"
	case wrong != nil:
		what, field, hint = decodingMistake(wrong)
		if h.Kind == "" || h.APIVersion != version {
			hint = "a manifest is an object with apiVersion, kind and metadata"
		}
		return what, field, hint
	case h.Kind == "":
		return "no kind", "", "a manifest begins with apiVersion and kind"
	case h.APIVersion == "":
		return "missing", "apiVersion", "write apiVersion: " + version
	case h.APIVersion != version:
		return quoted(h.APIVersion) + ": not that of kind " + h.Kind, "apiVersion", "write apiVersion: " + version
	case isList && path != "":
		return "a list in a list", "", ""
	case !isList && h.Metadata.Name == "":
		return "missing", "metadata.name", "give it a name; there is no API server to make one up"
	}
	return "", "", ""
}

// readItems decodes the items of a list. Those of an API list, which has a kind, inherit kind and version.
func (r *manifestReader) readItems(items []stdjson.RawMessage, kind, version string) {
	inherited := manifestHead{Kind: kind}
	if kind != "" {
		inherited.APIVersion = version
	}
	for i, item := range items {
		r.readObject(item, fmt.Sprintf("items[%d]", i), inherited)
	}
}

// readKind decodes an object of a used kind as the API server does: field names are case-sensitive. Unknown fields are
// reported and ignored; those of a ServiceImport are not all known here.
func (r *manifestReader) readKind(text []byte, path string, id manifestID) {
	o := newObject(id.kind)
	strict, err := json.UnmarshalStrict(text, o)
	if id.kind == importKind {
		strict = nil
	}
	for _, mistake := range strict {
		field := ""
		if named, ok := mistake.(json.FieldError); ok { //nolint:errorlint // the list holds them unwrapped
			field = named.FieldPath()
		}
		what := "unknown field"
		if strings.HasPrefix(mistake.Error(), "duplicate field") {
			what = "set twice"
		}
		r.problem(id, path, field, what, "")
	}
	if err != nil {
		what, field, hint := decodingMistake(err)
		r.broken = true
		r.problem(id, path, field, what, hint)
		return
	}
	o.SetNamespace(id.namespace)
	c := manifestCheck{report: func(field, what, hint string) { r.problem(id, path, field, what, hint) }}
	m := manifest{id: id, file: r.file, document: r.doc.number, line: r.doc.line, objects: c.check(id, o)}
	if path != "" {
		m.line = r.lineOf(path)
	}
	if r.broken = r.broken || c.fatal; !c.fatal {
		r.objects = append(r.objects, m)
	}
}

// newObject returns an empty object of a used kind.
func newObject(kind string) object {
	switch kind {
	case "Service":
		return &corev1.Service{}
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "Endpoints":
		return &corev1.Endpoints{} //nolint:staticcheck // deprecated in the API, and still common in folders
	case "Namespace":
		return &corev1.Namespace{}
	case importKind:
		return &serviceImport{}
	default:
		return &corev1.Pod{}
	}
}

// decodingMistake describes a JSON decoding error and its field.
func decodingMistake(err error) (what, field, hint string) {
	mistake, ok := errors.AsType[*stdjson.UnmarshalTypeError](err)
	if !ok {
		return strings.TrimPrefix(err.Error(), "json: "), "", ""
	}
	wanted := mistake.Type.Kind().String()
	if wanted == "string" && mistake.Value != "object" && mistake.Value != "array" {
		hint = "put it in quotes"
	}
	names := strings.NewReplacer("object", "mapping", "struct", "mapping", "map", "mapping", "array", "list", "slice", "list", "int32", "number", "int64", "number", "bool", "boolean")
	return "a " + names.Replace(mistake.Value) + " where a " + names.Replace(wanted) + " is wanted", mistake.Field, hint
}
