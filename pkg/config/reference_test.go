// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

func TestReferenceIsDefault(t *testing.T) {
	t.Parallel()
	got, err := config.Parse(reference(t), config.Agent)
	assert.NoError(t, err)
	if diff := cmp.Diff(config.Default(config.Agent), got, plain()); diff != "" {
		t.Errorf("the reference (-Default +got):\n%s", diff)
	}
}

// reference is a configuration with every key, which TestReference makes.
func reference(tb testing.TB) []byte {
	tb.Helper()
	text, err := os.ReadFile("reference.yaml")
	assert.NoError(tb, err)
	return text
}

// TestReferenceHasEveryKey compares with Marshal, which writes every key: what it left out would not survive it.
func TestReferenceHasEveryKey(t *testing.T) {
	t.Parallel()
	all, err := config.Marshal(config.Default(config.Agent))
	assert.NoError(t, err)
	want, got := keyPaths(string(all)), keyPaths(string(reference(t)))
	got = slices.DeleteFunc(got, func(path string) bool { return strings.Contains(path, "[].") && !strings.HasPrefix(path, "forward[].") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys of the reference (-Marshal +reference):\n%s", diff)
	}
}

// TestReferenceOfItems puts the items that stand there as comments into the lists, which are empty by default.
func TestReferenceOfItems(t *testing.T) {
	t.Parallel()
	text := uncomment(string(reference(t)))
	c, err := config.Parse([]byte(text), config.Agent)
	assert.NoError(t, err)
	if len(c.Rewrite) != 3 || len(c.Templates) != 1 || len(c.Probes) != 1 {
		t.Errorf("%d rules, %d templates and %d probes, want 3, 1 and 1", len(c.Rewrite), len(c.Templates), len(c.Probes))
	}
	all, err := config.Marshal(c)
	assert.NoError(t, err)
	if diff := cmp.Diff(keyPaths(string(all)), keyPaths(text)); diff != "" {
		t.Errorf("keys of the reference with all items (-Marshal +reference):\n%s", diff)
	}
}

// uncomment makes keys of the lines that begin with a # and no single space: the items of lists that are empty.
func uncomment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, "#"); found && !isComment(line) {
			line = rest
		}
		b.WriteString(line)
	}
	return regexp.MustCompile(`(?m)^(\w+): \[\]\n  #`).ReplaceAllString(b.String(), "$1:\n  #")
}

// isComment reports whether a line begins with a comment, rather than with a key that is commented out.
func isComment(line string) bool {
	return strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "#  ")
}

func keyPaths(text string) []string {
	var paths []string
	for _, k := range referenceKeys(text) {
		paths = append(paths, k.Path)
	}
	return paths
}

// key is one key of the reference.
type key struct {
	Path, Default, Meaning string
	depth                  int
}

// referenceKeys reads the keys of block-style YAML with two spaces a level, each with the comment above it.
// A key of the items of a list is taken once.
func referenceKeys(text string) []key {
	var keys []key
	var parents, comment []string
	items, seen := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		body := strings.TrimLeft(line, " ")
		switch {
		case body == "":
			comment = comment[:0]
			continue
		case body[0] == '#':
			comment = append(comment, strings.TrimPrefix(body, "# "))
			continue
		}
		depth := (len(line) - len(body)) / 2
		if item, found := strings.CutPrefix(body, "- "); found {
			body = item
			depth++
			items[parents[0]] = true
		}
		name, value, _ := strings.Cut(body, ":")
		parents = append(parents[:depth], name)
		path := strings.Join(parents, ".")
		if items[parents[0]] {
			path = strings.Replace(path, ".", "[].", 1)
		}
		if seen[path] {
			continue
		}
		seen[path] = true
		keys = append(keys, key{
			Path: path, Default: strings.TrimSpace(value), Meaning: strings.Join(comment, " "), depth: depth,
		})
		comment = comment[:0]
	}
	return keys
}

// section is a key of the top level with all keys below it.
type section struct {
	Name, Meaning, Items, Entry string
	Keys                        []key
}

