// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a started program in a process group of its own, whose members die with the test.
type process struct {
	name   string
	cmd    *exec.Cmd
	output output
	done   chan struct{} // closed once the program has ended
	err    error         // how it ended; to be read once done is closed
}

// startProcess starts a program with variables added to the environment. Its output is shown if the test fails.
func startProcess(t *testing.T, name string, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, p.output.tail())
		}
		p.kill()
	})
	return p
}

// signal sends a signal. A program that has ended needs none.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// kill ends the program at once and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// ended reports whether the program has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for the program to end by itself and returns how it did.
func (p *process) wait(t *testing.T, limit time.Duration) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		t.Fatalf("%s still runs after %s", p.name, limit)
		return nil
	}
}

// output collects what a program writes while a test reads it.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// tail is the end of the output, which is where a failure stands.
func (o *output) tail() string {
	const most = 8 << 10
	text := o.String()
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}
