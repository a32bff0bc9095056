// SPDX-License-Identifier: Apache-2.0

package proctest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

func TestProcess(t *testing.T) {
	t.Parallel()
	p := proctest.Start(t, "shell", exec.Command("sh", "-c", "echo to stdout; echo to stderr >&2; exit 3"))
	var exit *exec.ExitError
	if err := p.Wait(t, 10*time.Second); !errors.As(err, &exit) || exit.ExitCode() != 3 || !p.Ended() {
		t.Errorf("it ended with %v, want exit status 3", err)
	}
	if out, errs := p.Stdout.String(), p.Stderr.String(); out != "to stdout\n" || errs != "to stderr\n" {
		t.Errorf("it wrote %q and %q", out, errs)
	}
}

func TestKillEndsTheGroup(t *testing.T) {
	t.Parallel()
	p := proctest.Start(t, "shell", exec.Command("sh", "-c", "sleep 1000 & wait"))
	if p.Ended() || p.Err() != nil {
		t.Fatalf("it ended at once: %v", p.Err())
	}
	p.Kill()
	if err := p.Err(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
	if err := syscall.Kill(-p.PID(), 0); err == nil {
		// Init may not have collected the members yet.
		t.Log("a member of the group awaits collection")
	}
}

// TestPause checks the wait after SIGSTOP: without it threads are seen running within a few rounds.
func TestPause(t *testing.T) {
	t.Parallel()
	p := proctest.Start(t, "busy", busy())
	threads := filepath.Join("/proc", strconv.Itoa(p.PID()), "task", "*", "stat")
	proctest.Eventually(t, 10*time.Second, "it has threads", func() bool {
		found, err := filepath.Glob(threads)
		return err == nil && len(found) > busyThreads
	})
	for round := range 300 {
		if err := proctest.Pause(p.PID()); err != nil {
			t.Fatal(err)
		}
		if states := threadStates(t, threads); strings.Trim(states, "T") != "" {
			t.Fatalf("round %d: its threads are in the states %s, want T for each", round, states)
		}
		p.Signal(syscall.SIGCONT)
	}
	p.Kill()
	if err := proctest.Pause(p.PID()); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("pausing what has ended: got %v, want %v", err, syscall.ESRCH)
	}
}

// threadStates returns one letter for each of a program's threads, as in /proc.
func threadStates(t *testing.T, glob string) string {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil {
		t.Fatal(err)
	}
	var states strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
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
