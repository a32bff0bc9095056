// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// process is a started program in a process group of its own, whose members die with the test.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdout output
	stderr output
	done   chan struct{} // closed once the program has ended
	err    error         // how it ended; to be read once done is closed
}

// start starts a program. Its output is shown if the test fails.
func start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote to stdout:\n%s\nand to stderr:\n%s", name, p.stdout.tail(), p.stderr.tail())
		}
		p.kill()
	})
	return p
}

// signal sends a signal to the whole group: servers fork.
func (p *process) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s) // a group that has ended needs no signal
}

// kill ends the group at once, stopped or not, and waits for it.
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
	const most = 16 << 10
	text := o.String()
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// lastPort is the port handed out last. It starts where chance says, so that two runs seldom meet.
var lastPort atomic.Int32

// freePort finds a port of 127.0.0.1 that is free for UDP and for TCP. It lies below the ports that the kernel gives
// to clients: one of the many sockets of a load could otherwise take it before its server does.
func freePort(t *testing.T) int {
	t.Helper()
	const first, count = 10000, 20000
	lastPort.CompareAndSwap(0, rand.Int32N(count)+1)
	for range 200 {
		port := first + int(lastPort.Add(1))%count
		tcp, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		udp, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port))
		_ = tcp.Close()
		if err == nil {
			_ = udp.Close()
			return port
		}
	}
	t.Fatal("200 ports in a row are taken")
	return 0
}
