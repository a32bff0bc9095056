// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
)

// TestDocumentation makes docs/metrics.md from the table and compares.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	const name = "../../../docs/metrics.md"
	page, err := template.New("metrics.md.tmpl").Funcs(template.FuncMap{"item": item}).ParseFiles("testdata/metrics.md.tmpl")
	assert.NoError(t, err)
	chapters := metrics.Chapters()
	for _, c := range chapters { // the values of a label stand at its first use in a chapter
		said := map[string]string{}
		for _, r := range c.Rows {
			for i, l := range r.Labels {
				values := strings.Join(l.Values, ", ")
				if values != "" && said[l.Name] == values {
					r.Labels[i].Values = nil
				}
				said[l.Name] = values
			}
		}
	}
	var b strings.Builder
	assert.NoError(t, page.Execute(&b, chapters))
	assert.Golden(t, name, b.String())
}

// item is a row as the item of a list, in lines of 140 characters.
func item(row metrics.Row) string {
	parts := make([]string, len(row.Labels))
	for i, l := range row.Labels {
		parts[i] = "`" + l.Name + "`"
		if l.Values != nil {
			parts[i] += ": " + strings.Join(l.Values, ", ")
		}
	}
	if row.Kind == "histogram" {
		parts = append(parts, "histogram")
	}
	text := strings.ReplaceAll("`"+row.Name+"` ("+strings.Join(parts, "; ")+"): "+row.Help, " ():", ":")
	return "- " + regexp.MustCompile(`(.{1,138})(?: |$)`).ReplaceAllString(text, "  $1\n")[2:]
}

// TestDocumentedNames looks for names that are used in the documents and do not exist.
func TestDocumentedNames(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, c := range metrics.Chapters() {
		for _, r := range c.Rows {
			known[r.Name] = true
		}
	}
	for _, name := range []string{"metrics.md", "status.md"} {
		text, err := os.ReadFile("../../../docs/" + name)
		assert.NoError(t, err)
		found := regexp.MustCompile(`nodecache_[a-z0-9_]*[a-z0-9]`).FindAllString(string(text), -1)
		if len(found) == 0 {
			t.Errorf("docs/%s names no family", name)
		}
		for _, f := range found {
			if !known[f] && !known[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(f, "")] {
				t.Errorf("docs/%s names %s, which is no family", name, f)
			}
		}
	}
}
