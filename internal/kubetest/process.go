// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// How long a program may take to end after SIGTERM before it is killed.
const grace = 10 * time.Second

// A process is a program in the background with its output in a file.
type process struct {
	name string
	log  string // path of its output, appended to by each start
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
}

// startProcess runs argv in dir with variables added to the environment. ctx lends its values only: the program
// runs until it is stopped, or until this process ends.
func startProcess(ctx context.Context, dir, name string, env []string, argv ...string) (*process, error) {
	var p *process
	started := make(chan error)
	go func() { // joined by stop and kill
		// The kernel kills the program when the thread that started it ends, so that thread is kept for it: others
		// may end with a goroutine that took them into a network namespace.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p, err = startHere(ctx, dir, name, env, argv...)
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

// startHere is startProcess on the calling thread, in whose network namespace the program then is. It ends with that
// thread.
func startHere(ctx context.Context, dir, name string, env []string, argv ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("creating the log of %s: %w", name, err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.Args[0] = name // what Kubernetes programs call themselves to the API server
	p.cmd.Env = append(os.Environ(), env...)
	// A group of its own keeps a terminal's Ctrl-C from it: its end is ours to order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { // joined by stop and kill
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	return p, nil
}

// signal sends a signal. A process that has ended takes none, which is as good.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// stop asks the process to end, kills it if it does not in time, and waits.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT) // a paused process takes no other signal
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// exited reports whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// logTail is the end of what the process wrote.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return p.name + ": " + lastLines(string(text), 12)
}

// waitUntil asks every pause whether something is so, until it is. It ends early with the process's last words when the
// process has ended, and with why, the condition's last error, when ctx has.
func (p *process) waitUntil(ctx context.Context, pause time.Duration, condition func(context.Context) error) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		why := condition(ctx)
		if why == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("waiting for %s: it ended: %s", p.name, p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %s", p.name, why, p.logTail())
		case <-ticker.C:
		}
	}
}
