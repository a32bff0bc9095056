// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// panelLayout is what a panel has besides its queries.
type panelLayout struct {
	panel
	ID     int           `json:"id"`
	Type   string        `json:"type"`
	Folded bool          `json:"collapsed"`
	Panels []panelLayout `json:"panels"` // of a folded row
	Place  struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Fields struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// TestDashboard checks that each panel has a number and a title, that no two overlap, that their labels exist, and that they suit
// many nodes and clusters: rows but the first are folded, a panel has ten series by node at most, and all clusters include series
// without a label for one.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels     []panelLayout `json:"panels"`
		Templating struct {
			List []struct {
				Name    string `json:"name"`
				All     string `json:"allValue"`
				Current struct {
					Value string `json:"value"`
				} `json:"current"`
			} `json:"list"`
		} `json:"templating"`
	}
	assert.NoError(t, json.Unmarshal([]byte(mustRead(t, filepath.Join(root, "daemonset", "monitoring", "dashboard.json"))), &board))
	for _, v := range board.Templating.List {
		if v.Name == "cluster" && (v.All != ".*" || v.Current.Value != "$__all") {
			t.Errorf("the variable cluster starts as %q, which is %q: want one that matches no label", v.Current.Value, v.All)
		}
	}
	checkPanels(t, board.Panels, mustFamilies(t), map[int]bool{})
}

// checkPanels checks the panels of the dashboard, or of a folded row.
func checkPanels(t *testing.T, panels []panelLayout, known map[string]family, ids map[int]bool) {
	t.Helper()
	cells := map[[2]int]string{}
	for _, p := range panels {
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
			if want := p.Title != "Fleet"; p.Folded != want || len(p.Panels) > 0 != want {
				t.Errorf("row %s: folded: %t, with %d panels, want %t", p.Title, p.Folded, len(p.Panels), want)
			}
			checkPanels(t, p.Panels, known, ids)
			continue
		}
		if len(p.Targets) == 0 || p.Fields.Defaults.Unit == "" {
			t.Errorf("panel %s has no query or no unit", p.Title)
		}
		perSecond := func(q target) bool {
			return strings.Contains(q.Expr, "rate(") && !strings.Contains(q.Expr, "histogram_quantile(")
		}
		for _, q := range p.Targets {
			checkLegend(t, p.Title, &q, known)
			if perSecond(q) != perSecond(p.Targets[0]) {
				t.Errorf("panel %s has numbers and numbers per second on one axis", p.Title)
			}
			if byNode := regexp.MustCompile(`\{\{(node|upstream)\}\}`).MatchString(q.Legend); byNode && !regexp.MustCompile(`^(top|bottom)k\(10, `).MatchString(q.Expr) {
				t.Errorf("panel %s has a line for each node: %s", p.Title, q.Expr)
			}
			if strings.Count(q.Expr, "{") != strings.Count(q.Expr, `{cluster=~"$cluster",job=~"$job"`) {
				t.Errorf("panel %s is not of the chosen cluster and job: %s", p.Title, q.Expr)
			}
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
