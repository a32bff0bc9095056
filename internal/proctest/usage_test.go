// SPDX-License-Identifier: Apache-2.0

package proctest_test

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestUsageCountsChildren uses CPU time in a child that ends, and memory in one that runs.
func TestUsageCountsChildren(t *testing.T) {
	t.Parallel()
	script := `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 60 & wait`
	p := proctest.Start(t, "shell", exec.Command("sh", "-c", script))
	var u proctest.Usage
	proctest.Eventually(t, 20*time.Second, "the child's CPU time is counted", func() bool {
		var err error
		if u, err = proctest.UsageOf(p.PID()); err != nil {
			t.Fatal(err)
		}
		return u.CPU >= 2*proctest.Tick && len(proctest.Tree(p.PID())) == 2
	})
	if u.RSS <= 0 || u.Peak < u.RSS {
		t.Errorf("memory: got %+v", u)
	}
	p.Kill()
	if _, err := proctest.UsageOf(p.PID()); err == nil {
		t.Error("the usage of a process that has ended: no error")
	}
}

func TestMachineTime(t *testing.T) {
	t.Parallel()
	busy, all, err := proctest.MachineTime()
	if err != nil || busy <= 0 || all < busy {
		t.Errorf("MachineTime = %s, %s, %v", busy, all, err)
	}
}

func TestPin(t *testing.T) {
	t.Parallel()
	var all, one, got unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	p := proctest.Start(t, "sleep", exec.Command("sleep", "60"))
	if err := proctest.Pin(p.PID(), &one); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedGetaffinity(p.PID(), &got); err != nil || got != one {
		t.Errorf("it runs on the CPUs %v, %v, want %v", got, err, one)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	polite := proctest.Start(t, "polite", exec.Command("sleep", "60"))
	polite.Stop(time.Minute)
	if err := polite.Err(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("after Stop: %v, want that it ended by SIGTERM", err)
	}
	stubborn := proctest.Start(t, "stubborn", exec.Command("sh", "-c", `trap "" TERM; echo ready; while :; do sleep 1; done`))
	proctest.Eventually(t, 10*time.Second, "it ignores SIGTERM", func() bool { return stubborn.Tail(1) == "ready" })
	stubborn.Stop(50 * time.Millisecond)
	if err := stubborn.Err(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("after Stop of a program that ignores SIGTERM: %v, want that it was killed", err)
	}
}

func TestLaunchReportsAMissingProgram(t *testing.T) {
	t.Parallel()
	if _, err := proctest.Launch("server", exec.Command("/nonexistent/server")); err == nil {
		t.Error("no error")
	}
}
