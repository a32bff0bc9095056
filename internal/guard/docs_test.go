// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestMarkdownLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, name := range filesWith(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(prose(string(content(t, name))), -1) {
			if problem := checkLink(t, name, m[1]); problem != "" {
				t.Errorf("%s: link %q: %s", name, m[1], problem)
			}
		}
	}
}

// checkLink says what is wrong with a link inside the repository. Links to other hosts are left alone: a test
// that needs the network fails for reasons of its own.
func checkLink(t *testing.T, from, target string) string {
	t.Helper()
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
	}
	info, err := os.Stat(filepath.Join(root, filepath.FromSlash(to)))
	switch {
	case strings.HasPrefix(to, "../"):
		return "leads out of the repository"
	case err != nil:
		return "no such file"
	case anchor == "" || info.IsDir() || !strings.HasSuffix(to, ".md"):
		return ""
	case !anchors(string(content(t, to)))[anchor]:
		return "no such heading"
	}
	return ""
}

// anchors lists the fragments that lead to the headings of a Markdown text, spelled as GitHub does.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for line := range strings.Lines(prose(text)) {
		heading := strings.TrimLeft(line, "#")
		if len(heading) == len(line) {
			continue
		}
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading))] = true
	}
	return found
}

// prose is a Markdown text without its fenced code blocks.
func prose(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if !code {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestChangelog(t *testing.T) {
	t.Parallel()
	dated := regexp.MustCompile(`^v\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d$`)
	for i, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(content(t, "CHANGELOG.md")), -1) {
		if (i == 0) != (m[1] == "Unreleased") || i > 0 && !dated.MatchString(m[1]) {
			t.Errorf("CHANGELOG.md: section %q, want Unreleased and then vX.Y.Z - YYYY-MM-DD of each release", m[1])
		}
	}
}

// TestNamedTestsExist holds the names of tests in pages and scripts against the tests. A name may be a prefix, as of -run.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var tests []string
	for _, name := range filesWith(t, "_test.go") {
		for _, m := range declared.FindAllStringSubmatch(string(content(t, name)), -1) {
			tests = append(tests, m[1])
		}
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for _, name := range append(filesWith(t, ".md"), filesWith(t, ".sh")...) {
		for _, test := range named.FindAllString(string(content(t, name)), -1) {
			if !slices.ContainsFunc(tests, func(have string) bool { return strings.HasPrefix(have, test) }) {
				t.Errorf("%s names %s, and there is no such test", name, test)
			}
		}
	}
}

// TestSuitesNamePackages holds the packages that hack/test.sh names against those of pkg.
func TestSuitesNamePackages(t *testing.T) {
	t.Parallel()
	lists := regexp.MustCompile(`(?m)^(?:concurrent|rules)='([^']*)'`).FindAllStringSubmatch(string(content(t, "hack/test.sh")), -1)
	if len(lists) != 2 {
		t.Fatalf("%d lists of packages in hack/test.sh, want 2", len(lists))
	}
	for _, list := range lists {
		for name := range strings.SplitSeq(list[1], "|") {
			if _, err := os.Stat(filepath.Join(root, "pkg", name)); err != nil {
				t.Errorf("hack/test.sh names pkg/%s: %v", name, err)
			}
		}
	}
}
