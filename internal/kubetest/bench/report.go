// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A report is everything one run found.
type report struct {
	opts      options
	machine   string
	generator string
	floor     []loadResult
	results   []*result
	bills     []*clientCost
	changes   int           // made to objects
	churned   time.Duration // how long that took
}

// A result is what one server of the zone did.
type result struct {
	name   string
	ours   bool
	starts []startResult
	loads  map[string][]loadResult
	events *events // nil: not measured
	notes  []string
}

func newReport(opts options) report {
	r := report{opts: opts, machine: describeMachine(), generator: "dnsperf"}
	for _, c := range contenders() {
		if c.apart == costOnly || (len(opts.only) > 0 && !slices.Contains(opts.only, c.name)) {
			continue
		}
		r.results = append(r.results, &result{name: c.name, ours: c.ours, loads: make(map[string][]loadResult)})
	}
	return r
}

// row finds a contender's result.
func (r *report) row(c contender) *result {
	i := slices.IndexFunc(r.results, func(row *result) bool { return row.name == c.name })
	return r.results[i]
}

// note keeps what went wrong in a round.
func (r *result) note(round int, err error) {
	r.notes = append(r.notes, fmt.Sprintf("round %d: %s", round+1, strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// medians is the medians of a load, and false where there are none; what was lost or wrong is summed.
func (r *result) medians(load string) (loadResult, bool) { return medianStartOf(r.loads[load]) }

func medianStartOf(shots []loadResult) (loadResult, bool) {
	if len(shots) == 0 {
		return loadResult{}, false
	}
	s := loadResult{
		cpu:  medianOf(shots, func(s loadResult) float64 { return s.cpu }),
		qps:  medianOf(shots, func(s loadResult) float64 { return s.qps }),
		busy: medianOf(shots, func(s loadResult) float64 { return s.busy }),
	}
	for _, one := range shots {
		s.lost += one.lost
		s.wrong += one.wrong
		s.asked += one.asked
	}
	return s, true
}

// medianStart is the medians of the starts, and false where there were none; the peak is the highest.
func (r *result) medianStart() (startResult, bool) {
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
func (r *result) answered() time.Duration {
	var worst time.Duration
	for _, l := range r.starts {
		worst = max(worst, l.ready-l.first)
	}
	return worst
}

// medianOf is the middle value, or the mean of the two in the middle; items is not empty.
func medianOf[T any](items []T, of func(T) float64) float64 {
	values := make([]float64, 0, len(items))
	for _, item := range items {
		values = append(values, of(item))
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// others is the share of all CPUs that went to strangers during the loads: the median and the worst.
func (r *report) others() (mid, worst float64) {
	all := slices.Clone(r.floor)
	for _, row := range r.results {
		for _, shots := range row.loads {
			all = append(all, shots...)
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	for _, s := range all {
		worst = max(worst, s.others)
	}
	return medianOf(all, func(s loadResult) float64 { return s.others }), worst
}

// describeMachine is one line; a fact that the system does not tell is "unknown".
func describeMachine() string {
	cpu := "unknown"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	kernel := "unknown"
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		kernel = unix.ByteSliceToString(name.Release[:])
	}
	average, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(average), " ")
	return fmt.Sprintf("%s, %d CPUs, kernel %s, load average at the start %s, %s", cpu, runtime.NumCPU(), kernel, load, runtime.Version())
}
