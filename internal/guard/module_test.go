// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// testOnly lists the direct dependencies that no code outside of tests imports, each with its reason.
func testOnly() map[string]string {
	return map[string]string{
		"github.com/dnstap/golang-dnstap":    "decodes what the agent sends to a collector",
		"github.com/google/go-cmp":           "shows the difference in a failed test",
		"github.com/prometheus/client_model": "holds what a scrape of /metrics says",
		"golang.org/x/tools":                 "reads the txtar files of the scenarios",
		"k8s.io/kubelet":                     "has the messages of that API",
	}
}

func TestDirectDependencies(t *testing.T) {
	t.Parallel()
	code, tests := importedModules(t)
	var unused []string
	for _, module := range directDependencies(t) {
		_, excused := testOnly()[module]
		switch {
		case !code[module] && !tests[module]:
			unused = append(unused, module)
		case !code[module] && !excused:
			t.Errorf("go.mod: only tests import %s: list it in testOnly with its reason", module)
		case code[module] && excused:
			t.Errorf("%s: testOnly lists it, and code imports it", module)
		}
	}
	for module := range testOnly() {
		if !strings.Contains(string(content(t, "go.mod")), module+" v") {
			t.Errorf("%s: testOnly lists it, and go.mod does not", module)
		}
	}
	assert.Same(t, "direct dependencies in go.mod that nothing imports", []string(nil), unused)
}

// importedModules says which direct dependencies the main module's code imports, and which its tests do.
func importedModules(t *testing.T) (code, tests map[string]bool) {
	t.Helper()
	code, tests = map[string]bool{}, map[string]bool{}
	direct, nested := directDependencies(t), nestedModules(t)
	for _, f := range goFiles(t) {
		if within(f.folder(), nested) {
			continue
		}
		users := code
		if f.test || f.folder() == "internal/assert" { // which only tests may import
			users = tests
		}
		for _, imported := range f.imports() {
			for _, module := range direct {
				users[module] = users[module] || within(imported, []string{module})
			}
		}
	}
	return code, tests
}

// directDependencies lists the modules that go.mod requires without an indirect mark.
func directDependencies(t *testing.T) []string {
	t.Helper()
	requirement := regexp.MustCompile(`(?m)^(?:require )?\t?(\S+\.\S+/\S+) v\S+$`)
	seen := map[string]bool{}
	for _, m := range requirement.FindAllStringSubmatch(string(content(t, "go.mod")), -1) {
		seen[m[1]] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// nestedModules lists the folders of the repository's other modules.
func nestedModules(t *testing.T) []string {
	t.Helper()
	folders := filesWith(t, "/go.mod")
	for i, name := range folders {
		folders[i] = strings.TrimSuffix(name, "/go.mod")
	}
	return folders
}
