// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
)

//go:embed cluster.md.tmpl
var clusterFrame string

// A clusterReport is what one run of the section cluster found.
type clusterReport struct {
	results // the floor's too

	opts    options
	rows    []*clusterResult // servers of the zone
	costs   []*clientCost
	changes int           // made to objects
	churned time.Duration // how long that took
}

// A clusterResult is what one server of the zone did.
type clusterResult struct {
	*result

	ours   bool
	starts []startResult
	events *events // nil: not measured
}

func newClusterReport(opts options) *clusterReport {
	rep := &clusterReport{opts: opts, results: results{Machine: describeMachine(), Seconds: opts.seconds, Rounds: opts.rounds}}
	rep.addRow(floorName, false)
	for _, c := range contenders() {
		if c.apart != costOnly && (len(opts.only) == 0 || slices.Contains(opts.only, c.name)) {
			rep.addRow(c.name, c.ours)
		}
	}
	return rep
}

func (rep *clusterReport) addRow(name string, ours bool) {
	row := &result{Name: name, Samples: make(map[string][]sample)}
	rep.Results = append(rep.Results, row)
	if name != floorName {
		rep.rows = append(rep.rows, &clusterResult{result: row, ours: ours})
	}
}

// row finds a contender's row.
func (rep *clusterReport) row(c contender) *clusterResult {
	return rep.rows[slices.IndexFunc(rep.rows, func(r *clusterResult) bool { return r.Name == c.name })]
}

// medianStart is the medians of the starts, and false where there were none; the peak is the highest.
func (r *clusterResult) medianStart() (startResult, bool) {
	if len(r.starts) == 0 {
		return startResult{}, false
	}
	span := func(of func(startResult) time.Duration) time.Duration {
		return time.Duration(medianOf(r.starts, func(l startResult) float64 { return float64(of(l)) }))
	}
	l := startResult{
		first:  span(func(l startResult) time.Duration { return l.first }),
		last:   span(func(l startResult) time.Duration { return l.last }),
		ready:  span(func(l startResult) time.Duration { return l.ready }),
		rest:   medianOf(r.starts, func(l startResult) float64 { return l.rest }),
		loaded: medianOf(r.starts, func(l startResult) float64 { return l.loaded }),
	}
	for _, one := range r.starts {
		l.peak = max(l.peak, one.peak)
	}
	return l, true
}

// answered is how long after the first byte of the objects the slowest start was ready.
func (r *clusterResult) answered() time.Duration {
	var worst time.Duration
	for _, l := range r.starts {
		worst = max(worst, l.ready-l.first)
	}
	return worst
}

