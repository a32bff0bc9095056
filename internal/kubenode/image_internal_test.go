// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArchive(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := Image{
		Name: "example.com/a:1", Entrypoint: []string{"/bin/program"},
		Files: map[string]string{"bin/program": program, "bin/other": "-> program"},
	}
	var archives [2][]byte
	for n := range archives {
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := i.Archive(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives[n] = text
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same image differ")
	}
	files := untar(t, archives[0])
	for name, content := range files {
		if dir, sum := filepath.Split(name); dir == "blobs/sha256/" && "sha256:"+sum != digest([]byte(content)) {
			t.Errorf("%s has the digest %s", name, digest([]byte(content)))
		}
	}
	manifest := follow(t, files, files["index.json"], "manifests")
	layer := follow(t, files, manifest, "layers")
	var names []string
	for name := range untar(t, []byte(layer)) {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"bin/", "bin/other", "bin/program", "etc/", "tmp/"}, names); diff != "" {
		t.Errorf("the layer (-want +got):\n%s", diff)
	}
}

// follow returns the blob that is the first of a list in a JSON object.
func follow(t *testing.T, files map[string]string, text, list string) string {
	t.Helper()
	var parsed map[string]json.RawMessage
	var described []struct{ Digest string }
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(parsed[list], &described); err != nil {
		t.Fatal(err)
	}
	content, ok := files["blobs/sha256/"+described[0].Digest[len("sha256:"):]]
	if !ok {
		t.Fatalf("no blob %s", described[0].Digest)
	}
	return content
}

func untar(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}
