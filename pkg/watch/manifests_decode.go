// SPDX-License-Identifier: Apache-2.0

package watch

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
)

// defaultNamespace is where an object lives that names no namespace.
const defaultNamespace = metav1.NamespaceDefault

// manifestID is what makes two objects the same one.
type manifestID struct{ kind, namespace, name string }

// String gives the object as people write it: "Service shop/web". A name that cannot be one stands in quotes.
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

// manifest is one object of a file that can be served. Of service, slices, namespace and pod the one of its kind is set.
type manifest struct {
	id        manifestID
	file      string
	document  int
	line      int
	service   *corev1.Service
	slices    []*discoveryv1.EndpointSlice // one of an EndpointSlice; of Endpoints one for each subset
	namespace *corev1.Namespace
	pod       *corev1.Pod
}

// manifestReader turns the documents of one file into objects and problems.
type manifestReader struct {
	file     string
	doc      manifestDocument
	lines    lineFinder
	objects  []manifest
	broken   []manifestID // named by a document, and not good enough to be served
	nameless bool         // a document is so wrong that nobody can tell which object it names
	problems []Problem
}

// readDocument decodes one document. Kinds that make no names are passed over, whatever they hold.
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

// problem adds a problem with the object at path in the document; field is below that.
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

// readObject decodes one object, and the objects of a list. The path is empty, or that of an item of a list, whose
// version and kind the item has if it says nothing else.
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

// readList decodes the items of a list. One that "kubectl get" writes has items of any kind, each with its own; one of
// the API has items of one kind, and names it itself.
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

// recogniseKind gives the kind of an object of use here, List for any list of those, and nothing for other objects.
// What is wrong says why a document is probably meant to be of use and is not.
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
			return "", "", "" // another group's kind of the same name
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

// readKind decodes an object of one of the kinds of use.
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

// newObject gives an empty object of one of the kinds of use.
func newObject(kind string) metav1.Object {
	switch kind {
	case "Service":
		return &corev1.Service{}
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "Endpoints":
		return &corev1.Endpoints{} //nolint:staticcheck // deprecated in the API, and still what many folders hold
	case "Namespace":
		return &corev1.Namespace{}
	default:
		return &corev1.Pod{}
	}
}

// set puts a decoded object into its place and checks it.
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

// identify reads what names an object. Without a name it says so and returns none.
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

// decode decodes an object as the API server does: names of fields are case-sensitive, fields that are not known
// are told of and left out. It reports whether the object can be used.
func (r *manifestReader) decode(text []byte, path string, id manifestID, into any) bool {
	strict, err := json.UnmarshalStrict(text, into)
	for _, mistake := range strict {
		field := ""
		if named, ok := mistake.(json.FieldError); ok { //nolint:errorlint // the list holds them bare
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

// decodingMistake says what a JSON decoder found wrong, and in which field.
func decodingMistake(err error) (what, field string) {
	mistake, ok := errors.AsType[*stdjson.UnmarshalTypeError](err)
	if !ok {
		return strings.TrimPrefix(err.Error(), "json: "), ""
	}
	return "a " + typeName(mistake.Value) + " where a " + typeName(mistake.Type.Kind().String()) + " is wanted", mistake.Field
}

// typeName names a type of JSON or Go as people who write YAML do.
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

// quoteHint is the hint for a text that YAML took for something else, such as a name of digits.
func quoteHint(what string) string {
	if strings.HasSuffix(what, "where a string is wanted") {
		return "put it in quotes"
	}
	return ""
}
