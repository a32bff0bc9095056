// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

const (
	hosts      = 1000    // names that exist in the upstream's zone, and services of the cluster
	externals  = 302     // names that clients of a cluster ask with a search suffix
	zipfLines  = 20_000  // queries in the lists that dnsperf repeats
	missPerSec = 250_000 // names made for each second of the miss load: more than one core can ask
)

// Names that exist, for the question whether a server answers.
const (
	upstreamHost = "svc-0.ns-0.bench.test"
	zoneHost     = "svc-0.ns-0" + clusterSuffix
)

// A load is one way to query: which list, by which transport, and what every answer has to be.
type load struct {
	name  string // on the command line and in files
	title string // in the report
	list  string // file of queries in the run's folder
	rcode string // of a right answer
	tcp   bool
	once  bool // a query asked twice would spoil the load
	way   way  // of the servers' start; with inZone the names are the cluster's
}

// loads returns every load, in the order in which they run. The misses come last: they fill a cache, and one that
// takes nothing new while it is full (dnsdist's, which keeps answers for TCP apart) would forward the hits of the next load.
// Each way of starting the servers begins with an empty cache.
func loads() []load {
	return []load{
		{name: "hit", title: "Hit, UDP", list: "hit", rcode: "NOERROR"},
		{name: "nx", title: "NXDOMAIN hit, UDP", list: "nx", rcode: "NXDOMAIN"},
		{name: "tcp", title: "Hit, TCP, pipelined", list: "hit", rcode: "NOERROR", tcp: true},
		{name: "miss", title: "Miss, UDP", list: "miss", rcode: "NOERROR", once: true},
		{name: "misstcp", title: "Miss, UDP, the upstream over TCP", list: "miss", rcode: "NOERROR", once: true, way: overTCP},
		{name: "cluster", title: "Cluster zone: address of a service, UDP", list: "cluster", rcode: "NOERROR", way: inZone},
		{name: "absent", title: "Cluster zone: denial, UDP", list: "absent", rcode: "NXDOMAIN", way: inZone},
	}
}

func loadNames() []string {
	all := loads()
	names := make([]string, len(all))
	for i, l := range all {
		names[i] = l.name
	}
	return names
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
	cluster := w.services(hit)
	files := map[string][]string{
		"zone": w.zone(),
		"hit":  queries(hit),
		"nx":   queries(nx),
		"warm": queries(append(unique(nx), w.names...)),

		"cluster": queries(cluster),
		"absent":  queries(w.searches()),
	}
	for name, lines := range files {
		if err := writeLines(filepath.Join(dir, name), lines); err != nil {
			return err
		}
	}
	if err := writeManifests(filepath.Join(dir, manifestsDir)); err != nil {
		return err
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

// hits asks for the hosts by a Zipf law with exponent 1: what clients of a cluster ask is skewed.
func (w *workload) hits() []string {
	cumulative := make([]float64, len(w.names))
	sum := 0.0
	for i := range cumulative {
		sum += 1 / float64(i+1)
		cumulative[i] = sum
	}
	names := make([]string, zipfLines)
	for i := range names {
		at := w.rand.Float64() * sum
		k := 0
		for k < len(cumulative)-1 && cumulative[k] < at {
			k++
		}
		names[i] = w.names[k]
	}
	return names
}

// denials asks for external names with a cluster's search suffix behind them: what ndots:5 makes of every look-up.
func (w *workload) denials() []string {
	names := make([]string, zipfLines)
	for i := range names {
		names[i] = w.external() + ".default.svc" + upstreamSuffix
	}
	return names
}

// external is a name that clients of a cluster ask with a search suffix.
func (w *workload) external() string { return fmt.Sprintf("h%d.example.net", w.rand.IntN(externals)) }

// writeMisses writes n names that no one asked before.
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
