// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A tick is the unit of CPU time in /proc/PID/stat: USER_HZ is 100 on every architecture Go has a Linux port for.
const tick = 10 * time.Millisecond

// cpuTime is the user and system time that the tree of pid has used so far, that of children it has waited for included:
// a server may fork for each TCP connection.
func cpuTime(pid int) (time.Duration, error) {
	var sum time.Duration
	err := walkTree(pid, func(pid int) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		used, err := parseStat(string(text))
		sum += used
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading CPU time: %w", err)
	}
	return sum, nil
}

// parseStat adds utime, stime, cutime and cstime, fields 14 to 17 of /proc/PID/stat (proc(5)).
func parseStat(stat string) (time.Duration, error) {
	// The program's name, field 2, is in parentheses and may itself hold spaces and parentheses.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("reading a process's stat: %d fields", len(fields))
	}
	var sum time.Duration
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading a process's stat: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// residentMiB is the resident memory of the tree of pid, in MiB.
func residentMiB(pid int) (float64, error) {
	var sum float64
	err := walkTree(pid, func(pid int) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return err
		}
		kib, err := parseRSS(string(text))
		sum += float64(kib) / 1024
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading memory: %w", err)
	}
	if sum == 0 {
		return 0, fmt.Errorf("reading memory: process %d has none", pid)
	}
	return sum, nil
}

// parseRSS reads the line "VmRSS: N kB" of /proc/PID/status. A process that has ended but was not waited for has no such line.
func parseRSS(status string) (kib int64, err error) {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "VmRSS:" {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, nil
}

// walkTree calls visit for pid, which has to exist, and for its children, which may end in between.
func walkTree(pid int, visit func(pid int) error) error {
	if err := visit(pid); err != nil {
		return err
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			if err := walkTree(child, visit); err != nil && !gone(err) {
				return err
			}
		}
	}
	return nil
}

// gone reports whether an error of /proc means that the process has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
