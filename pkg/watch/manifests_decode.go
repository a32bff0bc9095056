// SPDX-License-Identifier: Apache-2.0

package watch

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// defaultNamespace is the namespace of an object that sets none.
const defaultNamespace = metav1.NamespaceDefault

// manifestID identifies an object.
type manifestID struct{ kind, namespace, name string }

// String returns the object as "Service shop/web". An invalid name is quoted.
func (id manifestID) String() string {
	shown := func(name string) string {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
			return quoted(name)
		}
		return name
	}
	switch {
	case id.name == "":
		return id.kind
	case id.namespace == "":
		return id.kind + " " + shown(id.name)
	}
	return id.kind + " " + shown(id.namespace) + "/" + shown(id.name)
}

// manifest is one usable object of a file. Of service, slices, namespace and pod, the field of its kind is set.
type manifest struct {
	id        manifestID
	file      string
	document  int
	line      int
	service   *corev1.Service
	slices    []*discoveryv1.EndpointSlice // one for an EndpointSlice; one per subset for Endpoints
	namespace *corev1.Namespace
	pod       *corev1.Pod
}

// manifestReader decodes the documents of one file into objects and problems.
type manifestReader struct {
	file     string
	doc      manifestDocument
	lines    lineFinder
	objects  []manifest
	broken   []manifestID // named by a document that is too invalid to be served
	nameless bool         // a document is so invalid that its object is unknown
	problems []Problem
}

// readDocument decodes one document. Documents of unused kinds are skipped, whatever they contain.
func (r *manifestReader) readDocument(doc manifestDocument) {
	r.doc, r.lines = doc, lineFinder{doc: doc}
	text := doc.text
	if !doc.json {
		var ok bool
		if text, ok = r.toJSON(); !ok {
			r.nameless = true
			return
		}
	}
	r.readObject(text, "", "", "")
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
	r.problems = append(r.problems, Problem{
		File: r.file, Document: r.doc.number, Line: r.lines.lineOf(at), What: what, Hint: hint,
	})
}

// readObject decodes one object or the objects of a list. path is empty, or the path of a list item, which inherits the
// list's apiVersion and kind if it sets none.
func (r *manifestReader) readObject(text []byte, path, apiVersion, kind string) {
	head := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}{apiVersion, kind}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &head); err != nil {
		r.nameless = true
		what, field := decodingMistake(err)
		r.problem(manifestID{}, path, field, what, "a manifest is an object with apiVersion, kind and metadata")
		return
	}
	switch ours, wrong, hint := parseKind(head.APIVersion, head.Kind); {
	case wrong != "":
		r.nameless = true
		r.problem(manifestID{}, path, "", wrong, hint)
	case ours == "List" && path != "":
		r.nameless = true
		r.problem(manifestID{}, path, "", "a list in a list", "")
	case ours == "List":
		r.readList(text, head.APIVersion, strings.TrimSuffix(head.Kind, "List"))
	case ours != "":
		r.readKind(text, path, ours)
	}
}

