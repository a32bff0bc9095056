// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"math/bits"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// backArrows bounds the arrows that run back inside a package. An arrow A → B says that file A uses a function, a method,
// a type, a variable or a constant of file B. The files are in the order in which the fewest run back. The bounds
// are below a tenth of the package's arrows.
func backArrows() map[string]int {
	return map[string]int{"pkg/agent": 1, "pkg/config": 0, "pkg/resolve": 4, "pkg/source": 0, "pkg/upstream": 7}
}

// TestArrows prints with -v the order of the files, the lowest first, and each arrow that runs back.
func TestArrows(t *testing.T) {
	t.Parallel()
	for folder, bound := range backArrows() {
		g := arrowsOf(t, folder)
		order, back := g.order()
		total := 0
		for _, to := range g.uses {
			total += bits.OnesCount(uint(to))
		}
		t.Logf("%s: %d of %d arrows run back", folder, len(back), total)
		for _, i := range order {
			t.Logf("  order: %s", g.names[i])
		}
		for _, a := range back {
			t.Logf("  %s uses %v of %s", g.names[a.from], slices.Sorted(maps.Keys(g.why[a])), g.names[a.to])
		}
		most(t, "arrows that run back in "+folder, len(back), bound)
	}
}

type arrow struct{ from, to int }

// An arrowGraph has the files of a package.
type arrowGraph struct {
	names []string
	uses  []int                     // by file, the set of the files it uses
	why   map[arrow]map[string]bool // the names used
}

func arrowsOf(t *testing.T, folder string) arrowGraph {
	t.Helper()
	fset := token.NewFileSet()
	g := arrowGraph{why: map[arrow]map[string]bool{}}
	var parsed []*ast.File
	for _, name := range filesWith(t, ".go") {
		if path.Dir(name) != folder || strings.HasSuffix(name, "_test.go") {
			continue
		}
		syntax, err := parser.ParseFile(fset, name, content(t, name), parser.SkipObjectResolution)
		assert.NoError(t, err)
		parsed = append(parsed, syntax)
		g.names = append(g.names, name)
	}
	fileOf := func(pos token.Pos) int { return slices.Index(g.names, fset.Position(pos).Filename) }
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	// Other packages are not read: what they define belongs to no file here, and what is of unknown type is left out.
	check := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := check.Check(folder, fset, parsed, &info)
	g.uses = make([]int, len(g.names))
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !ofPackage(object) {
			continue
		}
		from, to := fileOf(ident.Pos()), fileOf(object.Pos())
		if from < 0 || to < 0 || from == to {
			continue
		}
		g.uses[from] |= 1 << to
		a := arrow{from, to}
		if g.why[a] == nil {
			g.why[a] = map[string]bool{}
		}
		g.why[a][object.Name()] = true
	}
	return g
}

// ofPackage reports whether an object is one of the package's block, or a method.
func ofPackage(object types.Object) bool {
	if f, ok := object.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return object.Parent() == object.Pkg().Scope()
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not read") }

// order finds the order of the files in which the fewest arrows run back, and those. The lowest file is first. It tries
// every set of lowest files, smaller ones first: at most 2^20 with 20 files.
func (g *arrowGraph) order() (order []int, back []arrow) {
	n := len(g.uses)
	fewest := make([]int, 1<<n)
	last := make([]int, 1<<n)
	for set := 1; set < 1<<n; set++ {
		fewest[set] = 1 << 30
		for i := range n {
			if set>>i&1 == 0 {
				continue
			}
			below := set &^ (1 << i)
			if cost := fewest[below] + bits.OnesCount(uint(g.uses[i]&^set)); cost < fewest[set] {
				fewest[set], last[set] = cost, i
			}
		}
	}
	for set := 1<<n - 1; set != 0; set &^= 1 << last[set] {
		i := last[set]
		order = append(order, i)
		for to := range n {
			if g.uses[i]>>to&1 == 1 && set>>to&1 == 0 {
				back = append(back, arrow{i, to})
			}
		}
	}
	slices.Reverse(order)
	return order, back
}
