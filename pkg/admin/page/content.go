// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
)

const (
	mostRows = 10  // rows of a table
	mostOf   = 3   // names of a client in its row, and clients of a name
	mostSlow = 5   // slow replies
	mostText = 300 // bytes shown of a text that is not from this program

	// A fix is shown for a pod with at least fixQueries queries, if at least fixPercent percent of them were for search suffixes.
	fixQueries = 100
	fixPercent = 30
)

// content is what the template renders.
type content struct {
	*status.Status
	admin.View
	Time    time.Time
	Verdict *status.TimelineEntry // the problem that hits clients most now; nil: there is none
	Lasts   string                // for how long, empty: unknown
	Past    []pastProblem
	Plots   []plot
	Took    []took
	Recent  *top.Recent // nil: the client has no token
	Top     []table     // tables of clients and of names
	Slow    []top.SlowReply
	Servers []status.Upstream

	MoreServers, MoreProblems, MorePast int // servers and problems that the page leaves out
}

// A pastProblem is a row of the timeline.
type pastProblem struct {
	status.TimelineEntry
	Lasted string // empty: it lasts
}

// A took has the latency of the replies from one source in the window.
type took struct {
	Source           string
	Replies          uint64
	P50, P99, Slower string // Slower: how many took longer than a second
}

// A table has the clients or names with the most queries.
type table struct {
	Title string
	Rows  []row
}

// A row is one client or name.
type row struct {
	Title string
	Most  []string // of a client the names it asks for most, of a name the clients that ask most
	Fix   string   // what to change; empty: nothing
	top.RecentRow
}

func (p *Page) contentOf(v admin.View, now time.Time) *content {
	s := p.cfg.Status()
	points := p.history.points()
	c := &content{Status: &s, View: v, Time: now, Plots: plots(points, now), Servers: s.Upstreams}
	if s.Cluster != nil && s.Cluster.Central != nil {
		for _, server := range s.Cluster.Central.Endpoints {
			c.Servers = append(c.Servers, status.Upstream{Zone: "cluster.central", Server: server})
		}
	}
	if v.Token == "" {
		s.HideClients()
	}
	c.Verdict = worst(&s)
	if c.Verdict != nil {
		c.Lasts = lasted(c.Verdict.Since, now.Format(time.RFC3339))
	}
	c.Past, c.MorePast = first(past(s.Timeline))
	slices.SortStableFunc(c.Servers, func(a, b status.Upstream) int { return cmp.Compare(healthy(&a), healthy(&b)) })
	c.Servers, c.MoreServers = first(c.Servers)
	s.Problems, c.MoreProblems = first(s.Problems)
	c.Took = tookOf(points)
	if v.Token != "" {
		c.Recent = p.cfg.Recent()
		c.Top = []table{clientTable(c.Recent, p.cfg.SearchPath()), nameTable(c.Recent)}
		c.Slow = c.Recent.Slow[:min(len(c.Recent.Slow), mostSlow)]
	}
	return c
}

// tookOf returns the latency by source. A source without replies is left out.
func tookOf(points []sample) (list []took) {
	const second = 14 // index of the first bucket beyond a second
	for source, name := range resolve.TimedSources() {
		var all durations
		for i := range points {
			all = all.plus(&points[i].took[source])
		}
		if all.total() == 0 {
			continue
		}
		var slow durations
		copy(slow[second:], all[second:])
		list = append(list, took{name, all.total(), duration(all.quantile(0.5)), duration(all.quantile(0.99)), strconv.FormatUint(slow.total(), 10)})
	}
	return list
}

// worst returns the current problem that hits clients most, nil if there is none: the one with the most failed queries, else the
// first.
func worst(s *status.Status) *status.TimelineEntry {
	var found *status.TimelineEntry
	for i := range s.Problems {
		p := &s.Problems[i]
		e := status.TimelineEntry{Reason: p.Reason, Where: p.Where, Subject: p.Subject, What: p.What}
		if at := slices.IndexFunc(s.Timeline, func(e status.TimelineEntry) bool { return e.Until == "" && e.Key() == p.Key() }); at >= 0 {
			e = s.Timeline[at]
		}
		if found == nil || e.Failed > found.Failed {
			found = &e
		}
	}
	return found
}

