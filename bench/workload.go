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
	hosts      = 1000    // names that exist in the upstream's zone, and services of the cluster
	externals  = 302     // names that clients of a cluster ask with a search suffix
	zipfLines  = 20_000  // queries in the lists that dnsperf repeats
	missPerSec = 250_000 // names made for each second of the miss load: more than one core can ask
)

// The cluster of the zone's loads: services with one address each, in a folder of YAML objects.
const (
	manifestsDir = "manifests"
	namespaces   = 20

	upstreamSuffix = ".bench.test"
	clusterSuffix  = ".svc.cluster.local"
)

// Names that exist, for the question whether a server answers.
const (
	upstreamHost = "svc-0.ns-0.bench.test"
	zoneHost     = "svc-0.ns-0" + clusterSuffix
)

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
		names[i] = w.external() + ".default.svc" + upstreamSuffix
	}
	return names
}

// external is a name that clients of a cluster ask with a search suffix.
func (w *workload) external() string { return external(w.rand) }

func external(random *rand.Rand) string {
	return fmt.Sprintf("h%d.example.net", random.IntN(externals))
}

// services turns the hosts of hit queries into the services of the same rank: the skew stays.
func (w *workload) services(hits []string) []string {
	names := make([]string, len(hits))
	for i, name := range hits {
		names[i] = strings.TrimSuffix(name, upstreamSuffix) + clusterSuffix
	}
	return names
}

// searches asks for external names behind each of the three suffixes that a pod's search list has, in turn: what one
// look-up of an external name brings to a server of the cluster's zone.
func (w *workload) searches() []string {
	names := make([]string, 0, zipfLines)
	for len(names) < zipfLines {
		external := w.external()
		for _, suffix := range []string{".default.svc.cluster.local", ".svc.cluster.local", ".cluster.local"} {
			names = append(names, external+suffix)
		}
	}
	return names
}

// writeManifests writes a file for each namespace, with its services.
func writeManifests(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	for n := range namespaces {
		documents := []string{fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: ns-%d}\n", n)}
		for i := n; i < hosts; i += namespaces {
			documents = append(documents, service(i))
		}
		path := filepath.Join(dir, fmt.Sprintf("ns-%d.yaml", n))
		if err := os.WriteFile(path, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
			return fmt.Errorf("writing a manifest: %w", err)
		}
	}
	return nil
}

func service(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: svc-%d, namespace: ns-%d}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: http, port: 80}, {name: metrics, port: 9090}]
`, i, i%namespaces, i>>8, i&255)
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
