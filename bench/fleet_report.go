// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed fleet.md.tmpl
var fleetFrame string

// The goals of the section fleet.
const (
	fleetMiB       = 500.0
	fleetRestCPU   = 0.05
	fleetFresh     = 100 * time.Millisecond
	fleetEveryone  = 500 * time.Millisecond
	fleetAgain     = 15 * time.Second
	fleetOldest    = 10.0            // seconds: 5 of heartbeats and the TTL
	fleetInTime    = 5 * time.Second // stub resolvers wait so long
	fleetPerServer = 3333            // agents of one resolver
)

// A fleetReport is what one run of the section fleet found.
type fleetReport struct {
	Machine machine
	Options options
	modes   []*fleetMode
	steps   []*fleetStep
	failed  string // why the last step did not come to its end
}

// A fleetMode is the real agents of a mode. Figures without a unit are of one agent.
type fleetMode struct {
	name                  string
	watches               float64
	requests              float64 // a second, at rest
	ms, mib               float64 // CPU in ms a second, and memory, at rest
	asked, hits           int     // of all agents: questions for one name, and how many the cache answered
	fresh, killed, silent freshness
}

func newFleetReport(opts options) *fleetReport {
	return &fleetReport{Machine: describeMachine(), Options: opts}
}

// mode finds or adds a mode.
func (rep *fleetReport) mode(name string) *fleetMode {
	i := slices.IndexFunc(rep.modes, func(m *fleetMode) bool { return m.name == name })
	if i < 0 {
		i, rep.modes = len(rep.modes), append(rep.modes, &fleetMode{name: name})
	}
	return rep.modes[i]
}

