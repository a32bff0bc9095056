// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestStartPins(t *testing.T) {
	t.Parallel()
	if err := needTwoCPUs(); err != nil {
		t.Skip(err)
	}
	for _, cpu := range []int{serverCPU, loadCPU} {
		p, err := start(t.Context(), cpu, t.TempDir(), []string{"sleep", "60"})
		if err != nil {
			t.Fatal(err)
		}
		var want, got unix.CPUSet
		want.Set(cpu)
		err = unix.SchedGetaffinity(p.pid(), &got)
		p.stop()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("affinity (-want +got):\n%s", diff)
		}
		if !p.exited() {
			t.Error("the process runs after stop")
		}
	}
}

// TestStopEndsTheGroup stops a shell whose child ignores SIGTERM.
func TestStopEndsTheGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := start(t.Context(), serverCPU, dir, []string{"sh", "-c", `sh -c 'trap "" TERM; echo $$ >child; exec sleep 60' & wait`})
	if err != nil {
		t.Fatal(err)
	}
	child := awaitPID(t, dir+"/child")
	p.stop()
	// Killed, the child is a zombie of whoever adopted it or gone; neither can be sent to work again.
	deadline := time.Now().Add(5 * time.Second)
	for running(child) {
		if time.Now().After(deadline) {
			t.Fatalf("child %d still runs", child)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	p, err := start(t.Context(), serverCPU, t.TempDir(), []string{"sh", "-c", "echo one; echo cannot bind; echo"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	if got, want := p.lastWords(), "cannot bind"; got != want {
		t.Errorf("lastWords = %q, want %q", got, want)
	}
}

func TestStartReportsAMissingProgram(t *testing.T) {
	t.Parallel()
	if _, err := start(t.Context(), serverCPU, t.TempDir(), []string{"/nonexistent/server"}); err == nil {
		t.Error("start: no error")
	}
}

// TestCPUTimeCountsChildren burns CPU in a child that has ended, as a server does that forks for a connection.
func TestCPUTimeCountsChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo $$ >child; sleep 60`
	p, err := start(t.Context(), serverCPU, dir, []string{"sh", "-c", script})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	awaitPID(t, dir+"/child")
	used, err := cpuTime(p.pid())
	if err != nil {
		t.Fatal(err)
	}
	if used < 2*tick {
		t.Errorf("cpuTime = %s for a loop of 300,000 steps in a child", used)
	}
	mib, err := residentMiB(p.pid())
	if err != nil || mib <= 0 {
		t.Errorf("residentMiB = %v, %v", mib, err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 5 7 11 13 20 0 1 0 999 1 1"
	got, err := parseStat(line)
	if want := 36 * tick; err != nil || got != want {
		t.Errorf("parseStat = %s, %v, want %s", got, err, want)
	}
	for _, bad := range []string{"", "42 (x) S 1 2", "42 (x) S 1 42 42 0 -1 0 100 0 0 0 five 7 11 13 20"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q): no error", bad)
		}
	}
}

func TestParseMachineTime(t *testing.T) {
	t.Parallel()
	busy, all, err := parseMachineTime("cpu  100 10 50 800 40 3 7 20 90 5\ncpu0 1 2\n")
	if wantBusy, wantAll := 190*tick, 1030*tick; err != nil || busy != wantBusy || all != wantAll {
		t.Errorf("parseMachineTime = %s, %s, %v, want %s, %s", busy, all, err, wantBusy, wantAll)
	}
	for _, bad := range []string{"", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 3", "cpu 1 2 3 4 x 6 7 8"} {
		if _, _, err := parseMachineTime(bad); err == nil {
			t.Errorf("parseMachineTime(%q): no error", bad)
		}
	}
}

func TestOthersSince(t *testing.T) {
	t.Parallel()
	before := clocks{server: time.Second, upstream: time.Second, busy: 5 * time.Second, all: 100 * time.Second}
	tests := []struct {
		name  string
		after clocks
		want  float64
	}{
		{
			name:  "a fifth for others",
			after: clocks{server: 4 * time.Second, upstream: 2 * time.Second, busy: 13 * time.Second, all: 110 * time.Second},
			want:  0.2, // 8 s busy: 3 s server, 1 s upstream, 2 s generator, 2 s others, of 10 s
		},
		{
			name:  "booked by two means, below nothing",
			after: clocks{server: 6 * time.Second, upstream: 2 * time.Second, busy: 12 * time.Second, all: 110 * time.Second},
			want:  0,
		},
		{name: "no time between", after: before, want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.after.othersSince(before, 2*time.Second); got != tt.want {
				t.Errorf("othersSince = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestParseRSS(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, status string
		want         int64
	}{
		{name: "running", status: "Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t1\n", want: 2048},
		{name: "ended", status: "Name:\tx\nState:\tZ (zombie)\n", want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, err := parseRSS(tt.status); err != nil || got != tt.want {
				t.Errorf("parseRSS = %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

// awaitPID waits until a script has written a process number.
func awaitPID(t *testing.T, path string) int {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		text, err := os.ReadFile(path)
		if number, whole := strings.CutSuffix(string(text), "\n"); err == nil && whole {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s was not written", path)
	return 0
}

// running reports whether a process exists and is no zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	memory, err := residentMiB(pid) // a zombie has none
	return err == nil && memory > 0
}
