// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"
)

// checkedFolders are the folders whose Go files TestTerms checks, with those below them.
var checkedFolders = []string{
	"bench/", "cmd/", "hack/", "internal/", "pkg/", "test/",
}

// TestTerms checks the names and strings of code and tests, and the names of their files, against the words that vale
// refuses in comments.
func TestTerms(t *testing.T) {
	t.Parallel()
	const list = "tools/vale/NodeCache/Terms.yml"
	var rule struct{ Swap map[string]string }
	if err := yaml.Unmarshal(content(t, list), &rule); err != nil || len(rule.Swap) == 0 {
		t.Fatalf("%s: %d words, %v", list, len(rule.Swap), err)
	}
	words := map[*regexp.Regexp]string{}
	for pattern, instead := range rule.Swap {
		words[regexp.MustCompile(`(?i)\b(?:`+pattern+`)\b`)] = instead
	}
	check := func(where, text string) {
		for word, instead := range words {
			if hit := word.FindString(text); hit != "" {
				t.Errorf("%s: %q: say %s", where, hit, instead)
			}
		}
	}
	for _, f := range goFiles(t) {
		if !slices.ContainsFunc(checkedFolders, func(folder string) bool { return strings.HasPrefix(f.name, folder) }) {
			continue
		}
		check(f.name, apart(path.Base(f.name)))
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.Ident:
				check(fmt.Sprintf("%s: %s", f.name, n.Name), apart(n.Name))
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					check(f.name, text)
				}
			}
			return true
		})
	}
}

// apart separates the words of a name with spaces.
func apart(name string) string {
	var b strings.Builder
	small := false // the last letter
	for _, r := range name {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			r = ' '
		case unicode.IsUpper(r) && small:
			b.WriteByte(' ')
		}
		small = unicode.IsLower(r)
		b.WriteRune(r)
	}
	return b.String()
}
