// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/panics"
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
		{name: "directive", text: "%YAML 1.1\n# c\n---\na: 1\n---\nb: 2\n", want: []cut{{3, 4, "---\na: 1\n"}, {5, 6, "---\nb: 2\n"}}},
		{name: "no marks", text: "a: |\n  ---\n  b\nc: ----\n---d: 1\n", want: []cut{{1, 1, "a: |\n  ---\n  b\nc: ----\n---d: 1\n"}}},
		{name: "line ends of Windows", text: "a: 1\r\n---\r\nb: 2\r\n", want: []cut{{1, 1, "a: 1\r\n"}, {2, 3, "---\r\nb: 2\r\n"}}},
	} {
		var got []cut
		for i, doc := range splitManifest([]byte(tt.text)) {
			got = append(got, cut{doc.first, doc.line, string(doc.text)})
			if doc.number != i+1 {
				t.Errorf("%s: document %d has the number %d", tt.name, i+1, doc.number)
			}
		}
		assert.Same(t, tt.name+": documents", tt.want, got)
	}
}

// TestManifestsPanic checks that a panic in a decoder is reported and counts as a mistake in the file.
func TestManifestsPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	f := manifestFolder{guard: panics.Guard{Where: "manifests", Log: slog.New(slog.NewTextHandler(&log, nil)), Count: new(atomic.Uint64)}}
	file := &manifestFile{name: "web.yaml"}
	kept := manifest{id: manifestID{kind: "Service", name: "web"}}
	f.decode(t.Context(), file, []manifest{kept}, func(r *manifestReader) {
		r.doc = manifestDocument{number: 2, line: 7}
		panic("index out of range")
	})
	want := []Problem{{File: "web.yaml", Document: 2, Line: 7, What: panics.Err.Error()}}
	if diff := cmp.Diff(want, file.problems); diff != "" || len(file.kept) != 1 || f.guard.Count.Load() != 1 {
		t.Errorf("kept %v, counted %d, problems (-want +got):\n%s", file.kept, f.guard.Count.Load(), diff)
	}
	if got := log.String(); !strings.Contains(got, "index out of range") {
		t.Errorf("log %q, want the panic", got)
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
		selection := manifestSelection{services: labels.Everything(), namespaceLabels: labels.Everything(), endpoints: EndpointsAll}
		selection.split(r.objects)
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
	if len(o.objects) != 1 || o.id.kind == "Endpoints" {
		return
	}
	plain := newObject(o.id.kind)
	if err := yaml.Unmarshal(text, plain); err != nil {
		t.Fatalf("%s decodes here, but not with sigs.k8s.io/yaml: %v", o.id, err)
	}
	plain.SetNamespace(o.id.namespace)
	assert.Same(t, fmt.Sprint(o.id), plain, o.objects[0])
}
