// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// panelLayout is what a panel has besides its queries.
type panelLayout struct {
	panel
	ID    int    `json:"id"`
	Type  string `json:"type"`
	Place struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Fields struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// TestDashboard checks that each panel has a number and a title, that no two overlap, and that their labels exist.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels []panelLayout `json:"panels"`
	}
	assert.NoError(t, json.Unmarshal([]byte(mustRead(t, filepath.Join(root, "daemonset", "monitoring", "dashboard.json"))), &board))
	known := mustFamilies(t)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d (%s): its number is another's, or it has no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.Place.X; x < p.Place.X+p.Place.W; x++ {
			for y := p.Place.Y; y < p.Place.Y+p.Place.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %s lies over %s, or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Fields.Defaults.Unit == "" {
			t.Errorf("panel %s has no query or no unit", p.Title)
		}
		for _, q := range p.Targets {
			checkLegend(t, p.Title, &q, known)
		}
	}
}

// checkLegend looks for labels in a legend that the query's series do not have.
func checkLegend(t *testing.T, title string, q *target, known map[string]family) {
	t.Helper()
	uses, grouped := parse(plain(q.Expr))
	labels := grouped
	if len(grouped) == 0 {
		labels = targetLabels()
		for _, u := range uses {
			f := known[u.name]
			labels = slices.AppendSeq(labels, maps.Keys(f.labels))
		}
	}
	for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.Legend, -1) {
		if !slices.Contains(labels, m[1]) {
			t.Errorf("panel %s: the legend names %s, which no series of it has: %s", title, m[1], q.Expr)
		}
	}
}
