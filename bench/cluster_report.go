// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"
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
		fields["EventCount"] = thousands(rep.opts.events)
	}
	if len(rep.costs) > 0 {
		churned := rep.churned.Seconds()
		fields["Costs"], fields["SmallSet"], fields["Changes"] = rep.costTable(), smallSet, thousands(rep.changes)
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

// startTable has the starts of each server, and the events if there were any.
func (rep *clusterReport) startTable() string {
	header := "server|ready, s|peak until ready, MiB RSS|at rest|after the loads"
	if rep.opts.events > 0 {
		header += "|event p50, ms|p99|max|older, wrong, lost"
	}
	return table(header, rep.rows, func(r *clusterResult) []any {
		l, ok := r.medianStart()
		if !ok {
			return []any{r.Name, notMeasured}
		}
		cells := []any{r.Name, seconds(l.ready), decimals(0, l.peak), decimals(0, l.rest), decimals(0, l.loaded)}
		if e := r.events; e != nil {
			at := func(q float64) string { return decimals(1, e.quantile(q).Seconds()*1000) }
			cells = append(cells, at(0.5), at(0.99), at(1), fmt.Sprintf("%d, %d, %d", e.older, e.wrong, e.lost))
		}
		return cells
	})
}

func seconds(d time.Duration) string { return decimals(2, d.Seconds()) }

func (rep *clusterReport) loadTable() string {
	header := []string{"server"}
	for _, l := range clusterLoads() {
		header = append(header, l.title)
	}
	return table(strings.Join(append(header, "lost, wrong"), "|"), rep.Results, func(r *result) []any {
		cells := []any{r.Name}
		var lost, wrong int64
		for _, l := range clusterLoads() {
			f, ok := r.figure(l.name)
			switch {
			case ok:
				cells = append(cells, decimals(2, f.CPU))
			case r.Name != floorName || l.name == addressLoad: // the floor has one load
				cells = append(cells, notMeasured)
			}
			lost += f.Lost
			wrong += f.Wrong
		}
		if r.Name == floorName {
			return cells
		}
		return append(cells, fmt.Sprintf("%d, %d", lost, wrong))
	})
}

// costTable has the first sync, and then the changes.
func (rep *clusterReport) costTable() string {
	header := "client|first sync: KiB from the API server|requests|changes: KiB from it|bytes for each|requests|CPU ms/s|RSS MiB"
	return table(header, rep.costs, func(c *clientCost) []any {
		if c.skipped != "" {
			return []any{c.name, notMeasured + ": " + c.skipped}
		}
		each, cpu := c.churn.ToClient/int64(max(1, rep.changes)), float64(c.cpu.Milliseconds())/rep.churned.Seconds()
		return []any{
			c.name, kib(c.sync.ToClient), count(c.syncTally),
			kib(c.churn.ToClient), thousands(each), count(c.churnTally), decimals(1, cpu), decimals(0, c.mib),
		}
	})
}

func kib(bytes int64) string { return thousands((bytes + 1023) >> 10) }

// count is the number of requests.
func count(tallies []kubetest.Tally) int {
	total := 0
	for _, t := range tallies {
		total += t.Count
	}
	return total
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
		rep.judgeRatio(addressLoad, "A of a service: CPU"),
		rep.judgeRatio(denialLoad, "denial: CPU"),
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
