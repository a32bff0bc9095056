// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

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
func judge(rep report) [][]string {
	return [][]string{
		judgeWorst(rep, "memory at rest", "≤ 75 MiB RSS", restBudget, "%.0f MiB", func(r *result) (float64, bool) {
			l, ok := r.medianStart()
			return max(l.rest, l.loaded), ok
		}),
		judgeWorst(rep, "peak memory until ready", "≤ 150 MiB RSS", peakBudget, "%.0f MiB", func(r *result) (float64, bool) {
			l, ok := r.medianStart()
			return l.peak, ok
		}),
		judgeWorst(rep, "first byte of the objects → ready", "≤ 1 s", readyBudget.Seconds(), "%.2f s", func(r *result) (float64, bool) {
			return r.answered().Seconds(), len(r.starts) > 0
		}),
		judgeRatio(rep, addressLoad, "A of a service: CPU per query"),
		judgeRatio(rep, denialLoad, "denial: CPU per query"),
		judgeWorst(rep, "event to answer, 99th percentile", "≤ 100 ms", float64(eventBudget.Milliseconds()), "%.1f ms",
			func(r *result) (float64, bool) {
				if r.events == nil || len(r.events.latencies) < rep.opts.events {
					return 0, false
				}
				return r.events.quantile(0.99).Seconds() * 1000, true
			}),
		judgeWorst(rep, "older answers after newer ones", "none", 0, "%.0f", func(r *result) (float64, bool) {
			if r.events == nil || len(r.events.latencies) < rep.opts.events {
				return 0, false
			}
			return float64(r.events.older + r.events.wrong), true
		}),
	}
}

const (
	notMeasured = "not measured"
	met         = "met"
	notMet      = "**not met**"
)

// judgeWorst takes the highest value among node-cache's rows. A row without one leaves the budget unjudged.
func judgeWorst(rep report, what, budget string, limit float64, format string, of func(*result) (float64, bool)) []string {
	worst, who := -1.0, ""
	for _, r := range rep.results {
		if !r.ours {
			continue
		}
		value, ok := of(r)
		if !ok {
			return []string{what, budget, notMeasured + " with " + r.name, notMeasured}
		}
		if value > worst {
			worst, who = value, r.name
		}
	}
	if who == "" {
		return []string{what, budget, notMeasured, notMeasured}
	}
	verdict := met
	if worst > limit {
		verdict = notMet
	}
	figure := fmt.Sprintf(format, worst)
	if worst > 0 { // the worst of equals is nobody
		figure += " (" + who + ")"
	}
	return []string{what, budget, figure, verdict}
}

// judgeRatio compares a load with the floor of the same run.
func judgeRatio(rep report, load, what string) []string {
	floor, ok := medianStartOf(rep.floor)
	if !ok {
		return []string{what, "≤ 1.35 × floor", notMeasured, notMeasured}
	}
	return judgeWorst(rep, what, fmt.Sprintf("≤ %.2f × floor", ratioBudget), ratioBudget, "%.2f × floor", func(r *result) (float64, bool) {
		s, ok := r.medians(load)
		if ok && float64(s.lost+s.wrong) > mostBad*float64(s.asked) {
			return 0, false
		}
		return s.cpu / floor.cpu, ok
	})
}
