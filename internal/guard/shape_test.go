// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// mostLines bounds the code that ships, so that it does not grow unnoticed. The commit that raises it says what the lines buy.
const mostLines = 72000

// mostMethods bounds the methods of a type: with more it has more than one responsibility.
const mostMethods = 30

// largeTypes have more methods, each for a reason.
func largeTypes() map[string]string {
	return map[string]string{
		"pkg/admin/metrics.table": "one for the series of each part",
		"pkg/cache.Cache":         "the exported methods: one for each thing that others do with the cache",
		"pkg/cache.shard":         "one lock guards all that they use",
		"pkg/convert.converter":   "one for each kind of directive",
		"pkg/upstream.endpoint":   "the measurements of a server are one record under one lock",
		"pkg/wire.Message":        "readers and editors of one message",
	}
}

// TestShape counts what ships: the code of cmd and pkg but tests and packages for tests. A line counts if it has code, not
// if it is blank or a comment. With -v it prints the count, which includes support code and tests.
func TestShape(t *testing.T) {
	t.Parallel()
	var shipped, support, tests size
	packages := map[string]size{}
	for _, f := range goFiles(t) {
		if f.generated {
			continue
		}
		s := sizeOf(t, &f)
		folder := f.folder()
		switch {
		case f.test:
			tests.add(&s)
		case strings.HasSuffix(folder, "test") || !strings.HasPrefix(folder, "pkg/") && !strings.HasPrefix(folder, "cmd/"):
			support.add(&s)
		default:
			shipped.add(&s)
			p := packages[folder]
			p.add(&s)
			packages[folder] = p
		}
	}
	t.Logf("shipped: %s", &shipped)
	t.Logf("support: %s", &support)
	t.Logf("tests: %s", &tests)
	if shipped.lines > mostLines {
		t.Errorf("%d lines ship, want at most %d", shipped.lines, mostLines)
	}
	large := largeTypes()
	bySize := slices.SortedFunc(maps.Keys(packages), func(a, b string) int { return cmp.Compare(packages[b].lines, packages[a].lines) })
	for _, name := range bySize {
		p := packages[name]
		t.Logf("%s: %s", name, &p)
		for of, methods := range p.methods {
			switch reason := large[name+"."+of]; {
			case methods > mostMethods && reason == "":
				t.Errorf("%s.%s has %d methods: cut it by responsibility, or give the reason here", name, of, methods)
			case methods <= mostMethods && reason != "":
				t.Errorf("%s.%s has %d methods: it needs no reason", name, of, methods)
			}
			delete(large, name+"."+of)
		}
	}
	for name := range large {
		t.Errorf("%s: no such type", name)
	}
}

// A size is how much code there is.
type size struct {
	lines, files, types int
	methods             map[string]int // by type
}

func (s *size) String() string {
	return fmt.Sprintf("%d lines, %d files, %d types", s.lines, s.files, s.types)
}

func (s *size) add(o *size) {
	s.lines, s.files, s.types = s.lines+o.lines, s.files+o.files, s.types+o.types
	if s.methods == nil {
		s.methods = map[string]int{}
	}
	for of, n := range o.methods {
		s.methods[of] += n
	}
}

// sizeOf counts one file.
func sizeOf(t *testing.T, f *goFile) size {
	t.Helper()
	s := size{files: 1, methods: map[string]int{}}
	data := content(t, f.name)
	file := token.NewFileSet().AddFile(f.name, -1, len(data))
	var tokens scanner.Scanner
	tokens.Init(file, data, nil, 0)
	last := 0
	for {
		pos, tok, text := tokens.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		first := file.Line(pos)
		end := first + strings.Count(text, "\n")
		s.lines += end - max(first-1, last)
		last = end
	}
	for _, decl := range f.syntax.Decls {
		switch d := decl.(type) {
		case *ast.GenDecl:
			if d.Tok == token.TYPE {
				s.types += len(d.Specs)
			}
		case *ast.FuncDecl:
			if d.Recv != nil {
				s.methods[receiver(d.Recv.List[0].Type)]++
			}
		}
	}
	return s
}

// receiver is the name of a receiver's type.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}
