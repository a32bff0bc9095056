// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCommands holds the commands of pages against the repository: a page gives a command for each figure.
func TestCommands(t *testing.T) {
	t.Parallel()
	inText := regexp.MustCompile("go test\\s[^`]*") // it may be wrapped
	inBlock := regexp.MustCompile("(?m)^[^|`]*\\bgo test .*$")
	makes := regexp.MustCompile("`make ([a-z0-9_-]+)")
	targets := string(content(t, "Makefile"))
	for _, page := range filesWith(t, ".md") {
		text := string(content(t, page))
		for _, command := range append(inText.FindAllString(prose(text), -1), inBlock.FindAllString(text, -1)...) {
			checkGoTest(t, page, command)
		}
		for _, m := range makes.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(targets, "\n"+m[1]+":") {
				t.Errorf("%s: make %s: no such target", page, m[1])
			}
		}
	}
}

// checkGoTest wants the folders of a command to exist, and one of them to declare what it runs and the flags behind -args.
func checkGoTest(t *testing.T, page, command string) {
	t.Helper()
	words := strings.Fields(strings.NewReplacer("'", "", `"`, "").Replace(command))
	var source strings.Builder // of the tests
	for _, word := range words {
		folder, found := strings.CutPrefix(word, "./")
		if !found || strings.HasSuffix(folder, "...") {
			continue
		}
		files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		if len(files) == 0 {
			t.Errorf("%s: %s: no tests in %s", page, command, folder)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(data)
		}
	}
	declares := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(source.String()) }
	args := max(0, slices.Index(words, "-args"))
	for i, word := range words[:len(words)-1] {
		name, _, _ := strings.Cut(words[i+1], "/")
		name = strings.ReplaceAll(strings.TrimPrefix(name, "^"), "$", `\(`)
		switch {
		case word == "-run" && name != "-" && name != `\(` && !declares(`func (?:Test|Fuzz)?\w*(?:`+name+`)`), // ^$ and -: none
			word == "-bench" && !declares(`func Benchmark\w*(?:`+strings.TrimPrefix(name, "Benchmark")+`)`):
			t.Errorf("%s: %s: nothing to run", page, command)
		case args > 0 && i >= args && strings.HasPrefix(words[i+1], "-") && !declares(`flag\.\w+\("`+words[i+1][1:]+`"`):
			t.Errorf("%s: %s: no flag %s", page, command, words[i+1])
		}
	}
}
