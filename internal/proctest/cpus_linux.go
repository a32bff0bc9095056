// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// ownCPU is the CPU that ReserveCPU reserves for the agent.
const ownCPU = 0

// ReserveCPU reserves one CPU for the agent if this process may use others. Clients and upstreams of the agent stand
// for other machines: on the same CPU they would delay its replies.
func ReserveCPU(t *testing.T) {
	t.Helper()
	var all, others unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatalf("asking for the CPUs: %v", err)
	}
	if others = all; all.Count() < 2 || !all.IsSet(ownCPU) {
		t.Log("this machine has no CPU for the agent alone")
		return
	}
	others.Clear(ownCPU)
	pin(t, &others)
	t.Cleanup(func() { pin(t, &all) })
}

// ReservedCPUCommand returns the command line that runs a program on the reserved CPU only, with a higher priority if
// this user may set one.
func ReservedCPUCommand(name string, args ...string) []string {
	return append([]string{"nice", "-n", "-10", "taskset", "-c", strconv.Itoa(ownCPU), name}, args...)
}

// pin restricts this process to the CPUs.
func pin(t *testing.T, cpus *unix.CPUSet) {
	t.Helper()
	if err := Pin(os.Getpid(), cpus); err != nil {
		t.Fatal(err)
	}
}

// Pin restricts all threads of a process, and those they start, to the CPUs.
func Pin(pid int, cpus *unix.CPUSet) error {
	for range 2 { // a thread that starts meanwhile inherits the CPUs of its parent
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("listing threads: %w", err)
		}
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.SchedSetaffinity(id, cpus) // it may have ended
			}
		}
	}
	return nil
}
