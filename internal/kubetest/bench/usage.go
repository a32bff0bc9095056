// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A tick is the unit of CPU time in /proc/PID/stat: USER_HZ is 100 on every architecture Go has a Linux port for.
const tick = 10 * time.Millisecond

// cpuTime is the user and system time that a process has used so far, that of children it has waited for included.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading CPU time: %w", err)
	}
	return parseStat(string(text))
}

// parseStat adds utime, stime, cutime and cstime, fields 14 to 17 of /proc/PID/stat (proc(5)).
func parseStat(stat string) (time.Duration, error) {
	// The program's name, field 2, is in parentheses and may itself hold spaces and parentheses.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("reading CPU time: %d fields", len(fields))
	}
	var sum time.Duration
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading CPU time: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// machineTime reads how much CPU time has passed so far on all CPUs, and how much of it anyone used.
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
		all += time.Duration(n) * tick
		if idle := i == 3 || i == 4; !idle {
			busy += time.Duration(n) * tick
		}
	}
	return busy, all, nil
}

// memory is what a process has resident, in MiB.
type memory struct {
	now, peak float64
}

func memoryOf(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("reading memory: %w", err)
	}
	return parseStatus(string(text))
}

// parseStatus reads the lines VmRSS and VmHWM of /proc/PID/status. A process that has ended has neither.
func parseStatus(status string) (memory, error) {
	var m memory
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) != 3 || (fields[0] != "VmRSS:" && fields[0] != "VmHWM:") {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return memory{}, fmt.Errorf("reading memory: %w", err)
		}
		if fields[0] == "VmRSS:" {
			m.now = kib / 1024
		} else {
			m.peak = kib / 1024
		}
	}
	if m.now == 0 || m.peak == 0 {
		return memory{}, fmt.Errorf("reading memory: the process has none")
	}
	return m, nil
}
