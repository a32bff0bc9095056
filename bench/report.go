// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A report is everything one run found.
type report interface {
	render() (string, error) // the part of the page
	summary() string         // for the terminal
}

// results is what the reports of both sections hold.
type results struct {
	Machine machine
	Seconds int // of each load
	Rounds  int
	Results []*result
}

// A result is one server's row.
type result struct {
	Name    string
	Version string
	Skipped string // why it was not started at all
	Notes   []note
	IdleMiB []float64
	Samples map[string][]sample // by load, one a round
}

// A note is what went wrong in a round.
type note struct {
	Round int
	Load  string // empty: the server gave no load of the round
	Why   string
}

// String is the note as a reader of the report sees it.
func (n note) String() string {
	if n.Load == "" {
		return fmt.Sprintf("round %d: %s", n.Round, n.Why)
	}
	return fmt.Sprintf("round %d, %s: %s", n.Round, n.Load, n.Why)
}

// note keeps and shows what went wrong.
func (h *harness) note(row *result, round int, load string, err error) {
	n := note{Round: round + 1, Load: load, Why: oneLine(err)}
	row.Notes = append(row.Notes, n)
	printf(h.progress, "%-18s %s\n", row.Name, n)
}

// sample keeps and shows a sample.
func (h *harness) sample(row *result, round int, load string, s sample) {
	row.Samples[load] = append(row.Samples[load], s)
	printf(h.progress, "round %d %-18s %-12s %8.0f q/s  %6.2f us CPU/query  core %3.0f %%  latency %6.0f us  lost %d  wrong %d  %.0f MiB\n",
		round+1, row.Name, load, s.QPS, s.CPU, 100*s.Busy, s.Latency, s.Lost, s.Wrong, s.MiB)
}

// oneLine is an error's text for a table: joined errors have a line each.
func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// A sample is one load of one round.
type sample struct {
	QPS       float64 // answers per second
	CPU       float64 // the server's CPU per answer, µs
	Busy      float64 // share of its core that the server used
	Latency   float64 // mean, µs
	MiB       float64 // resident memory at the end of the load
	Completed int64   // queries answered
	Lost      int64   // queries not answered within the time-out
	Wrong     int64   // answers with another response code than the right one
	Others    float64 // share of both CPUs that went to what is no part of the benchmark
}

// The least CPU time that makes a sample: the kernel counts in ticks of 10 ms.
const leastCPU = 10 * proctest.Tick

// newSample puts dnsperf's figures and the server's CPU time together.
func newSample(p perf, cpu time.Duration, mib float64, rcode string) (sample, error) {
	if p.completed == 0 || p.seconds <= 0 {
		return sample{}, fmt.Errorf("answered none of %d queries", p.lost)
	}
	if cpu < leastCPU {
		return sample{}, fmt.Errorf("used %s of CPU for %d queries, too little to tell their cost", cpu, p.completed)
	}
	return sample{
		QPS:       p.qps,
		CPU:       cpu.Seconds() / float64(p.completed) * 1e6,
		Busy:      cpu.Seconds() / p.seconds,
		Latency:   p.latency.Seconds() * 1e6,
		MiB:       mib,
		Completed: p.completed,
		Lost:      p.lost,
		Wrong:     p.wrong(rcode),
	}, nil
}

// A figure is the medians of one server under one load; what was lost or wrong is summed over the rounds.
type figure struct {
	sample

	minCPU, maxCPU float64 // of the rounds
}

// figure returns the medians of a load, and false where there is no sample.
func (r *result) figure(load string) (figure, bool) {
	samples := r.Samples[load]
	if len(samples) == 0 {
		return figure{}, false
	}
	f := figure{minCPU: math.Inf(1)}
	f.QPS = medianOf(samples, func(s sample) float64 { return s.QPS })
	f.CPU = medianOf(samples, func(s sample) float64 { return s.CPU })
	f.Busy = medianOf(samples, func(s sample) float64 { return s.Busy })
	f.MiB = medianOf(samples, func(s sample) float64 { return s.MiB })
	for _, s := range samples {
		f.Completed += s.Completed
		f.Lost += s.Lost
		f.Wrong += s.Wrong
		f.minCPU, f.maxCPU = min(f.minCPU, s.CPU), max(f.maxCPU, s.CPU)
	}
	return f, true
}

// find returns the row of a name, nil where there is none.
func (r *results) find(name string) *result {
	i := slices.IndexFunc(r.Results, func(row *result) bool { return row.Name == name })
	if i < 0 {
		return nil
	}
	return r.Results[i]
}

// figureOf returns the medians of a server under a load, and false where they were not measured.
func (r *results) figureOf(name, load string) (figure, bool) {
	if row := r.find(name); row != nil {
		return row.figure(load)
	}
	return figure{}, false
}

// others is the share of both CPUs that went to other programs: the median of all samples and the worst of them.
func (r *results) others() (mid, worst float64) {
	var shares []float64
	for _, row := range r.Results {
		for _, samples := range row.Samples {
			for _, s := range samples {
				shares = append(shares, s.Others)
			}
		}
	}
	if len(shares) == 0 {
		return 0, 0
	}
	return median(shares), slices.Max(shares)
}

// The share of both CPUs used by others above which the report warns.
const mostNoise = 0.05

// notes lists what went wrong in single rounds.
func (r *results) notes() string {
	var out strings.Builder
	for _, row := range r.Results {
		for _, note := range row.Notes {
			fmt.Fprintf(&out, "- %s, %s\n", row.Name, note)
		}
	}
	return out.String()
}

// median is the middle value, or the mean of the two in the middle; values is not empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medianOf is the median of one value of each item.
func medianOf[T any](items []T, of func(T) float64) float64 {
	values := make([]float64, len(items))
	for i, item := range items {
		values[i] = of(item)
	}
	return median(values)
}

// The verdicts on budgets, and what stands for a figure that is missing.
const (
	met         = "met"
	notMet      = "**not met**"
	notMeasured = "not measured"
)

// A judgement is one budget beside the figure of this run.
type judgement struct {
	what, budget, figure, verdict string
}

func budgetTable(judged []judgement) string {
	return table("what|budget|this run|verdict", judged, func(j judgement) []any { return []any{j.what, j.budget, j.figure, j.verdict} })
}

// table renders Markdown with a row for each item; short rows are filled up with empty cells.
func table[T any](header string, items []T, cells func(T) []any) string {
	columns := strings.Split(header, "|")
	var out strings.Builder
	out.WriteString("| " + strings.Join(columns, " | ") + " |\n" + strings.Repeat("|---", len(columns)) + "|\n")
	for _, item := range items {
		row := cells(item)
		for i := range columns {
			cell := ""
			if i < len(row) {
				cell = strings.ReplaceAll(fmt.Sprint(row[i]), "|", `\|`)
			}
			out.WriteString("| " + cell + " ")
		}
		out.WriteString("|\n")
	}
	return out.String()
}

// decimals is a number with so many of them.
func decimals(n int, number float64) string { return strconv.FormatFloat(number, 'f', n, 64) }

// thousands writes a number without fraction, its digits in groups of three.
func thousands[N int | int64 | float64](n N) string {
	digits := strconv.FormatFloat(float64(n), 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
