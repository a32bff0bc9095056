// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// A Process is a started program in its own process group, which ends with the test.
type Process struct {
	Name   string
	Stdout Output
	Stderr Output

	cmd  *exec.Cmd
	done chan struct{} // closed once the program has ended
	err  error         // how it ended; to be read once done is closed
}

// Start starts cmd under a name. A failing test shows its output.
func Start(t *testing.T, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.Stdout, &p.Stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() { // joined by Kill
		// The kernel kills the program when the thread that started it ends. This goroutine keeps its thread: others
		// may end with a goroutine that entered a network namespace.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			// Kill its children too: later their group ID may belong to others.
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote to stdout:\n%s\nand to stderr:\n%s", name, p.Stdout.tail(), p.Stderr.tail())
		}
		p.Kill()
	})
	return p
}

// PID is the program's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the whole group, because servers fork. It does nothing after the group has ended. After
// SIGSTOP it returns once the program is stopped.
func (p *Process) Signal(s syscall.Signal) {
	if p.Ended() {
		return
	}
	if syscall.Kill(-p.PID(), s) == nil && s == syscall.SIGSTOP {
		_ = paused(p.PID()) // its error concerns the wait, not the program
	}
}

// Kill ends the group at once, even if it is stopped, and waits for it.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Err returns how the program ended; nil while it runs.
func (p *Process) Err() error {
	if !p.Ended() {
		return nil
	}
	return p.err
}

// Wait waits for the program to exit and returns its error. It fails the test after limit.
func (p *Process) Wait(t *testing.T, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit) // also in a clean-up
	defer cancel()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		t.Fatalf("%s still runs after %s", p.Name, limit)
		return nil
	}
}
