// SPDX-License-Identifier: Apache-2.0

package proctest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestPause checks the wait after SIGSTOP: without it threads are seen running within a few rounds.
func TestPause(t *testing.T) {
	t.Parallel()
	p := proctest.Start(t, "busy", busy())
	threads := filepath.Join("/proc", strconv.Itoa(p.PID()), "task", "*", "stat")
	proctest.Eventually(t, time.Minute, "it has threads", func() bool {
		found, err := filepath.Glob(threads)
		return err == nil && len(found) > busyThreads
	})
	for round := range 300 {
		p.Signal(syscall.SIGSTOP)
		if states := threadStates(t, threads); strings.Trim(states, "T") != "" {
			t.Fatalf("round %d: its threads are in the states %s, want T for each", round, states)
		}
		p.Signal(syscall.SIGCONT)
	}
}

// threadStates returns one letter for each of a program's threads, as in /proc.
func threadStates(t *testing.T, glob string) string {
	t.Helper()
	files, err := filepath.Glob(glob)
	assert.NoError(t, err)
	var states strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		assert.NoError(t, err)
		_, rest, _ := strings.Cut(string(text), ") ")
		states.WriteByte(rest[0])
	}
	return states.String()
}

// busyEnv makes the test binary keep busyThreads threads running, and do nothing else.
const (
	busyEnv     = "PROCTEST_BUSY"
	busyThreads = 4
)

func busy() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), busyEnv+"=1", "GOMAXPROCS="+strconv.Itoa(busyThreads))
	return cmd
}

func TestMain(m *testing.M) {
	if os.Getenv(busyEnv) != "" {
		var work atomic.Uint64
		for range busyThreads {
			go func() {
				for {
					work.Add(1)
				}
			}()
		}
		select {}
	}
	os.Exit(m.Run())
}