// past returns the rows of the timeline.
func past(list []status.TimelineEntry) []pastProblem {
	rows := make([]pastProblem, 0, len(list))
	for i := range list {
		row := pastProblem{TimelineEntry: list[i]}
		if row.Until != "" {
			row.Lasted = lasted(row.Since, row.Until)
		}
		rows = append(rows, row)
	}
	return rows
}

// lasted returns the time between two times in RFC 3339, empty if one of them is none.
func lasted(since, until string) string {
	from, err := time.Parse(time.RFC3339, since)
	if err != nil {
		return ""
	}
	to, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return to.Sub(from).String()
}

// healthy returns the sort key of an upstream: 0 if it has a problem, so that it comes first, else 1.
func healthy(u *status.Upstream) int {
	if u.State == upstream.StateGood.String() {
		return 1
	}
	return 0
}

// first returns what a table shows of a list, and how many more there are.
func first[T any](list []T) (shown []T, more int) {
	shown = list[:min(len(list), mostRows)]
	return shown, len(list) - len(shown)
}

// clientTable has the clients with the most queries.
func clientTable(r *top.Recent, searchPath bool) table {
	t := table{Title: "Client"}
	for _, c := range r.Clients[:min(len(r.Clients), mostRows)] {
		t.Rows = append(t.Rows, row{c.Client, most(r.Pairs, func(p *top.RecentRow) (bool, string) { return p.Client == c.Client, p.Name }), fix(&c, searchPath), c})
	}
	return t
}

// nameTable has the names with the most queries.
func nameTable(r *top.Recent) table {
	t := table{Title: "Name"}
	for _, n := range r.Names[:min(len(r.Names), mostRows)] {
		t.Rows = append(t.Rows, row{n.Name, most(r.Pairs, func(p *top.RecentRow) (bool, string) { return p.Name == n.Name, p.Client }), "", n})
	}
	return t
}

// most returns the texts of the first pairs that of selects.
func most(pairs []top.RecentRow, of func(*top.RecentRow) (selected bool, text string)) (list []string) {
	for i := range pairs {
		if selected, text := of(&pairs[i]); selected {
			if list = append(list, text); len(list) == mostOf {
				break
			}
		}
	}
	return list
}

// fix returns what to change for a pod with many search suffixes.
func fix(r *top.RecentRow, searchPath bool) string {
	if r.Queries < fixQueries || 100*uint64(r.Search) < fixPercent*uint64(r.Queries) {
		return ""
	}
	own := "set ndots: 2 in the dnsConfig of " + cmp.Or(r.Workload, "the pod") + ", or end outside names with a dot"
	if searchPath {
		return own
	}
	return "set pods.searchPath: on in the configuration, or " + own
}

func functions() template.FuncMap {
	return template.FuncMap{
		"short":   func(s string) string { return short(s, mostText) },
		"brief":   func(s string) string { return short(s, mostText/3) },
		"clock":   clock,
		"ratio":   func(v *float64) string { return optional(v, percent) },
		"seconds": func(v *float64) string { return optional(v, duration) },
		"uptime":  func(v float64) string { return time.Duration(v * float64(time.Second)).String() },
		"share":   func(n, of uint32) string { return percent(float64(n) / float64(max(of, 1))) },
		"took": func(seconds float64) string {
			if seconds == 0 {
				return "–"
			}
			return duration(seconds)
		},
		"rcodes":  resolve.Rcodes,
		"sources": resolve.Sources,
		"size":    func(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB" },
		"sum": func(counts map[string]uint64) (n uint64) {
			for _, count := range counts {
				n += count
			}
			return n
		},
	}
}

// clock returns the time of day of a time in RFC 3339.
func clock(at string) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return "–"
	}
	return t.Format("15:04:05")
}

// short returns the beginning of a text from outside.
func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// optional formats a value that may be unknown.
func optional(v *float64, text func(float64) string) string {
	if v == nil {
		return "–"
	}
	return text(*v)
}

func percent(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(100*v, 'f', 1, 64), ".0") + " %"
}

// number formats v with three significant digits, or without decimals from 100 on.
func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// duration formats seconds with two significant digits.
func duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	unit := time.Duration(1)
	for d/unit >= 100 {
		unit *= 10
	}
	return d.Round(unit).String()
}
