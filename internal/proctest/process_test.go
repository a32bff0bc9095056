// SPDX-License-Identifier: Apache-2.0

package proctest_test

import (
	"errors"
	"os/exec"
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
		// Members that init has not yet collected are still there for a moment.
		t.Log("a member of the group awaits collection")
	}
}
