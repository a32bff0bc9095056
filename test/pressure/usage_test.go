// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cpu is the processor time that the agent has taken.
func (a *agent) cpu(t *testing.T) time.Duration {
	t.Helper()
	took, err := cpuOf(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// cpuOf is the processor time that a process has taken.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system, tick = 11, 12, 10 * time.Millisecond
	inUser, err := strconv.ParseInt(fields[user], 10, 64)
	inSystem, err2 := strconv.ParseInt(fields[system], 10, 64)
	return time.Duration(inUser+inSystem) * tick, errors.Join(err, err2)
}

// readOf is how many bytes were read from disks for a process, those included that the kernel has read ahead.
func readOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nread_bytes: ")
	value, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseInt(value, 10, 64)
}

// A usage is what a process has taken so far.
type usage struct {
	cpu  time.Duration
	read int64 // bytes, from disks
}

func usageOf(pid int) (u usage, err error) {
	if u.cpu, err = cpuOf(pid); err == nil {
		u.read, err = readOf(pid)
	}
	return u, err
}
