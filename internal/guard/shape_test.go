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

// Bounds of the shape. A package that needs more lines says why in the commit that raises its bound.
const (
	mostLines        = 56150
	mostFiles        = 360
	mostTypes        = 635
	mostSupportLines = 13650
	mostTestLines    = 87500
)

// packageLines are the most lines of a package, in hundreds, where it may have more than 1,000.
func packageLines() map[string]int {
	return map[string]int{
		"pkg/upstream": 43, "pkg/zone": 43, "pkg/agent": 41, "pkg/config": 35, "pkg/resolve": 37, "pkg/watch": 37, "pkg/status": 12,
		"pkg/convert": 32, "pkg/server": 21, "pkg/doctor": 21, "pkg/cache": 17, "pkg/wire": 18, "pkg/nftables": 15,
		"pkg/iptables": 15, "pkg/source": 15, "pkg/admin": 14, "cmd/node-cache": 18, "pkg/netif": 12, "pkg/kernel": 12,
	}
}

// A spread is how many methods a type has, and in how many files.
type spread struct{ methods, files int }

// largeTypes have more than 30 methods, or have them in more than 4 files.
func largeTypes() map[string]spread {
	return map[string]spread{
		"pkg/admin.Server": {30, 6}, "pkg/agent.Agent": {37, 4}, "pkg/agent.builder": {30, 5}, "pkg/node.Node": {35, 4}, "pkg/cache.Cache": {34, 6},
		"pkg/cache.entry": {30, 5}, "pkg/cache.shard": {32, 5}, "pkg/resolve.Worker": {49, 5}, "pkg/zone.Store": {52, 7},
		"pkg/zone.reply": {69, 9}, "pkg/zone.Zone": {30, 5}, "pkg/convert.converter": {32, 5}, "pkg/upstream.endpoint": {35, 4}, "pkg/wire.Message": {32, 4},
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
	most(t, "lines that ship", shipped.lines, mostLines)
	most(t, "files that ship", shipped.files, mostFiles)
	most(t, "types that ship", shipped.types, mostTypes)
	most(t, "lines of support code", support.lines, mostSupportLines)
	most(t, "lines of tests", tests.lines, mostTestLines)
	bySize := slices.SortedFunc(maps.Keys(packages), func(a, b string) int { return cmp.Compare(packages[b].lines, packages[a].lines) })
	for _, name := range bySize {
		p := packages[name]
		t.Logf("%s: %s", name, &p)
		most(t, "lines of "+name, p.lines, max(10, packageLines()[name])*100)
		for of, methods := range p.methods {
			files := map[string]bool{}
			for _, file := range methods {
				files[file] = true
			}
			limit := largeTypes()[name+"."+of]
			most(t, "methods of "+name+"."+of, len(methods), max(30, limit.methods))
			most(t, "files with methods of "+name+"."+of, len(files), max(4, limit.files))
		}
	}
}

func most(t *testing.T, what string, got, limit int) {
	t.Helper()
	if got > limit {
		t.Errorf("%s: %d, want at most %d", what, got, limit)
	}
}

// A size is how much code there is.
type size struct {
	lines, files, types int
	methods             map[string]map[string]string // by type and name, the file
}

func (s *size) String() string {
	return fmt.Sprintf("%d lines, %d files, %d types", s.lines, s.files, s.types)
}

func (s *size) add(o *size) {
	s.lines, s.files, s.types = s.lines+o.lines, s.files+o.files, s.types+o.types
	if s.methods == nil {
		s.methods = map[string]map[string]string{}
	}
	for of, methods := range o.methods {
		if s.methods[of] == nil {
			s.methods[of] = map[string]string{}
		}
		maps.Copy(s.methods[of], methods)
	}
}

// sizeOf counts one file.
func sizeOf(t *testing.T, f *goFile) size {
	t.Helper()
	s := size{files: 1, methods: map[string]map[string]string{}}
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
				of := receiver(d.Recv.List[0].Type)
				if s.methods[of] == nil {
					s.methods[of] = map[string]string{}
				}
				s.methods[of][d.Name.Name] = f.name
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
