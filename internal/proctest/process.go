// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Process is a started program in its own process group. It ends with this process at the latest.
type Process struct {
	Name    string
	Started time.Time // before it ran
	Stdout  Output    // empty if the command had a writer of its own
	Stderr  Output

	cmd  *exec.Cmd
	done chan struct{} // closed once the program has ended
	err  error         // how it ended; to be read once done is closed
}

// Start starts cmd under a name, until the test ends. A failing test shows its output.
func Start(t *testing.T, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := Launch(name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote to stdout:\n%s\nand to stderr:\n%s", name, p.Stdout.tail(), p.Stderr.tail())
		}
		p.Kill()
	})
	return p
}

// Launch starts cmd under a name. The caller stops or kills it.
func Launch(name string, cmd *exec.Cmd) (*Process, error) {
	var p *Process
	started := make(chan error)
	go func() { // joined by Kill
		// The kernel kills the program when the thread that started it ends. This goroutine keeps its thread: others
		// may end with a goroutine that entered a network namespace.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p, err = LaunchHere(name, cmd)
		started <- err
		if err == nil {
			<-p.done
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// LaunchHere is [Launch] from the calling thread, in whose network namespace the program then is. The caller locks the
// thread and keeps it until the program has ended, which ends with the thread.
func LaunchHere(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Started: time.Now(), cmd: cmd, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = &p.Stdout, &p.Stderr
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // a terminal's Ctrl-C does not reach it
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { // joined by Kill
		p.err = cmd.Wait()
		// Kill its children too: later their group ID may belong to others.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		close(p.done)
	}()
	return p, nil
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

// Stop asks the group to end, and kills it if the program still runs after grace.
func (p *Process) Stop(grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGCONT) // a stopped program takes no other signal
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
	}
}

// Kill ends the group at once, even if it is stopped, and waits for it.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Done returns a channel that is closed once the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Await calls ready every pause until it returns nil. It returns an error with the last lines of the program's output
// when the program has ended, and also with ready's last error when ctx has.
func (p *Process) Await(ctx context.Context, pause time.Duration, ready func(context.Context) error) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("waiting for %s: it ended: %s", p.Name, p.Tail(12))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %s", p.Name, err, p.Tail(12))
		case <-ticker.C:
		}
	}
}

// Tail returns the last lines of the output that are not blank.
func (p *Process) Tail(lines int) string {
	var all []string
	for line := range strings.Lines(p.Stdout.String() + p.Stderr.String()) {
		if line = strings.TrimRight(line, " \r\n"); line != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// CPUTime returns the CPU time that the program used until its end, and its children for which it waited.
func (p *Process) CPUTime() time.Duration {
	<-p.done
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
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
