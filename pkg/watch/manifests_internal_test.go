// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// cut is a document in short form.
type cut struct {
	First, Line int
	Text        string
}

func TestSplitManifest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		text string
		want []cut
	}{
		{name: "nothing", text: ""},
		{name: "comments", text: "# a\n\n  # b\n"},
		{name: "one", text: "a: 1", want: []cut{{1, 1, "a: 1"}}},
		{name: "comment first", text: "# a\nb: 1\n", want: []cut{{1, 2, "# a\nb: 1\n"}}},
		{name: "mark first", text: "---\na: 1\n", want: []cut{{1, 2, "---\na: 1\n"}}},
		{name: "two", text: "a: 1\n---\nb: 2\n", want: []cut{{1, 1, "a: 1\n"}, {2, 3, "---\nb: 2\n"}}},
		{name: "empty ones between", text: "a: 1\n---\n---\n# c\n---\nb: 2\n", want: []cut{{1, 1, "a: 1\n"}, {5, 6, "---\nb: 2\n"}}},
		{name: "content after the mark", text: "--- {a: 1}\n--- # c\nb: 2\n", want: []cut{{1, 1, "--- {a: 1}\n"}, {2, 3, "--- # c\nb: 2\n"}}},
		{name: "end marks", text: "a: 1\n...\nb: 2\n... # c\n", want: []cut{{1, 1, "a: 1\n"}, {3, 3, "b: 2\n"}}},
		{name: "directive", text: "%YAML 1.1\n# c\n---\na: 1\n---\nb: 2\n", want: []cut{{1, 4, "%YAML 1.1\n# c\n---\na: 1\n"}, {5, 6, "---\nb: 2\n"}}},
		{name: "no marks", text: "a: |\n  ---\n  b\nc: ----\n---d: 1\n", want: []cut{{1, 1, "a: |\n  ---\n  b\nc: ----\n---d: 1\n"}}},
		{name: "line ends of Windows", text: "a: 1\r\n---\r\nb: 2\r\n", want: []cut{{1, 1, "a: 1\r\n"}, {2, 3, "---\r\nb: 2\r\n"}}},
		{name: "byte order mark", text: "\ufeff---\na: 1", want: []cut{{1, 2, "---\na: 1"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []cut
			for i, doc := range splitManifest([]byte(tt.text)) {
				got = append(got, cut{doc.first, doc.line, string(doc.text)})
				if doc.number != i+1 {
					t.Errorf("document %d has the number %d", i+1, doc.number)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("documents (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplitJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		text  string
		want  []cut
		line  int
		wrong bool
	}{
		{name: "nothing", text: " \n", line: 1},
		{name: "one", text: "\n{\"a\":\n1}\n", want: []cut{{2, 2, "{\"a\":\n1}"}}, line: 3},
		{name: "two", text: "{}\n\n[1,\n2] 3", want: []cut{{1, 1, "{}"}, {3, 3, "[1,\n2]"}, {4, 4, "3"}}, line: 4},
		{name: "broken after one", text: "{}\n{\n\n,}", want: []cut{{1, 1, "{}"}}, line: 4, wrong: true},
		{name: "cut", text: "{\n", line: 2, wrong: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			docs, line, err := splitJSON([]byte(tt.text))
			var got []cut
			for _, doc := range docs {
				got = append(got, cut{doc.first, doc.line, string(doc.text)})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("documents (-want +got):\n%s", diff)
			}
			if line != tt.line || (err != nil) != tt.wrong {
				t.Errorf("line %d, error %v; want line %d, an error: %t", line, err, tt.line, tt.wrong)
			}
		})
	}
}

// TestManifestsPanic checks that a panic in a decoder is reported and counts as a mistake in the file.
func TestManifestsPanic(t *testing.T) {
	t.Parallel()
	var told []string
	f := manifestFolder{recordPanic: func(file string, panicked any, stack []byte) {
		told = append(told, fmt.Sprint(file, " ", panicked, " ", len(stack) > 0))
	}}
	r := manifestReader{file: "web.yaml", doc: manifestDocument{number: 2, line: 7}}
	f.recovering(&r, func() { panic("index out of range") })
	if diff := cmp.Diff([]string{"web.yaml index out of range true"}, told); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	want := []Problem{{File: "web.yaml", Document: 2, Line: 7, What: "internal error: index out of range"}}
	if diff := cmp.Diff(want, r.problems); diff != "" || !r.nameless {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// FuzzManifests decodes arbitrary input. It must not panic, its problems must name lines of the file, and an object that
// decodes without a problem must equal the result of sigs.k8s.io/yaml.
func FuzzManifests(f *testing.F) {
	for _, pattern := range []string{"testdata/manifests/*/*.yaml", "testdata/manifests/*/*.json", "../../examples/cluster/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, filepath.Ext(path) == ".json")
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		r := manifestReader{file: "f.yaml"}
		if isJSON {
			r.file = "f.json"
		}
		r.readFile(data)
		lines := bytes.Count(data, []byte("\n")) + 1
		faulty := map[int]bool{}
		for _, p := range r.problems {
			faulty[p.Document] = true
			if p.Line < 0 || p.Line > lines {
				t.Errorf("%s: the file has %d lines", p, lines)
			}
		}
		if !isJSON {
			checkDecoded(t, data, &r, faulty)
		}
		view := manifestFilter{services: labels.Everything(), namespaceSelector: labels.Everything(), endpoints: EndpointsAll, pods: true}
		view.records(r.objects)
	})
}

// checkDecoded compares the objects of documents without problems with another decoder's.
func checkDecoded(t *testing.T, data []byte, r *manifestReader, faulty map[int]bool) {
	t.Helper()
	for _, doc := range splitManifest(data) {
		var head metav1.TypeMeta
		if faulty[doc.number] || yaml.Unmarshal(doc.text, &head) != nil || strings.HasSuffix(head.Kind, "List") {
			continue
		}
		for i := range r.objects {
			if o := &r.objects[i]; o.document == doc.number {
				compareObject(t, doc.text, o)
			}
		}
	}
}

func compareObject(t *testing.T, text []byte, o *manifest) {
	t.Helper()
	var got, want any
	switch {
	case o.service != nil:
		plain := &corev1.Service{}
		if err := yaml.Unmarshal(text, plain); err != nil {
			t.Fatalf("%s decodes here, but not with sigs.k8s.io/yaml: %v", o.id, err)
		}
		c := manifestCheck{} // which sets the API server's defaults
		plain.Namespace = o.id.namespace
		c.service(plain)
		got, want = o.service, plain
	case o.id.kind == "EndpointSlice":
		plain := &discoveryv1.EndpointSlice{}
		if err := yaml.Unmarshal(text, plain); err != nil {
			t.Fatalf("%s decodes here, but not with sigs.k8s.io/yaml: %v", o.id, err)
		}
		c := manifestCheck{}
		plain.Namespace = o.id.namespace
		c.slice(plain)
		got, want = o.slices[0], plain
	default:
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", o.id, diff)
	}
}
