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

// writeWorkload puts the upstream's zone and the lists of queries into dir, the same ones each time. Hits are asked by Zipf's law:
// what clients of a cluster ask is skewed. The list of misses lasts for the given seconds.
func writeWorkload(dir string, seconds int) error {
	random := rand.New(rand.NewPCG(1, 0))
	draw := newZipf(random, hosts)
	host := func(i int) string { return fmt.Sprintf("svc-%d.ns-%d", i, i%namespaces) + upstreamSuffix }
	denied := func(i int) string { return external(i) + ".default.svc" + upstreamSuffix + " A" } // what ndots:5 makes of every look-up
	return errors.Join(
		writeList(dir, "zone", 1+hosts, func(i int) string {
			if i == 0 { // a miss finds an address under the wildcard
				return "$ORIGIN bench.test.\n$TTL 300\n@ SOA ns h 1 3600 600 86400 300\n@ NS ns\nns A 127.0.0.1\n*.miss A 10.9.9.9"
			}
			return fmt.Sprintf("%s. A 10.0.%d.%d", host(i-1), (i-1)>>8, (i-1)&255)
		}),
		writeList(dir, "hit", zipfLines, func(int) string { return host(draw.rank()) + " A" }),
		writeList(dir, "nx", zipfLines, func(int) string { return denied(random.IntN(externals)) }),
		writeList(dir, "warm", hosts+externals, func(i int) string {
			if i < hosts {
				return host(i) + " A"
			}
			return denied(i - hosts)
		}),
		writeList(dir, "miss", missLines(seconds), func(i int) string {
			return fmt.Sprintf("u%d-%d.miss.bench.test A", i, random.Uint64N(1<<40))
		}),
	)
}

// missLines is the length of the list of misses for a load of that many seconds.
func missLines(seconds int) int { return seconds * missPerSec }

// external is one of the names outside of the cluster.
func external(i int) string { return fmt.Sprintf("h%d.example.net", i) }

// writeList creates a file in dir with the first lines of a list.
func writeList(dir, name string, lines int, line func(i int) string) error {
	file, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("creating a list: %w", err)
	}
	out := bufio.NewWriterSize(file, 1<<20)
	for i := range lines {
		_, _ = out.WriteString(line(i) + "\n") // Flush has the error
	}
	if err := errors.Join(out.Flush(), file.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
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
