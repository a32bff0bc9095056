// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodetest"
)

const (
	startTime  = 15 * time.Second // after it the agent has the lease, or there is something wrong
	hangUpTime = time.Second      // for a shell to end after a hang-up
)

// runInner is the first process of the namespaces: it builds everything, and ends it when the shell has ended or ctx has.
func runInner(ctx context.Context, o options, stdout io.Writer) (code int, err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go awaitOuter(cancel)
	if err := mount(o.dir); err != nil {
		return 0, err
	}
	if err := os.Setenv("TMPDIR", o.dir); err != nil { // for whatever we and the shell's programs leave behind
		return 0, err
	}
	defer func() {
		// The outer process removes the folder unless it was killed. Then it is up to us.
		err = errors.Join(err, unmount(o.dir))
		_ = os.Remove(o.dir)
	}()
	p := &play{dir: o.dir, reaper: newReaper()}
	defer p.reaper.stop()
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.build(ctx, o); err != nil {
		return 0, p.withLogs(ctx, err)
	}
	if err := p.welcome(stdout); err != nil {
		return 0, err
	}
	return p.shell(ctx)
}

// awaitOuter waits for the end of the outer process, which says nothing when it is killed. No process waits for it: it
// ends with this process at the latest.
func awaitOuter(ended func()) {
	const pipe = 3 // the first after standard error
	unix.CloseOnExec(pipe)
	_, _ = os.NewFile(pipe, "outside").Read(make([]byte, 1))
	ended()
}

// A play is a node with its surroundings.
type play struct {
	dir      string // with configuration, logs and the commands of the shell
	network  *nodetest.Network
	external *nodetest.Server
	reaper   *reaper
	agentPID int
}

// build makes the hosts and starts what runs there, the agent last.
func (p *play) build(ctx context.Context, o options) (err error) {
	// Pod 0 stays empty, so that the pods, their links on the node and their addresses have the same numbers.
	if p.network, err = nodetest.New(nodetest.Options{Pods: 3}); err != nil {
		return err
	}
	if err := p.writeFiles(o); err != nil {
		return err
	}
	// It stands for all DNS beyond the cluster: every name has addresses, and a text that says whose answer it is.
	if p.external, err = nodetest.Serve(p.network.Upstream, netip.AddrPortFrom(p.network.Upstream.IPv4, dnsPort), "from the external DNS"); err != nil { //nolint:contextcheck // a DNS handler has no context
		return err
	}
	if err := p.startCentral(ctx); err != nil {
		return err
	}
	return p.startAgent(ctx)
}

// close ends what runs in the hosts, and the hosts.
func (p *play) close() error {
	var errs []error
	if p.network != nil {
		errs = append(errs, p.network.Close())
	}
	if p.external != nil {
		p.external.Close()
	}
	return errors.Join(errs...)
}

// withLogs adds what the programs logged to an error, unless it is the person's own wish to end.
func (p *play) withLogs(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("ended before the node was built")
	}
	for _, name := range []string{"central.log", "agent.log"} {
		if text, readErr := os.ReadFile(filepath.Join(p.dir, name)); readErr == nil && len(text) > 0 {
			err = fmt.Errorf("%w\n%s:\n%s", err, name, text[max(0, len(text)-4096):])
		}
	}
	return err
}

// startCentral starts the central resolver beyond the node, and waits until it answers the node.
func (p *play) startCentral(ctx context.Context) error {
	log, err := os.Create(filepath.Join(p.dir, "central.log"))
	if err != nil {
		return fmt.Errorf("making a log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := p.network.Upstream.Command(ctx, filepath.Join(p.dir, "bin/node-cache"), "resolver", "--config", filepath.Join(p.dir, "central.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the central resolver: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := awaitServer(ctx, p.network.Node.Dial, centralName, nodetest.ServiceIPv4(), nodetest.ServiceIPv6()); err != nil {
		return fmt.Errorf("waiting for the central resolver: %w", err)
	}
	return nil
}

// startAgent starts the agent as a person in the shell would, and waits until it has the lease.
func (p *play) startAgent(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "bin/agent"), "start", "-q")
	cmd.Env = p.environment("play")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if _, err := p.reaper.wait(ctx, cmd.Process.Pid); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	// Before the lease is held the same question gets the central resolver's answer.
	if err := awaitServer(ctx, p.network.Pods[1].Dial, agentName, agentIPv4(), agentIPv6()); err != nil {
		return fmt.Errorf("waiting for the agent to take the lease: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "agent.pid"))
	if err != nil {
		return fmt.Errorf("reading the agent's process ID: %w", err)
	}
	if _, err := fmt.Sscan(string(text), &p.agentPID); err != nil {
		return fmt.Errorf("reading the agent's process ID: %w", err)
	}
	return nil
}

// shell runs a shell in the first pod until it ends, and gives a script's exit code. When ctx ends it is hung up.
func (p *play) shell(ctx context.Context) (code int, err error) {
	cmd := exec.Command(filepath.Join(p.dir, "bin/pod1")) //nolint:noctx // a shell that is hung up gives the terminal back, a killed one does not
	cmd.Env = p.environment("")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting a shell: %w", err)
	}
	status, err := p.reaper.wait(ctx, cmd.Process.Pid)
	switch {
	case err == nil && terminal(os.Stdin):
		return 0, nil // what a person's last command did is not how the play went
	case err == nil:
		return exitCode(status), nil
	}
	_ = cmd.Process.Signal(unix.SIGHUP)
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTime)
	defer cancel()
	if _, err := p.reaper.wait(late, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
	}
	return 1, nil
}

// terminal reports whether a person types into f.
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// exitCode is what a shell makes of a program's end.
func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
