// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The one CPU for the server under test, the other for everything around it.
const (
	serverCPU = 0
	otherCPU  = 1
)

// How long a server may take to end after SIGTERM before it is killed.
const grace = 5 * time.Second

// A process is a server in the background, pinned, with its output in a file.
type process struct {
	cmd     *exec.Cmd
	log     string        // path of its output
	started time.Time     // before it ran
	done    chan struct{} // closed once it has ended
}

// start runs argv on one CPU with its output in dir/log. The caller stops it.
func start(ctx context.Context, cpu int, dir string, argv []string) (*process, error) {
	p := &process{log: filepath.Join(dir, "log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("creating a log: %w", err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	p.cmd = command(ctx, argv)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.started = time.Now()
	if err := startPinned(p.cmd, cpu); err != nil {
		return nil, fmt.Errorf("starting %s: %w", filepath.Base(argv[0]), err)
	}
	go func() { // joined by stop
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is not judged; that it did is what done says
	}()
	return p, nil
}

// command is a child that the kernel ends when this process dies, and that a terminal's Ctrl-C does not reach: this
// program ends its children itself, in order.
func command(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	return cmd
}

// startPinned starts cmd on one CPU: a child inherits the affinity of the thread that forks it, so the program counts
// one CPU from its first instruction on (Go sets GOMAXPROCS by it).
func startPinned(cmd *exec.Cmd, cpu int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("reading the affinity: %w", err)
	}
	if err := pin(0, cpu); err != nil {
		return err
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &before); err == nil && back != nil {
		return fmt.Errorf("restoring the affinity: %w", back)
	}
	return err
}

// pin keeps a thread on one CPU.
func pin(thread, cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(thread, &one); err != nil {
		return fmt.Errorf("pinning to CPU %d: %w", cpu, err)
	}
	return nil
}

// pinTree keeps every thread of a process and of its children on one CPU. What ends meanwhile is no loss.
func pinTree(pid, cpu int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return fmt.Errorf("listing threads: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("listing threads: %w", err)
		}
		if err := pin(id, cpu); err != nil && !gone(err) {
			return err
		}
		if err := pinChildren(pid, id, cpu); err != nil {
			return err
		}
	}
	return nil
}

// pinChildren pins what one thread of a process has started.
func pinChildren(pid, thread, cpu int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, thread))
	if err != nil && !gone(err) {
		return fmt.Errorf("listing children: %w", err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("listing children: %w", err)
		}
		if err := pinTree(child, cpu); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

// gone reports whether an error means that a process or a thread has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// needTwoCPUs checks that this program may use both CPUs that it pins to.
func needTwoCPUs() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("reading the affinity: %w", err)
	}
	if !set.IsSet(serverCPU) || !set.IsSet(otherCPU) {
		return fmt.Errorf("pinning: CPUs %d and %d are needed, one for the server and one for the rest", serverCPU, otherCPU)
	}
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process and waits until it is gone.
func (p *process) stop() {
	_ = syscall.Kill(p.pid(), syscall.SIGTERM) // gone already is as good
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.done
}

// ended is an error with the last words of a process that has ended, nil while it runs.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("ended: %s", p.lastOutputLine())
	default:
		return nil
	}
}

// lastOutputLine is the last line that the process wrote, for a reason why it did not serve.
func (p *process) lastOutputLine() string {
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return "no output"
	}
	return lastLine(strings.ReplaceAll(string(text), filepath.Dir(p.log)+"/", ""))
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
