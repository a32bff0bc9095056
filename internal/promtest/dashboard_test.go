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
// many nodes and clusters: rows but the first are folded, every query selects and groups by cluster and has a bound for its series, and
// all clusters include series without a label for one.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels     []panelLayout `json:"panels"`
		Templating struct {
			List []struct {
				Name    string `json:"name"`
				Query   string `json:"query"`
				All     string `json:"allValue"`
				Current struct {
					Value string `json:"value"`
				} `json:"current"`
			} `json:"list"`
		} `json:"templating"`
	}
	assert.NoError(t, json.Unmarshal([]byte(mustRead(t, filepath.Join(root, "daemonset", "monitoring", "dashboard.json"))), &board))
	clusters := 0
	for _, v := range board.Templating.List {
		switch {
		case v.Name == "cluster":
			clusters++
			if v.All != ".*" || v.Current.Value != "$__all" {
				t.Errorf("the variable cluster starts as %q, which is %q: want one that matches no label", v.Current.Value, v.All)
			}
		case v.Name != "datasource" && !strings.Contains(v.Query, `{cluster=~"$cluster"`):
			t.Errorf("the variable %s is not of the chosen cluster: %s", v.Name, v.Query)
		}
	}
	assert.Equal(t, "variables for the cluster", 1, clusters)
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
			checkCluster(t, &p, &q)
			if strings.Count(q.Expr, "{") != strings.Count(q.Expr, `{cluster=~"$cluster",job=~"$job"`) {
				t.Errorf("panel %s is not of the chosen cluster and job: %s", p.Title, q.Expr)
			}
		}
	}
}

// checkCluster asks a query to keep clusters apart. A heatmap has one set of buckets, and a table a column for each label.
func checkCluster(t *testing.T, p *panelLayout, q *target) {
	t.Helper()
	if p.Type == "heatmap" {
		return
	}
	for _, m := range mixed(q.Expr) {
		t.Errorf("panel %s: %s", p.Title, m)
	}
	if p.Type == "table" {
		return
	}
	if !strings.HasPrefix(q.Legend, "{{cluster}}") {
		t.Errorf("panel %s: the legend %q does not begin with the cluster", p.Title, q.Legend)
	}
	// One cluster has at most 20 series by labels of closed sets.
	bound := regexp.MustCompile(`^(top|bottom)k\((\d+), `).FindStringSubmatch(q.Expr)
	byNode := regexp.MustCompile(`\{\{(node|upstream)\}\}`).MatchString(q.Legend)
	if bound == nil || !slices.Contains([]string{"3", "10", "20"}, bound[2]) || byNode && bound[2] != "10" {
		t.Errorf("panel %s has a line for each node or cluster: %s", p.Title, q.Expr)
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
