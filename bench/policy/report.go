// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// A grid is the cells of one trace: a row for each contender, a column for each size.
type grid [][]cell

// measure replays the trace through every contender at every size, on all CPUs. Each replay is a task of its own, so
// their order does not matter to the result.
func measure(t *trace, rows []contender, sizes []int) grid {
	g := make(grid, len(rows))
	var tasks sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for r, row := range rows {
		g[r] = make([]cell, len(sizes))
		for s, size := range sizes {
			tasks.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				p := row.build(len(t.sizes), size)
				if row.byName {
					p = denials{policy: p, names: t.names}
				}
				g[r][s] = replay(t, p)
			})
		}
	}
	tasks.Wait()
	return g
}

const mebibyte = 1 << 20

// describe says in one line what the trace asks of a cache.
func describe(t *trace) string {
	f := t.facts()
	return fmt.Sprintf("- *%s*: %d queries in %d s for %d different questions, %.0f %% of them answered by NXDOMAIN. "+
		"One entry for each question takes %.0f MiB; at most %.0f MiB are fresh at once.\n",
		t.name, f.asked, f.asked/rate, f.different, 100*float64(t.denied)/float64(f.asked),
		float64(f.bytes)/mebibyte, float64(f.peak)/mebibyte)
}

// policyTable has hits and evictions of one trace, and the most hits that there can be.
func policyTable(t *trace, rows []contender, sizes []int, g grid, most []cell) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", t.name)
	for _, size := range sizes {
		fmt.Fprintf(&b, " %d MiB: first | last | evicted |", size/mebibyte)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("--:|--:|--:|", len(sizes)))
	for r, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, c := range g[r] {
			fmt.Fprintf(&b, " %s | %s | %d k |", t.percent(c.early), t.percent(c.late), (c.evicted+500)/1000)
		}
		b.WriteByte('\n')
	}
	b.WriteString("| *more than any policy can have* |")
	for _, c := range most {
		fmt.Fprintf(&b, " %s | %s | |", t.percent(c.early), t.percent(c.late))
	}
	b.WriteByte('\n')
	return b.String()
}

// variantTable has the hits of one trace.
func variantTable(t *trace, rows []contender, sizes []int, g grid) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", t.name)
	for _, size := range sizes {
		fmt.Fprintf(&b, " %d MiB: first | last |", size/mebibyte)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("--:|--:|", len(sizes)))
	for r, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, c := range g[r] {
			fmt.Fprintf(&b, " %s | %s |", t.percent(c.early), t.percent(c.late))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// percent is the part of one window's questions that hits were.
func (t *trace) percent(hits int) string {
	return fmt.Sprintf("%.2f", 100*float64(hits)/float64(t.window()))
}