// entry is a key with its default and its meaning.
func entry(k *key) string {
	return strings.ReplaceAll("`"+k.Path+"` (`"+k.Default+"`): "+k.Meaning, " (``)", "")
}

// items cuts the examples of a list's items out of the reference, without the comments.
func items(text, list string) string {
	m := regexp.MustCompile(`(?m)^` + list + `: \[\]\n((?:#.*\n)+)`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	body := regexp.MustCompile(`(?m)^#  (?:#.*|.*: (?:\[\]|""))\n`).ReplaceAllString(m[1], "")
	return list + ":\n" + strings.ReplaceAll(body[1:], "\n#", "\n")
}

// wrap breaks a text into lines of 140 characters, those after the first below the text of the first.
func wrap(lead, text string) string {
	lines := regexp.MustCompile(`(.{1,138})(?: |$)`).ReplaceAllString(text, strings.Repeat(" ", len(lead))+"$1\n")
	return lead + lines[len(lead):]
}

// difference is a key with a default for each role.
type difference struct{ Path, Agent, Resolver string }

// differences lists the keys whose defaults depend on the role.
func differences(t *testing.T) []difference {
	t.Helper()
	var list []difference
	agent, resolver := defaultKeys(t, config.Agent), defaultKeys(t, config.Resolver)
	for i, k := range agent {
		if other := resolver[i]; other != k {
			list = append(list, difference{Path: k.Path, Agent: k.Default, Resolver: other.Default})
		}
	}
	return list
}

func defaultKeys(t *testing.T, role config.Role) []key {
	t.Helper()
	text, err := config.Marshal(config.Default(role))
	assert.NoError(t, err)
	return referenceKeys(string(text))
}

// itemDefaults are the values of the keys of items that may be left out. In the reference stand examples.
func itemDefaults(t *testing.T) map[string]string {
	t.Helper()
	c, err := config.Parse([]byte("templates: [{zone: a}]\nprobes: [{label: a, name: a}]"), config.Agent)
	assert.NoError(t, err)
	text, err := config.Marshal(c)
	assert.NoError(t, err)
	defaults := map[string]string{}
	for _, k := range referenceKeys(string(text)) {
		defaults[k.Path] = k.Default
	}
	for _, required := range []string{"templates[].zone", "probes[].label", "probes[].name"} {
		delete(defaults, required)
	}
	return defaults
}

func TestDocumentation(t *testing.T) {
	t.Parallel()
	text := string(reference(t))
	defaults := itemDefaults(t)
	var sections []section
	for _, k := range referenceKeys(uncomment(text)) {
		if k.Meaning == "" {
			t.Errorf("%s has no comment in the reference", k.Path)
		}
		if strings.Contains(k.Path, "[].") && !strings.HasPrefix(k.Path, "forward[].") {
			k.Default = defaults[k.Path]
		}
		if k.depth == 0 {
			sections = append(sections, section{Name: k.Path, Meaning: k.Meaning, Items: items(text, k.Path), Entry: entry(&k)})
			continue
		}
		last := &sections[len(sections)-1]
		k.Meaning = entry(&k)
		last.Keys = append(last.Keys, k)
	}
	const example = "listen: {port: 70000}\nforward:\n- {zone: \".\", to: [\"10.0.0\"]}\ncache: {sise: 64Mi, minTTL: 5}\n"
	_, err := config.Parse([]byte(example), config.Agent)
	if err == nil {
		t.Fatal("the example of a bad file is good")
	}
	page, terr := template.New("configuration.md.tmpl").Funcs(template.FuncMap{"wrap": wrap}).
		ParseFiles("testdata/configuration.md.tmpl")
	if terr != nil {
		t.Fatal(terr)
	}
	var b strings.Builder
	assert.NoError(t, page.Execute(&b, map[string]any{
		"Sections": sections, "Differences": differences(t), "Example": example, "Answer": err.Error(),
	}))
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(b.String(), -1) {
		if _, err := config.Parse([]byte(m[1]), config.Agent); (err != nil) != (m[1] == example) {
			t.Errorf("%v:\n%s", err, m[1])
		}
	}
	assert.Golden(t, "../../docs/configuration.md", b.String())
}
