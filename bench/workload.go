// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	hosts      = 1000    // names that exist in the upstream's zone
	externals  = 302     // names that clients of a cluster ask with a search suffix
	zipfLines  = 20_000  // queries in the lists that dnsperf repeats
	missPerSec = 250_000 // names made for each second of the miss load: more than one core can ask
)

// The names of the upstream's zone end in upstreamSuffix. One exists, for the question whether a server answers.
const (
	namespaces     = 20
	upstreamSuffix = ".bench.test"
	upstreamHost   = "svc-0.ns-0" + upstreamSuffix
)

// loads returns every load, in the order in which they run. The misses come last: they fill a cache, and one that
// takes nothing new while it is full (dnsdist's, which keeps answers for TCP apart) would forward the hits of the next load.
// Each way of starting the servers begins with an empty cache.
func loads() []load {
	return []load{
		{name: "hit", title: "hit", list: "hit", rcode: "NOERROR"},
		{name: "nx", title: "NXDOMAIN hit", list: "nx", rcode: "NXDOMAIN"},
		{name: "tcp", title: "hit, TCP", list: "hit", rcode: "NOERROR", tcp: true},
		{name: "miss", title: "miss", list: "miss", rcode: "NOERROR", once: true},
		{name: "misstcp", title: "miss, over TCP", list: "miss", rcode: "NOERROR", once: true, overTCP: true},
	}
}

// A workload writes the zone and the lists of queries, the same ones each time.
type workload struct {
	rand  *rand.Rand
	names []string // hosts of the zone, the most popular first
}

func newWorkload() *workload {
	w := &workload{rand: rand.New(rand.NewPCG(1, 0))}
	for i := range hosts {
		w.names = append(w.names, fmt.Sprintf("svc-%d.ns-%d", i, i%namespaces)+upstreamSuffix)
	}
	return w
}

// write puts the zone and the lists into dir; the list of misses lasts for the given seconds.
func (w *workload) write(dir string, seconds int) error {
	hit, nx := w.hits(), w.denials()
	files := map[string][]string{
		"zone": w.zone(),
		"hit":  queries(hit),
		"nx":   queries(nx),
		"warm": queries(append(unique(nx), w.names...)),
	}
	for name, lines := range files {
		if err := writeLines(filepath.Join(dir, name), lines); err != nil {
			return err
		}
	}
	return w.writeMisses(filepath.Join(dir, "miss"), missLines(seconds))
}

// missLines is the length of the list of misses for a load of that many seconds.
func missLines(seconds int) int { return seconds * missPerSec }

// zone is the upstream's zone: every host, and a wildcard under which each miss finds an address.
func (w *workload) zone() []string {
	addresses := make([]string, len(w.names))
	for i, name := range w.names {
		addresses[i] = fmt.Sprintf("%s. A 10.0.%d.%d", name, i>>8, i&255)
	}
	return append([]string{
		"$ORIGIN bench.test.", "$TTL 300",
		"@ SOA ns h 1 3600 600 86400 300", "@ NS ns", "ns A 127.0.0.1", "*.miss A 10.9.9.9",
	}, addresses...)
}

// hits asks for the hosts by Zipf's law: what clients of a cluster ask is skewed.
func (w *workload) hits() []string {
	draw := newZipf(w.rand, len(w.names))
	names := make([]string, zipfLines)
	for i := range names {
		names[i] = w.names[draw.rank()]
	}
	return names
}

// A zipf draws ranks from 0 by Zipf's law with exponent 1.
type zipf struct {
	random     *rand.Rand
	cumulative []float64
}

func newZipf(random *rand.Rand, n int) *zipf {
	z := &zipf{random: random, cumulative: make([]float64, n)}
	sum := 0.0
	for i := range z.cumulative {
		sum += 1 / float64(i+1)
		z.cumulative[i] = sum
	}
	return z
}

func (z *zipf) rank() int {
	last := len(z.cumulative) - 1
	i, _ := slices.BinarySearch(z.cumulative, z.random.Float64()*z.cumulative[last])
	return min(i, last)
}

// denials asks for external names with a cluster's search suffix behind them: what ndots:5 makes of every look-up.
func (w *workload) denials() []string {
	names := make([]string, zipfLines)
	for i := range names {
		names[i] = external(w.rand) + ".default.svc" + upstreamSuffix
	}
	return names
}

func external(random *rand.Rand) string {
	return fmt.Sprintf("h%d.example.net", random.IntN(externals))
}

// writeMisses writes n names that were never asked before.
func (w *workload) writeMisses(path string, n int) error {
	return writeTo(path, func(out *bufio.Writer) error {
		for i := range n {
			if _, err := fmt.Fprintf(out, "u%d-%d.miss.bench.test A\n", i, w.rand.Uint64N(1<<40)); err != nil {
				return err
			}
		}
		return nil
	})
}

// queries turns names into lines of dnsperf's input.
func queries(names []string) []string {
	lines := make([]string, len(names))
	for i, name := range names {
		lines[i] = name + " A"
	}
	return lines
}

// unique returns the names without repeats, in the order of their first appearance.
func unique(names []string) []string {
	seen := make(map[string]bool)
	var kept []string
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			kept = append(kept, name)
		}
	}
	return kept
}

func writeLines(path string, lines []string) error {
	return writeTo(path, func(out *bufio.Writer) error {
		_, err := out.WriteString(strings.Join(lines, "\n") + "\n")
		return err
	})
}

// writeTo creates a file with what fill writes.
func writeTo(path string, fill func(*bufio.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("creating a list: %w", err)
	}
	out := bufio.NewWriterSize(file, 1<<20)
	if err := errors.Join(fill(out), out.Flush(), file.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}
