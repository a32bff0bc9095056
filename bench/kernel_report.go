// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"
)

//go:embed kernel.md.tmpl
var kernelFrame string

// The goals of answers in the kernel.
const (
	floorRatio = 1.3
	cpuRatio   = 1.0 / 3
	p50Ratio   = 1.0 / 4
	p99Ratio   = 1.0 / 3
	leastShare = 0.95 // of the hits
	otherGoal  = 100 * time.Nanosecond
	queryGoal  = 300 * time.Nanosecond
)

// A kernelReport is what one run of the section kernel found.
type kernelReport struct {
	Machine machine
	Seconds int // of each load
	Rounds  int
	Full    int // answers a second without answers in the kernel, at full load
	Rate    int // queries a second

	samples   map[string][]kernelSample // by subject, one a round
	runTimes  map[string]time.Duration  // of the programs, by subject
	costs     []passCost
	responses map[string]float64 // by source, while answers expire
}

// A kernelSample is one load of one round.
type kernelSample struct {
	Seconds  int
	Sent     int64
	Answered int64
	Empty    int64   // answers without a record
	P50, P99 float64 // latency in ns
	Used     float64 // CPU time of the machine in ms
}

func (s kernelSample) String() string {
	return fmt.Sprintf("%d sent, %d answered, p50 %.1f us, p99 %.1f us, %.0f ms of CPU", s.Sent, s.Answered, s.P50/1000, s.P99/1000, s.Used)
}

// of is the median of a figure of a subject.
func (rep *kernelReport) of(subject string, figure func(kernelSample) float64) float64 {
	return medianOf(rep.samples[subject], figure)
}

// cpu is the machine's CPU time for each query in µs, without that of the idle machine.
func (rep *kernelReport) cpu(subject string) float64 {
	unused := rep.of(idle, func(s kernelSample) float64 { return s.Used })
	return rep.of(subject, func(s kernelSample) float64 { return (s.Used - unused) * 1000 / float64(s.Sent) })
}

func p50(s kernelSample) float64 { return s.P50 / 1000 }
func p99(s kernelSample) float64 { return s.P99 / 1000 }

func (rep *kernelReport) render() (string, error) {
	frame, err := template.New("kernel.md").Parse(kernelFrame)
	if err != nil {
		return "", fmt.Errorf("reading the frame: %w", err)
	}
	var out strings.Builder
	err = frame.Execute(&out, map[string]any{
		"Report": rep, "Budgets": budgetTable(rep.judge()), "Loads": rep.loads(),
		"Idle": fmt.Sprintf("%.1f %%", rep.of(idle, func(s kernelSample) float64 { return s.Used / float64(s.Seconds) / 10 })),
	})
	if err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

func (rep *kernelReport) summary() string {
	return rep.loads() + "\n" + budgetTable(rep.judge())
}

// loads is the table of what was measured at the pod's link.
func (rep *kernelReport) loads() string {
	return table("at the pod's link|CPU, µs|p50, µs|p99, µs|lost|the program, ns", kernelSubjects()[1:], func(subject string) []any {
		lost, program := int64(0), "–"
		for _, s := range rep.samples[subject] {
			lost += s.Sent - s.Answered
		}
		if took, ok := rep.runTimes[subject]; ok {
			program = fmt.Sprint(took.Nanoseconds())
		}
		return []any{
			subject, decimals(2, rep.cpu(subject)), decimals(1, rep.of(subject, p50)), decimals(1, rep.of(subject, p99)),
			thousands(float64(lost)), program,
		}
	})
}

// judge compares every goal with the report.
func (rep *kernelReport) judge() []judgement {
	generator := rep.cpu(turned) // it sends, waits and receives
	judged := make([]judgement, 0, 5+len(rep.costs))
	judged = append(judged,
		rep.judgeRatio("CPU of a hit, to the floor's", rep.cpu(inKernel), rep.cpu(turned), floorRatio),
		rep.judgeRatio("the same less the floor's, to hits off", rep.cpu(inKernel)-generator, rep.cpu(inProcess)-generator, cpuRatio),
		rep.judgeRatio("p50 latency, to hits off", rep.of(inKernel, p50), rep.of(inProcess, p50), p50Ratio),
		rep.judgeRatio("p99 latency, to hits off", rep.of(inKernel, p99), rep.of(inProcess, p99), p99Ratio))
	share := rep.share()
	judged = append(judged, judgement{
		"share of hits in the kernel, TTLs of 5 s to 30 s", fmt.Sprintf("≥ %.0f %%", 100*leastShare), fmt.Sprintf("%.2f %%", 100*share),
		plainVerdict(share >= leastShare),
	})
	for _, c := range rep.costs {
		judged = append(judged, judgement{c.What, fmt.Sprintf("≤ %d ns", c.Goal.Nanoseconds()), fmt.Sprintf("%d ns", c.Took.Nanoseconds()), plainVerdict(c.Took <= c.Goal)})
	}
	return judged
}

func (rep *kernelReport) judgeRatio(what string, ours, base, limit float64) judgement {
	return judgement{what, fmt.Sprintf("≤ %.2f ×", limit), fmt.Sprintf("%.2f ×", ours/base), plainVerdict(ours <= limit*base)}
}

func plainVerdict(within bool) string {
	if within {
		return met
	}
	return notMet
}

// share is the share of the hits that the kernel answered.
func (rep *kernelReport) share() float64 {
	return rep.responses["kernel"] / (rep.responses["kernel"] + rep.responses["cache"] + rep.responses["stale"])
}
