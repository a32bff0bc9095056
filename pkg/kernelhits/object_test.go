// SPDX-License-Identifier: Apache-2.0

package kernelhits_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestObject builds the committed object from its source again.
func TestObject(t *testing.T) {
	t.Parallel()
	if out, _ := exec.CommandContext(t.Context(), "clang", "--version").Output(); !bytes.Contains(out, []byte("clang version 14.")) {
		t.Skip("another compiler than Debian's clang 14 gives another object")
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	generate := regexp.MustCompile(`(?m)^//go:generate (.*) hits bpf/hits.c$`).FindSubmatch(doc)
	if generate == nil {
		t.Fatal("doc.go has no go:generate line for hits.c")
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "sh", "-c", string(generate[1])+" -output-dir "+dir+" hits bpf/hits.c")
	build.Env = append(os.Environ(), "GOPACKAGE=kernelhits")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"hits_bpfel.o", "hits_bpfel.go"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if has, err := os.ReadFile(name); err != nil || !bytes.Equal(has, want) {
			t.Errorf("%s is not what bpf/hits.c gives (%v): run `go generate ./pkg/kernelhits` with clang 14", name, err)
		}
	}
}