func (rep *fleetReport) render() (string, error) {
	frame, err := template.New("fleet.md").Parse(fleetFrame)
	if err != nil {
		return "", fmt.Errorf("reading the frame: %w", err)
	}
	headless := rep.Options.services / headlessShare
	fields := map[string]any{
		"Report": rep, "Services": thousands(rep.Options.services), "Headless": thousands(headless), "Endpoints": thousands(rep.Options.endpoints),
		"Seconds": rep.Options.seconds, "Rate": rep.Options.rate, "Churn": rep.Options.churn.Seconds(), "Names": namesPerAgent, "PerMode": agentsPerMode,
		"Budgets": budgetTable(rep.judge()), "Modes": rep.modeTable(), "Steps": rep.stepTable(), "Sizes": rep.sizeTable(),
	}
	var out strings.Builder
	if err := frame.Execute(&out, fields); err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

func (rep *fleetReport) summary() string {
	return rep.modeTable() + "\n" + rep.stepTable() + "\n" + rep.sizeTable() + "\n" + budgetTable(rep.judge())
}

func (rep *fleetReport) modeTable() string {
	const header = "mode|watches|requests/s|CPU, ms/s|RSS, MiB|hits|a change: old for, s|resolver killed: old for, s|silent: old for, s|lost"
	return table(header, rep.modes, func(m *fleetMode) []any {
		hits := fmt.Sprintf("%d of %d", m.hits, m.asked)
		if m.name == localMode {
			hits = "from the zone"
		}
		old := func(f freshness) string {
			if len(f.oldest) == 0 {
				return notMeasured
			}
			return decimals(3, f.worst())
		}
		return []any{
			m.name, decimals(1, m.watches), decimals(3, m.requests), decimals(1, m.ms), decimals(1, m.mib), hits,
			old(m.fresh), old(m.killed), old(m.silent), m.fresh.lost + m.killed.lost + m.silent.lost,
		}
	})
}

// stepTable has a column for each number of agents.
func (rep *fleetReport) stepTable() string {
	if !rep.HasSteps() {
		return ""
	}
	ms := func(d time.Duration) string { return decimals(1, d.Seconds()*1000) }
	percent := func(share float64) string { return decimals(1, 100*share) }
	type row struct {
		what string
		cell func(*fleetStep) string
	}
	rows := []row{
		{"subscriptions", func(s *fleetStep) string { return thousands(s.subscriptions) }},
		{"start: session to right answers, p99, s", func(s *fleetStep) string { return seconds(s.each.quantile(0.99)) }},
		{"start: all agents, s", func(s *fleetStep) string { return seconds(s.started.quantile(1)) }},
		{"start: resolver's CPU, % of a core", func(s *fleetStep) string { return percent(s.startCPU) }},
		{"start: requests to the API server", func(s *fleetStep) string { return thousands(s.requests) }},
		{"resolver's RSS without agents, MiB", func(s *fleetStep) string { return decimals(0, s.emptyMiB) }},
		{"rest: RSS, MiB", func(s *fleetStep) string { return decimals(0, s.mib) }},
		{"rest: CPU, % of a core", func(s *fleetStep) string { return percent(s.restCPU) }},
		{"changes", func(s *fleetStep) string { return thousands(s.changes) }},
		{"changes: right answers expected", func(s *fleetStep) string { return thousands(s.expected) }},
		{"changes: missing", func(s *fleetStep) string { return thousands(s.late()) }},
		{"changes: to the right answer, p50, ms", func(s *fleetStep) string { return ms(s.fresh.quantile(0.5)) }},
		{"changes: p99, ms", func(s *fleetStep) string { return ms(s.fresh.quantile(0.99)) }},
		{"changes: from the event of a watch, p50, ms", func(s *fleetStep) string { return ms(s.watch.quantile(0.5)) }},
		{"changes: p99, ms", func(s *fleetStep) string { return ms(s.watch.quantile(0.99)) }},
		{"changes: resolver's CPU, % of a core", func(s *fleetStep) string { return percent(s.changesCPU) }},
		{"one name: all right, median, ms", func(s *fleetStep) string { return ms(s.allRight(0.5)) }},
		{"one name: slowest, ms", func(s *fleetStep) string { return ms(s.allRight(1)) }},
		{"sessions that ended until here", func(s *fleetStep) string { return thousands(s.ended) }},
		{"resolver killed: all subscribed again, s", func(s *fleetStep) string { return seconds(s.killed.quantile(1)) }},
		{"resolver silent: all subscribed again, s", func(s *fleetStep) string { return seconds(s.silent.quantile(1)) }},
	}
	header := append([]string{"agents"}, names(rep.steps, func(s *fleetStep) string { return thousands(s.agents) })...)
	return table(strings.Join(header, "|"), rows, func(row row) []any {
		cells := make([]any, 0, len(header))
		cells = append(cells, row.what)
		for _, s := range rep.steps {
			cells = append(cells, row.cell(s))
		}
		return cells
	})
}

func (s *fleetStep) late() int { return s.expected - len(s.fresh.latencies) }

func (s *fleetStep) allRight(q float64) time.Duration {
	return (&events{latencies: s.everyone}).quantile(q)
}

// sizeTable says what more nodes need, by the costs of the last step: of a session at rest, and of an answer after a change.
func (rep *fleetReport) sizeTable() string {
	if !rep.HasSteps() {
		return ""
	}
	s := rep.steps[len(rep.steps)-1]
	of := func(nodes int) (share float64) { return float64(nodes) / float64(s.agents) }
	return table("nodes|resolvers|cores at rest|cores at these changes|RSS of all, MiB|bytes/s at rest|at these changes", []int{1000, 3333, 10_000, 100_000}, func(nodes int) []any {
		resolvers := math.Ceil(float64(nodes)/fleetPerServer) + 1
		size := resolvers*s.emptyMiB + of(nodes)*(s.mib-s.emptyMiB)
		return []any{
			thousands(nodes), thousands(resolvers), decimals(2, of(nodes)*s.restCPU), decimals(2, of(nodes)*s.changesCPU), thousands(size),
			thousands(of(nodes) * s.restBytes), thousands(of(nodes) * s.changesBytes),
		}
	})
}

// judge compares the mode push, and the step with most agents, with the goals.
func (rep *fleetReport) judge() []judgement {
	var judged []judgement
	add := func(what, budget, figure string, within bool) {
		judged = append(judged, judgement{what, budget, figure, plainVerdict(within)})
	}
	for _, m := range rep.modes {
		if m.name != pushMode {
			continue
		}
		add("push: watches and requests of an agent at rest", "0 and 0", fmt.Sprintf("%.1f and %.3f/s", m.watches, m.requests), m.watches == 0 && m.requests == 0)
		add("push: hits of a name that is asked for every 20 s", "all", fmt.Sprintf("%d of %d", m.hits, m.asked), m.hits == m.asked)
		for _, c := range rep.modes {
			if c.name == centralMode {
				add("push: RSS", "no more than central", fmt.Sprintf("%.1f MiB; %.1f MiB", m.mib, c.mib), m.mib <= c.mib)
			}
		}
		if oldest := max(m.killed.worst(), m.silent.worst()); rep.HasSteps() {
			add("push: oldest answer without a resolver", "≤ 10 s", decimals(2, oldest)+" s", oldest <= fleetOldest)
		}
	}
	if !rep.HasSteps() {
		return judged
	}
	s := rep.steps[len(rep.steps)-1]
	add("simulated agents: the last step", "comes to its end", cmp.Or(rep.failed, "at "+thousands(s.agents)), rep.failed == "")
	core := func(share float64) string { return decimals(1, 100*share) + " %" }
	span := func(what string, goal, got time.Duration, all bool) {
		add(what, "≤ "+seconds(goal)+" s", decimals(3, got.Seconds())+" s", all && got <= goal)
	}
	add("resolver: RSS", "≤ 500 MiB", decimals(0, s.mib)+" MiB", s.mib <= fleetMiB)
	add("resolver at rest: CPU", "≤ 5 % of a core", core(s.restCPU), s.restCPU <= fleetRestCPU)
	span("start: session to right answers, slowest agent", fleetInTime, s.each.quantile(1), true)
	add("start: CPU", "≤ 1 core", core(s.startCPU), s.startCPU <= 1)
	span("changes: to the right answer, p99", fleetFresh, s.fresh.quantile(0.99), s.expected > 0 && s.late() == 0)
	add("changes: CPU", "≤ 1 core", core(s.changesCPU), s.changesCPU <= 1)
	span("one name of all agents: all right", fleetEveryone, s.allRight(1), len(s.everyone) > 0)
	span("resolver killed: all subscribed again", fleetAgain, s.killed.quantile(1), len(s.killed.latencies) > 0)
	span("resolver silent: all subscribed again", fleetAgain, s.silent.quantile(1), len(s.silent.latencies) > 0)
	return judged
}

// HasSteps reports whether agents were simulated.
func (rep *fleetReport) HasSteps() bool { return len(rep.steps) > 0 }
