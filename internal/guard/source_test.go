// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines bounds a Go file, so that it holds one subject.
const maxLines = 600

func TestEveryPackageHasOneDoc(t *testing.T) {
	t.Parallel()
	docs, folders := map[string][]goFile{}, map[string][]goFile{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		folders[f.folder()] = append(folders[f.folder()], f)
		if f.syntax.Doc != nil {
			docs[f.folder()] = append(docs[f.folder()], f)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		with := docs[dir]
		if len(with) != 1 {
			t.Errorf("%s: %d files carry a package comment, want one", dir, len(with))
			continue
		}
		if len(folders[dir]) > 1 && with[0].syntax.Name.Name != "main" && !strings.HasSuffix(with[0].name, "/doc.go") {
			t.Errorf("%s: the package comment stands in %s, want doc.go", dir, with[0].name)
		}
		checkDoc(t, with[0])
	}
}

// checkDoc asks for a comment that begins with one sentence about the package.
func checkDoc(t *testing.T, f goFile) {
	t.Helper()
	text := f.syntax.Doc.Text()
	start := "Package " + f.syntax.Name.Name + " "
	if f.syntax.Name.Name == "main" {
		start = "Command "
	}
	first, _, _ := strings.Cut(text, "\n\n")
	if !strings.HasPrefix(text, start) || !strings.HasSuffix(strings.TrimSpace(first), ".") {
		t.Errorf("%s: the package comment is %q, want a sentence that begins with %q", f.name, first, start)
	}
}

func TestTestOnlyPackagesHaveADoc(t *testing.T) {
	t.Parallel()
	code := map[string]bool{}
	for _, f := range goFiles(t) {
		code[f.folder()] = code[f.folder()] || !f.test
	}
	for _, dir := range slices.Sorted(maps.Keys(code)) {
		if !code[dir] {
			t.Errorf("%s: only tests, want a doc.go that says what they show", dir)
		}
	}
}

func TestSPDX(t *testing.T) {
	t.Parallel()
	const tag = "SPDX-License-Identifier: Apache-2.0"
	for _, name := range files(t) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		data := content(t, name)
		comment := commentOf(name, data)
		if comment == "" {
			continue
		}
		first, rest, _ := bytes.Cut(data, []byte("\n"))
		if bytes.HasPrefix(first, []byte("#!")) {
			first, _, _ = bytes.Cut(rest, []byte("\n"))
		}
		if want := comment + " " + tag; string(first) != want {
			t.Errorf("%s: begins with %q, want %q", name, first, want)
		}
	}
}

// commentOf is the comment mark of a file that needs a licence line, empty for other files.
func commentOf(name string, data []byte) string {
	switch {
	case strings.HasSuffix(name, ".go"):
		return "//"
	case strings.HasSuffix(name, ".sh"), strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"), name == "Makefile":
		return "#"
	case bytes.HasPrefix(data, []byte("#!")):
		return "#"
	}
	return ""
}

func TestFileLength(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if !f.test && !f.generated && f.lines > maxLines {
			t.Errorf("%s: %d lines, want at most %d", f.name, f.lines, maxLines)
		}
	}
}

func TestNoInit(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: has an init function; construct it in New", f.name)
			}
		}
	}
}

func TestNoMachinePaths(t *testing.T) {
	t.Parallel()
	// A path in a home directory or a checkout does not exist on another machine.
	machine := regexp.MustCompile(`(?m)(^|[^a-zA-Z0-9_./$}*-])/(?:home|root|Users|work|farm)/[\w.-]+`)
	for _, name := range files(t) {
		data := content(t, name)
		if bytes.IndexByte(data, 0) >= 0 {
			continue // no text
		}
		for _, hit := range machine.FindAll(data, -1) {
			t.Errorf("%s: names the path %q of one machine", name, bytes.TrimSpace(hit))
		}
	}
}
