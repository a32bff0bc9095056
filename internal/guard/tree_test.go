// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// root is the top of the repository, seen from this package.
const root = "../.."

// modulePath is the path of the main module.
const modulePath = "github.com/nodecache/node-cache"

// files lists the repository's files with slash-separated paths from its top. What the targets of the Makefile
// build and what version control keeps is left out.
func files(t *testing.T) []string {
	t.Helper()
	var list []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == ".git" || name == "bin" || name == "dist") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && name != ".git" { // a file in a work tree of its own
			list = append(list, name)
		}
		return nil
	})
	assert.NoError(t, err)
	if !slices.Contains(list, "go.mod") {
		t.Fatalf("no go.mod among the %d files under %s", len(list), root)
	}
	return list
}

// filesWith lists the files whose names end in one of the suffixes.
func filesWith(t *testing.T, suffixes ...string) []string {
	t.Helper()
	return slices.DeleteFunc(files(t), func(name string) bool {
		return !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	})
}

// content reads a file of the repository.
func content(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	assert.NoError(t, err)
	return data
}

// goFile is one parsed Go file outside of testdata.
type goFile struct {
	name      string // from the repository's top
	test      bool
	generated bool
	lines     int
	syntax    *ast.File
}

// goFiles parses every Go file of the repository, those of its other modules included.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	fset := token.NewFileSet()
	var parsed []goFile
	for _, name := range filesWith(t, ".go") {
		if strings.Contains(name, "testdata/") {
			continue
		}
		data := content(t, name)
		syntax, err := parser.ParseFile(fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parsing: %v", err)
			continue
		}
		parsed = append(parsed, goFile{
			name:      name,
			test:      strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(syntax),
			lines:     bytes.Count(data, []byte("\n")),
			syntax:    syntax,
		})
	}
	return parsed
}

// folder is the file's package folder from the repository's top.
func (f goFile) folder() string { return path.Dir(f.name) }

// imports lists the file's import paths.
func (f goFile) imports() []string {
	list := make([]string, 0, len(f.syntax.Imports))
	for _, spec := range f.syntax.Imports {
		list = append(list, strings.Trim(spec.Path.Value, `"`))
	}
	return list
}
