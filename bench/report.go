// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A report is everything one run found; it is what --json writes.
type report struct {
	Machine machine  `json:"machine"`
	Seconds int      `json:"seconds"` // of each load
	Rounds  int      `json:"rounds"`
	Loads   []string `json:"loads"`
	Binary  binary   `json:"binary"`
	Results []result `json:"results"`
}

// A binary is the stripped size of node-cache, or why it is not known.
type binary struct {
	Bytes   int64  `json:"bytes"`
	Skipped string `json:"skipped,omitempty"`
}

// A result is one subject's row.
type result struct {
	Name    string              `json:"name"`
	Version string              `json:"version,omitempty"`
	Skipped string              `json:"skipped,omitempty"` // why it was not started at all
	Notes   []note              `json:"notes,omitempty"`
	IdleMiB []float64           `json:"idle_mib,omitempty"`
	Samples map[string][]sample `json:"samples,omitempty"` // by load, one a round
}

// A note is what went wrong in a round.
type note struct {
	Round int    `json:"round"`
	Load  string `json:"load,omitempty"` // empty: the server gave no load of the round
	Why   string `json:"why"`
}

// String is the note as a reader of the report sees it.
func (n note) String() string {
	if n.Load == "" {
		return fmt.Sprintf("round %d: %s", n.Round, n.Why)
	}
	return fmt.Sprintf("round %d, %s: %s", n.Round, n.Load, n.Why)
}

// oneLine is an error's text for a table: joined errors have a line each.
func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// A sample is one load of one round.
type sample struct {
	QPS       float64 `json:"qps"`        // answers per second
	CPU       float64 `json:"cpu_us"`     // the server's CPU per answer, µs
	Busy      float64 `json:"busy"`       // share of its core that the server used
	Latency   float64 `json:"latency_us"` // mean, µs
	MiB       float64 `json:"rss_mib"`    // resident memory at the end of the load
	Completed int64   `json:"completed"`  // queries answered
	Lost      int64   `json:"lost"`       // queries not answered within the time-out
	Wrong     int64   `json:"wrong"`      // answers with another response code than the right one
	Others    float64 `json:"others"`     // share of both CPUs that went to what is no part of the benchmark
}

// The least CPU time that makes a sample: the kernel counts in ticks of 10 ms.
const leastCPU = 10 * tick

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

// A figure is the medians of one subject under one load; what was lost or wrong is summed over the rounds.
type figure struct {
	sample

	minCPU, maxCPU float64 // of the rounds
}

// figure returns the medians of a load, and false where there is no sample.
func (r result) figure(load string) (figure, bool) {
	samples := r.Samples[load]
	if len(samples) == 0 {
		return figure{}, false
	}
	mid := func(of func(sample) float64) float64 {
		values := make([]float64, 0, len(samples))
		for _, s := range samples {
			values = append(values, of(s))
		}
		return median(values)
	}
	f := figure{minCPU: math.Inf(1)}
	f.QPS = mid(func(s sample) float64 { return s.QPS })
	f.CPU = mid(func(s sample) float64 { return s.CPU })
	f.Busy = mid(func(s sample) float64 { return s.Busy })
	f.Latency = mid(func(s sample) float64 { return s.Latency })
	f.MiB = mid(func(s sample) float64 { return s.MiB })
	for _, s := range samples {
		f.Completed += s.Completed
		f.Lost += s.Lost
		f.Wrong += s.Wrong
		f.minCPU, f.maxCPU = min(f.minCPU, s.CPU), max(f.maxCPU, s.CPU)
	}
	return f, true
}

// find returns the row of a name.
func (r report) find(name string) (result, bool) {
	i := slices.IndexFunc(r.Results, func(row result) bool { return row.Name == name })
	if i < 0 {
		return result{}, false
	}
	return r.Results[i], true
}

// others is the share of both CPUs that went to strangers: the median of all samples and the worst of them.
func (r report) others() (mid, worst float64) {
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

// peers are the rows that are neither the floor nor node-cache.
func (r report) peers() []result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(row result) bool {
		return row.Name == floorName || row.Name == oursName
	})
}

// median is the middle value, or the mean of the two in the middle; values is not empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// writeJSON writes the report with every sample.
func writeJSON(path string, rep report) error {
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	return replaceFile(path, string(text)+"\n")
}

// replaceFile writes a file whole or not at all.
func replaceFile(path, text string) error {
	part, err := os.CreateTemp(filepath.Dir(path), ".bench-*")
	if err != nil {
		return fmt.Errorf("creating %s: %w", filepath.Base(path), err)
	}
	defer func() { _ = os.Remove(part.Name()) }() // fails once renamed, as it should
	_, err = part.WriteString(text)
	if err := errors.Join(err, part.Chmod(0o644), part.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(part.Name(), path); err != nil {
		return fmt.Errorf("replacing %s: %w", filepath.Base(path), err)
	}
	return nil
}
