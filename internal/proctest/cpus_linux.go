// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// ownCPU is the agent's own in Apart.
const ownCPU = 0

// Apart leaves a CPU to the agent, if there are others for this process and the servers that it starts: those that ask an
// agent and those that it asks are other machines, and on one CPU with them a reply waits for its turn longer than for all
// else.
func Apart(t *testing.T) {
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

// Alone is the command line of a program that has the CPU which Apart leaves to it, and no other. It goes before others there
// as far as this user may say so.
func Alone(name string, args ...string) []string {
	return append([]string{"nice", "-n", "-10", "taskset", "-c", strconv.Itoa(ownCPU), name}, args...)
}

// pin has every thread of this process, and with them those that come, run on the CPUs.
func pin(t *testing.T, cpus *unix.CPUSet) {
	t.Helper()
	for range 2 { // a thread that begins meanwhile has the CPUs of the one that began it
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatalf("listing threads: %v", err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err == nil {
				_ = unix.SchedSetaffinity(id, cpus) // it may have ended
			}
		}
	}
}
