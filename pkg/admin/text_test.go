// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// TestText renders each testdata/*.json to the *.txt beside it.
func TestText(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata/*.json: %v", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(name)
			assert.NoError(t, err)
			got, err := admin.RenderText(data)
			assert.NoError(t, err)
			assert.Golden(t, strings.TrimSuffix(name, ".json")+".txt", string(got))
		})
	}
}

func TestTextOfNonObjects(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 24) + "."
	for _, tc := range []struct {
		name, json, want string
	}{
		{"null", `null`, "-\n"},
		{"a number", `12345678901234567890`, "12345678901234567890\n"},
		{"a list", `["a", true, null]`, "a, true, -\n"},
		{"an empty object", `{}`, ""},
		{"objects", `[{"a": 1}, {"b": 2}]`, "a  b\n1  -\n-  2\n"},
		{"objects without members", `[{}, {}]`, "\n\n\n"},
		{
			"objects whose last members are long", `[{"a": 1, "b": "` + long + `"}, {"a": 2}]`,
			"a  b\n1  " + long + "\n2  -\n",
		},
		{
			"objects whose first members are too long", `[{"a": "` + long + `", "bc": 1}, {"bc": 2}]`,
			"a   " + long + "\nbc  1\n\nbc  2\n",
		},
	} {
		got, err := admin.RenderText([]byte(tc.json))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: got %q, %v, want %q", tc.name, got, err, tc.want)
		}
	}
}

func TestTextOfBrokenJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", `{"a"`, `{"a": [1`, `{"a": tru}`, `[1,`} {
		if got, err := admin.RenderText([]byte(text)); err == nil {
			t.Errorf("%q became %q, want an error", text, got)
		}
	}
}

// TestDocumentation holds the example of docs/status.md to the beginning of what is rendered here.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/status.md")
	assert.NoError(t, err)
	whole, err := os.ReadFile("testdata/status.txt")
	assert.NoError(t, err)
	_, example, _ := strings.Cut(string(doc), "```text\n$ node-cache status\n")
	example, _, _ = strings.Cut(example, "```")
	if !strings.Contains(example, "problems\n") || !strings.HasPrefix(string(whole), example) {
		t.Errorf("docs/status.md does not show the beginning of testdata/status.txt with its problems:\n%s", example)
	}
}
