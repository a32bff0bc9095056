// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDropsCapabilities looks at every thread of a plain agent that root started. It needs no right any more.
func TestDropsCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only a process of root has capabilities to drop")
	}
	a := startAgent(t, settings{to: []string{startScripted(t, answerA)}})
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.PID()))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %v: %v", threads, err)
	}
	none := regexp.MustCompile(`(?s)CapInh:\t0{16}\nCapPrm:\t0{16}\nCapEff:\t0{16}\nCapBnd:\t0{16}\nCapAmb:\t0{16}\nNoNewPrivs:\t1\n`)
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		if !none.Match(status) {
			t.Errorf("%s has capabilities:\n%s", thread, regexp.MustCompile(`(?m)^(Cap|NoNew).*`).FindAllString(string(status), -1))
		}
	}
}
