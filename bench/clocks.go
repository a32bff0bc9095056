// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clocks is the CPU time that was used up to one moment.
type clocks struct {
	server   time.Duration // by the server under test
	upstream time.Duration // by NSD
	busy     time.Duration // by anyone, on all CPUs, time stolen by a hypervisor included
	all      time.Duration // busy or idle
}

// othersSince is the share of all CPU time since before that went to neither server, upstream nor load generator.
//
// The kernel books the machine's time and a process's by different means: the difference is good to a few percent.
func (c clocks) othersSince(before clocks, generator time.Duration) float64 {
	all := c.all - before.all
	if all <= 0 {
		return 0
	}
	ours := c.server - before.server + c.upstream - before.upstream + generator
	return max(0, float64(c.busy-before.busy-ours)/float64(all))
}

// machineTime reads the first line of /proc/stat.
func machineTime() (busy, all time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("reading CPU time: %w", err)
	}
	return parseMachineTime(string(text))
}

// parseMachineTime adds the columns of the line "cpu" (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal.
// The two guest columns behind are part of the first two.
func parseMachineTime(stat string) (busy, all time.Duration, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("reading CPU time: line %q", line)
	}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading CPU time: %w", err)
		}
		spent := time.Duration(n) * tick
		all += spent
		if idle := i == 3 || i == 4; !idle {
			busy += spent
		}
	}
	return busy, all, nil
}
