// SPDX-License-Identifier: Apache-2.0

package proctest_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestUsageCountsChildren uses CPU time in a child that ends, and memory in one that runs.
func TestUsageCountsChildren(t *testing.T) {
	t.Parallel()
	script := `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 60 & wait`
	p := proctest.Start(t, "shell", exec.Command("sh", "-c", script))
	var u proctest.Usage
	proctest.Eventually(t, time.Minute, "the child's CPU time is counted", func() bool {
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