// render is the section's text with its markers.
func (rep *clusterReport) render() (string, error) {
	frame, err := template.New("cluster.md").Parse(clusterFrame)
	if err != nil {
		return "", fmt.Errorf("reading the frame: %w", err)
	}
	headless := rep.opts.services / headlessShare
	others, worst := rep.others()
	m := rep.Machine
	fields := map[string]any{
		"Services": thousands(rep.opts.services), "Headless": thousands(headless), "Endpoints": thousands(headless * endpointsPer),
		"Machine": fmt.Sprintf("%s, %d CPUs, kernel %s, load average at the start %s, %s", m.CPU, m.Cores, m.Kernel, m.LoadStart, m.Go), "Generator": m.Generator,
		"Others": fmt.Sprintf("%.0f", 100*others), "Worst": fmt.Sprintf("%.0f", 100*worst), "Noisy": others > mostNoise,
		"Budgets": budgetTable(rep.judge()), "Rounds": rep.Rounds, "Starts": rep.startTable(), "Seconds": rep.Seconds, "Loads": rep.loadTable(),
		"Notes": rep.notes(),
	}
	if rep.opts.events > 0 {
		fields["Events"], fields["EventCount"] = rep.eventTable(), thousands(rep.opts.events)
	}
	if len(rep.costs) > 0 {
		churned := rep.churned.Seconds()
		fields["Syncs"], fields["Churns"], fields["SmallSet"], fields["Changes"] = rep.syncTable(), rep.churnTable(), smallSet, thousands(rep.changes)
		fields["Churned"], fields["Rate"] = fmt.Sprintf("%.0f", churned), fmt.Sprintf("%.0f", float64(rep.changes)/churned)
	}
	var out strings.Builder
	if err := frame.Execute(&out, fields); err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

// summary is what the terminal gets.
func (rep *clusterReport) summary() string { return rep.loadTable() + "\n" + budgetTable(rep.judge()) }

func (rep *clusterReport) startTable() string {
	header := []string{"server", "first byte", "last byte", "ready", "RSS MiB: peak until ready", "at rest", "after the loads"}
	rows := make([][]string, 0, len(rep.rows))
	for _, r := range rep.rows {
		l, ok := r.medianStart()
		if !ok {
			rows = append(rows, []string{r.Name, notMeasured})
			continue
		}
		rows = append(rows, []string{
			r.Name, seconds(l.first), seconds(l.last), seconds(l.ready),
			fmt.Sprintf("%.0f", l.peak), fmt.Sprintf("%.0f", l.rest), fmt.Sprintf("%.0f", l.loaded),
		})
	}
	return table(header, rows)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func (rep *clusterReport) loadTable() string {
	all := clusterLoads()
	header := append(make([]string, 0, len(all)+3), "server")
	for _, l := range all {
		header = append(header, l.title)
	}
	header = append(header, "lost", "wrong")
	var rows [][]string
	if f, ok := rep.figureOf(floorName, addressLoad); ok {
		rows = append(rows, []string{floorName, costCell(f)})
	}
	for _, r := range rep.rows {
		cells := []string{r.Name}
		var lost, wrong int64
		for _, l := range all {
			f, ok := r.figure(l.name)
			if !ok {
				cells = append(cells, notMeasured)
				continue
			}
			cells = append(cells, costCell(f))
			lost += f.Lost
			wrong += f.Wrong
		}
		rows = append(rows, append(cells, strconv.FormatInt(lost, 10), strconv.FormatInt(wrong, 10)))
	}
	return table(header, rows)
}

func costCell(f figure) string { return fmt.Sprintf("%.2f (%s)", f.CPU, thousands(f.QPS)) }

func (rep *clusterReport) eventTable() string {
	header := []string{"server", "events", "p50", "p99", "max", "older", "wrong", "lost"}
	var rows [][]string
	for _, r := range rep.rows {
		if r.events == nil {
			rows = append(rows, []string{r.Name, notMeasured})
			continue
		}
		e := r.events
		row := []string{r.Name, strconv.Itoa(len(e.latencies))}
		for _, q := range []float64{0.5, 0.99, 1} {
			row = append(row, fmt.Sprintf("%.1f ms", e.quantile(q).Seconds()*1000))
		}
		for _, n := range []int{e.older, e.wrong, e.lost} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	return table(header, rows)
}

func (rep *clusterReport) syncTable() string {
	header := []string{"first sync", "KiB from the API server", "KiB to it", "requests"}
	var rows [][]string
	for _, b := range rep.costs {
		if b.skipped != "" {
			rows = append(rows, []string{b.name, notMeasured + ": " + b.skipped})
			continue
		}
		rows = append(rows, []string{b.name, kib(b.sync.ToClient), kib(b.sync.ToServer), tally(b.syncTally)})
	}
	return table(header, rows)
}

func (rep *clusterReport) churnTable() string {
	header := []string{"changes", "KiB from the API server", "bytes for each change", "KiB to it", "requests", "CPU ms/s", "RSS MiB"}
	var rows [][]string
	for _, b := range rep.costs {
		if b.skipped != "" {
			rows = append(rows, []string{b.name, notMeasured + ": " + b.skipped})
			continue
		}
		rows = append(rows, []string{
			b.name, kib(b.churn.ToClient), thousands(b.churn.ToClient / int64(max(1, rep.changes))), kib(b.churn.ToServer), tally(b.churnTally),
			fmt.Sprintf("%.1f", float64(b.cpu.Milliseconds())/rep.churned.Seconds()), fmt.Sprintf("%.0f", b.mib),
		})
	}
	return table(header, rows)
}

func kib(bytes int64) string { return thousands((bytes + 1023) >> 10) }

// tally is a count of requests for a cell.
func tally(tallies []kubetest.Tally) string {
	total := 0
	parts := make([]string, 0, len(tallies))
	for _, t := range tallies {
		total += t.Count
		resource := t.Resource
		if resource == "" {
			resource = "other"
		}
		parts = append(parts, fmt.Sprintf("%s %s %d", t.Verb, resource, t.Count))
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// The budgets of the cluster zone. Those for memory and time are meant for 11,000 services with 100,000 endpoints.
const (
	ratioBudget = 1.35 // × floor
	restBudget  = 75   // MiB
	peakBudget  = 150  // MiB
	readyBudget = time.Second
	eventBudget = 100 * time.Millisecond
	mostBad     = 0.01 // share of queries lost or answered wrongly above which a cost says nothing
)

// judge holds every budget against the worst of node-cache's rows.
func (rep *clusterReport) judge() []judgement {
	return []judgement{
		rep.judgeWorst("memory at rest", "≤ 75 MiB RSS", restBudget, "%.0f MiB", func(r *clusterResult) (float64, bool) {
			l, ok := r.medianStart()
			return max(l.rest, l.loaded), ok
		}),
		rep.judgeWorst("peak memory until ready", "≤ 150 MiB RSS", peakBudget, "%.0f MiB", func(r *clusterResult) (float64, bool) {
			l, ok := r.medianStart()
			return l.peak, ok
		}),
		rep.judgeWorst("first byte of the objects → ready", "≤ 1 s", readyBudget.Seconds(), "%.2f s", func(r *clusterResult) (float64, bool) {
			return r.answered().Seconds(), len(r.starts) > 0
		}),
		rep.judgeRatio(addressLoad, "A of a service: CPU per query"),
		rep.judgeRatio(denialLoad, "denial: CPU per query"),
		rep.judgeWorst("event to answer, p99", "≤ 100 ms", float64(eventBudget.Milliseconds()), "%.1f ms", func(r *clusterResult) (float64, bool) {
			if r.events == nil || len(r.events.latencies) < rep.opts.events {
				return 0, false
			}
			return r.events.quantile(0.99).Seconds() * 1000, true
		}),
		rep.judgeWorst("older answers after newer ones", "none", 0, "%.0f", func(r *clusterResult) (float64, bool) {
			if r.events == nil || len(r.events.latencies) < rep.opts.events {
				return 0, false
			}
			return float64(r.events.older + r.events.wrong), true
		}),
	}
}

// judgeWorst takes the highest value among node-cache's rows. A row without one leaves the budget unjudged.
func (rep *clusterReport) judgeWorst(what, budget string, limit float64, format string, of func(*clusterResult) (float64, bool)) judgement {
	j := judgement{what: what, budget: budget, figure: notMeasured, verdict: notMeasured}
	worst, row := -1.0, ""
	for _, r := range rep.rows {
		if !r.ours {
			continue
		}
		value, ok := of(r)
		if !ok {
			j.figure += " with " + r.Name
			return j
		}
		if value > worst {
			worst, row = value, r.Name
		}
	}
	if row == "" {
		return j
	}
	j.figure, j.verdict = fmt.Sprintf(format, worst), met
	if worst > limit {
		j.verdict = notMet
	}
	if worst > 0 { // at 0 all rows are equal
		j.figure += " (" + row + ")"
	}
	return j
}

// judgeRatio compares a load with the floor of the same run.
func (rep *clusterReport) judgeRatio(load, what string) judgement {
	floor, measured := rep.figureOf(floorName, addressLoad)
	return rep.judgeWorst(what, fmt.Sprintf("≤ %.2f × floor", ratioBudget), ratioBudget, "%.2f × floor", func(r *clusterResult) (float64, bool) {
		f, ok := r.figure(load)
		if !ok || !measured || float64(f.Lost+f.Wrong) > mostBad*float64(f.Completed+f.Lost) {
			return 0, false
		}
		return f.CPU / floor.CPU, true
	})
}