// readList decodes the items of a list. The items of a "kubectl get" list have any kind and set it themselves. The items
// of an API list have one kind, which the list sets.
func (r *manifestReader) readList(text []byte, apiVersion, kind string) {
	var list struct {
		Items []stdjson.RawMessage `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &list); err != nil {
		r.nameless = true
		what, field := decodingMistake(err)
		r.problem(manifestID{kind: kind + "List"}, "", field, what, "")
		return
	}
	if kind == "" {
		apiVersion = ""
	}
	for i, item := range list.Items {
		r.readObject(item, fmt.Sprintf("items[%d]", i), apiVersion, kind)
	}
}

// parseKind returns the kind of a used object, List for any list of those, and "" for other objects. wrong is set if a
// document was probably meant to be used and is not.
func parseKind(apiVersion, kind string) (ours, wrong, hint string) {
	const core, discovery = "v1", "discovery.k8s.io/v1"
	if kind == "" {
		return "", "no kind", "a manifest begins with apiVersion and kind"
	}
	want := ""
	single := strings.TrimSuffix(kind, "List")
	for _, known := range []string{"", "Service", "Endpoints", "Namespace", "Pod", "EndpointSlice"} {
		if !strings.EqualFold(single, known) {
			continue
		}
		want = core
		if known == "EndpointSlice" {
			want = discovery
		}
		if group, _, grouped := strings.Cut(apiVersion, "/"); grouped && group != "discovery.k8s.io" {
			return "", "", "" // another API group's kind of the same name
		}
		if single != known {
			return "", "kind: " + quoted(kind) + ": not a kind", "did you mean " + quoted(known) + "?"
		}
	}
	switch {
	case want == "":
		return "", "", ""
	case apiVersion == "":
		return "", "apiVersion: missing", "write apiVersion: " + want
	case apiVersion != want:
		return "", "apiVersion: " + quoted(apiVersion) + ": not that of kind " + kind, "write apiVersion: " + want
	case kind != single:
		return "List", "", ""
	}
	return kind, "", ""
}

// readKind decodes an object of a used kind.
func (r *manifestReader) readKind(text []byte, path, kind string) {
	m := manifest{
		id: r.identify(text, path, kind), file: r.file, document: r.doc.number, line: r.doc.line,
	}
	if m.id.name == "" {
		r.nameless = true
		return
	}
	if path != "" {
		m.line = r.lines.lineOf(path)
	}
	c := manifestCheck{}
	object := newObject(kind)
	if r.decode(text, path, m.id, object) {
		object.SetNamespace(m.id.namespace)
		m.set(object, &c)
	} else {
		c.fatal = true
	}
	for _, f := range c.findings {
		r.problem(m.id, path, f.field, f.what, f.hint)
	}
	if c.fatal {
		r.broken = append(r.broken, m.id)
		return
	}
	r.objects = append(r.objects, m)
}

// newObject returns an empty object of a used kind.
func newObject(kind string) metav1.Object {
	switch kind {
	case "Service":
		return &corev1.Service{}
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "Endpoints":
		return &corev1.Endpoints{} //nolint:staticcheck // deprecated in the API, and still common in folders
	case "Namespace":
		return &corev1.Namespace{}
	default:
		return &corev1.Pod{}
	}
}

// set stores a decoded object in its field and checks it.
func (m *manifest) set(object metav1.Object, c *manifestCheck) {
	c.names(m.id)
	switch o := object.(type) {
	case *corev1.Service:
		m.service = o
		c.service(o)
	case *discoveryv1.EndpointSlice:
		m.slices = []*discoveryv1.EndpointSlice{o}
		c.slice(o)
	case *corev1.Endpoints: //nolint:staticcheck // see newObject
		m.slices = mirrorEndpoints(o)
		c.endpoints(o)
	case *corev1.Namespace:
		m.namespace = o
	case *corev1.Pod:
		m.pod = o
		c.pod(o)
	}
}

// identify decodes the identity of an object. It reports a problem if there is no name.
func (r *manifestReader) identify(text []byte, path, kind string) manifestID {
	var head struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	id := manifestID{kind: kind}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &head); err != nil {
		what, field := decodingMistake(err)
		r.problem(id, path, field, what, quoteHint(what))
		return id
	}
	if head.Metadata.Name == "" {
		r.problem(id, path, "metadata.name", "missing", "give it a name; there is no API server to make one up")
		return id
	}
	id.name = head.Metadata.Name
	if kind != "Namespace" {
		id.namespace = head.Metadata.Namespace
		if id.namespace == "" {
			id.namespace = defaultNamespace
		}
	}
	return id
}

// decode decodes an object as the API server does: field names are case-sensitive, and unknown fields are reported and
// ignored. It reports whether the object is usable.
func (r *manifestReader) decode(text []byte, path string, id manifestID, into any) bool {
	strict, err := json.UnmarshalStrict(text, into)
	for _, mistake := range strict {
		field := ""
		if named, ok := mistake.(json.FieldError); ok { //nolint:errorlint // the list holds them unwrapped
			field = named.FieldPath()
		}
		if strings.HasPrefix(mistake.Error(), "duplicate field") {
			r.problem(id, path, field, "set twice", "")
			continue
		}
		r.problem(id, path, field, "unknown field", "")
	}
	if err != nil {
		what, field := decodingMistake(err)
		r.problem(id, path, field, what, quoteHint(what))
		return false
	}
	return true
}

// decodingMistake describes a JSON decoding error and its field.
func decodingMistake(err error) (what, field string) {
	mistake, ok := errors.AsType[*stdjson.UnmarshalTypeError](err)
	if !ok {
		return strings.TrimPrefix(err.Error(), "json: "), ""
	}
	return "a " + typeName(mistake.Value) + " where a " + typeName(mistake.Type.Kind().String()) + " is wanted", mistake.Field
}

// typeName returns the YAML name of a JSON or Go type.
func typeName(text string) string {
	switch {
	case strings.HasPrefix(text, "number"), strings.HasPrefix(text, "int"), strings.HasPrefix(text, "uint"):
		return "number"
	case text == "object", text == "struct", text == "map":
		return "mapping"
	case text == "array", text == "slice":
		return "list"
	case text == "bool":
		return "boolean"
	default:
		return text
	}
}

// quoteHint returns the hint for a text that YAML decoded as another type, such as a name made of digits.
func quoteHint(what string) string {
	if strings.HasSuffix(what, "where a string is wanted") {
		return "put it in quotes"
	}
	return ""
}

// toJSON converts the YAML document to JSON. A duplicate key is reported; its last value counts.
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

// syntax adds a syntax problem. The YAML reader counted line within the document.
func (r *manifestReader) syntax(line string, more int, what, hint string) {
	at := r.doc.line
	if n, err := strconv.Atoi(line); err == nil {
		at = r.doc.fileLine(n + more)
	}
	r.problems = append(r.problems, Problem{File: r.file, Document: r.doc.number, Line: at, What: what, Hint: hint})
}

// parserLine is the correction for a syntax error's line: the YAML reader's scanner counts from 1, its parser from 0.
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
