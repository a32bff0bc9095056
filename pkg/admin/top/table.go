// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/plain"
)

// unknownName is the name of the clients without a pod: of the host network, and those that start or end.
const unknownName = "(no pod)"

// Groups returns the kinds of things that a table can have a line for.
func Groups() []string { return []string{"pod", "workload", "namespace", "name"} }

// Columns returns the table's columns. Any one of them can be the sort key.
func Columns() []string {
	return []string{"queries", "upstream", "nxdomain", "search", "failed", "shed", "latency", "bytes"}
}

// A Line is what one group asks.
type Line struct {
	Name  string             `json:"name"`
	Rates map[string]float64 `json:"perSecond"` // by Columns; in place of latency, waitedSeconds: the time that queries waited
}

// waited is the key of Rates in place of latency.
const waited = "waitedSeconds"

// value returns the value of a column, by which lines are sorted. Latency is the average of the queries, in seconds.
func (l *Line) value(column string) float64 {
	if column != "latency" {
		return l.Rates[column]
	}
	return l.Rates[waited] / cmp.Or(l.Rates["queries"], math.Inf(1))
}

// A Table sums the queries of one node or more.
type Table struct {
	By    string // one of Groups
	Stale bool   // a node's pods were not confirmed recently
	lines map[string]*Line
}

// Add adds what the pods of a node asked between two pages. If the agent counts a pod anew, the pod counts from zero. A pod
// that after does not have is left out.
func (t *Table) Add(before, after *Page, seconds float64) {
	t.Stale = t.Stale || after.Stale
	if t.By == "name" {
		t.addNames(before, after, seconds)
		return
	}
	known := map[[2]string]*Counts{}
	for i := range before.Pods {
		r := &before.Pods[i]
		known[[2]string{r.Namespace, r.Pod}] = &r.Counts
	}
	for i := range after.Pods {
		r := &after.Pods[i]
		t.add(t.groupOf(r), known[[2]string{r.Namespace, r.Pod}], &r.Counts, seconds)
	}
	t.add(unknownName, &before.Unknown, &after.Unknown, seconds)
}

func (t *Table) addNames(before, after *Page, seconds float64) {
	known := map[string]*Counts{}
	for i := range before.Names {
		known[before.Names[i].Name] = &before.Names[i].Counts
	}
	for i := range after.Names {
		n := &after.Names[i]
		t.add(n.Name, known[n.Name], &n.Counts, seconds)
	}
}

// add adds what was counted since before, which may be nil.
func (t *Table) add(name string, before, after *Counts, seconds float64) {
	if before == nil || after.Queries < before.Queries {
		before = &Counts{}
	}
	line := t.lines[name]
	if line == nil {
		line = &Line{Name: name, Rates: map[string]float64{}}
		if t.lines == nil {
			t.lines = map[string]*Line{}
		}
		t.lines[name] = line
	}
	was, is := before.list(), after.list()
	for i, column := range Columns() {
		if column == "latency" {
			column = waited
		}
		line.Rates[column] += max(0, is[i]-was[i]) / seconds
	}
}

// list returns the counts by Columns.
func (c *Counts) list() []float64 {
	return []float64{
		float64(c.Queries), float64(c.Upstream), float64(c.NXDomain), float64(c.Search), float64(c.Failed), float64(c.Shed), c.Waited, float64(c.Bytes),
	}
}

// groupOf returns the name of a pod's line.
func (t *Table) groupOf(r *Row) string {
	switch {
	case t.By == "namespace":
		return r.Namespace
	case t.By == "workload" && r.Workload != "":
		return r.Namespace + "/" + r.Workload
	default:
		return r.Namespace + "/" + r.Pod
	}
}

// Lines returns the lines with the largest values in a column, at most number of them.
func (t *Table) Lines(column string, number int) []*Line {
	list := make([]*Line, 0, len(t.lines))
	for _, line := range t.lines {
		list = append(list, line)
	}
	slices.SortFunc(list, func(a, b *Line) int {
		return cmp.Or(cmp.Compare(b.value(column), a.value(column)), cmp.Compare(b.Rates["queries"], a.Rates["queries"]), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(number, len(list))]
}

// Text formats the lines that Lines returns as a table.
func (t *Table) Text(column string, number int) string {
	var b strings.Builder
	if t.Stale {
		b.WriteString("The API server has not confirmed the pods recently.\n")
	}
	b.WriteString("QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  " + strings.ToUpper(t.By) + "\n")
	for _, line := range t.Lines(column, number) {
		queries := line.Rates["queries"]
		_, _ = fmt.Fprintf(&b, "%9.1f", queries)
		for i, width := range []int{6, 6, 4, 4, 3} {
			share := 0.0
			if queries > 0 {
				share = 100 * line.Rates[Columns()[i+1]] / queries
			}
			_, _ = fmt.Fprintf(&b, "  %*.0f %%", width, share)
		}
		_, _ = fmt.Fprintf(&b, "  %5.1f ms  %8.0f  %s\n", 1000*line.value("latency"), line.Rates["bytes"], plain.Line(line.Name))
	}
	return b.String()
}
