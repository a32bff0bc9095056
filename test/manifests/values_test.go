// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// tableBegin is where the chart's README has the table of values, up to its end.
const tableBegin = "<!-- made from values.yaml: go test ./test/manifests -run TestValuesTable -update -->\n"

// TestValuesTable makes the table of values in the chart's README of the comments in values.yaml.
func TestValuesTable(t *testing.T) {
	t.Parallel()
	values, err := os.ReadFile(filepath.Join(folder, "chart/values.yaml"))
	must(t, err)
	var document yaml.Node
	must(t, yaml.Unmarshal(values, &document))
	table := "| value | default | meaning |\n|---|---|---|\n" + rows(t, "", document.Content[0])
	path := filepath.Join(folder, "chart/README.md")
	text, err := os.ReadFile(path)
	must(t, err)
	head, got, has := strings.Cut(string(text), tableBegin)
	if !has {
		t.Fatalf("%s has no line %q", path, tableBegin)
	}
	if *update {
		if err := os.WriteFile(path, []byte(head+tableBegin+"\n"+table), 0o644); err != nil { //nolint:gosec // it is source
			t.Fatal(err)
		}
		return
	}
	same(t, path+" is not up to date", "\n"+table, got)
}

// rows are the lines of the table: those of a mapping, and of the mappings in it that are no values as a whole.
func rows(t *testing.T, prefix string, node *yaml.Node) string {
	t.Helper()
	var out strings.Builder
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := prefix + key.Value
		whole := value.Kind != yaml.MappingNode || len(value.Content) == 0 || strings.HasSuffix(path, "odeSelector") ||
			path == "config.agent" || path == "config.resolver"
		meaning := strings.Join(strings.Fields(strings.ReplaceAll("\n"+key.HeadComment, "\n# ", " ")), " ")
		if whole && meaning == "" {
			t.Errorf("values.yaml does not say what %s means", path)
		}
		if whole || meaning != "" {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", path, displayValue(value, whole), strings.ReplaceAll(meaning, "|", `\|`))
		}
		if !whole {
			out.WriteString(rows(t, path+".", value))
		}
	}
	return out.String()
}

// displayValue is a default value as a command line would have it.
func displayValue(value *yaml.Node, whole bool) string {
	var v any
	if err := value.Decode(&v); err != nil || !whole {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	if len(text) > 100 {
		return "see values.yaml"
	}
	return "`" + string(text) + "`"
}
