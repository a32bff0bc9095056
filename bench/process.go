// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The one CPU for the server under test, the other for what makes its work.
const (
	serverCPU = 0
	loadCPU   = 1
)

// How long a server may take to end after SIGTERM before it is killed.
const grace = 5 * time.Second

// A process is a server in the background: pinned, with its output in a file.
type process struct {
	cmd  *exec.Cmd
	log  string        // path of its output
	done chan struct{} // closed once it has ended
}

// start runs argv on one CPU with its output in dir/log. The caller stops it.
func start(ctx context.Context, cpu int, dir string, argv []string) (*process, error) {
	p := &process{log: filepath.Join(dir, "log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("creating a log: %w", err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	dieWithUs(p.cmd)
	if err := startPinned(p.cmd, cpu); err != nil {
		return nil, fmt.Errorf("starting %s: %w", filepath.Base(argv[0]), err)
	}
	go func() { // joined by stop
		defer close(p.done)
		// How a server under test ends is not judged; that it ended is what done says.
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// dieWithUs has the kernel end the process when this one dies, and keeps a terminal's Ctrl-C from it:
// this program ends its children itself, in order.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
}

// startPinned starts cmd on one CPU: a child inherits the affinity of the thread that forks it, so the
// program counts one CPU from its first instruction on (Go sets GOMAXPROCS by it).
func startPinned(cmd *exec.Cmd, cpu int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("reading the affinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pinning to CPU %d: %w", cpu, err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &before); err == nil && back != nil {
		return fmt.Errorf("restoring the affinity: %w", back)
	}
	return err
}

// pid is the process's number.
func (p *process) pid() int { return p.cmd.Process.Pid }

// exited reports whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process and its children and waits until it is gone.
func (p *process) stop() {
	_ = syscall.Kill(p.pid(), syscall.SIGTERM) // gone already is as good
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	// The group outlives its leader where a server forks workers.
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.done
}

// lastWords is the last line that the process wrote, for a reason why it did not serve.
func (p *process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "no output"
	}
	line := lastLine(strings.ReplaceAll(string(text), filepath.Dir(p.log)+"/", ""))
	if line == "" {
		return "no output"
	}
	return line
}

// lastLine is the last line of text that is not blank, cut to what fits into a table.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := []rune(strings.TrimSpace(lines[len(lines)-1]))
	if len(line) > 160 {
		line = append(line[:160], '…')
	}
	return string(line)
}
