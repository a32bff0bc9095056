// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// A Host has namespaces of its own for network, mounts and processes.
type Host struct {
	*nodetest.Host // its network

	Name  string
	Addrs []netip.Addr // its own in the cluster's network, one of each family that the cluster has, IPv4 first

	logs     string // folder of its services' output
	cmd      *exec.Cmd
	done     chan struct{} // closed when it is gone
	services []string
}

// newHost starts a machine without links.
func newHost(ctx context.Context, name, logs string) (*Host, error) {
	m := &Host{Name: name, logs: logs, done: make(chan struct{})}
	ready, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer func() { _ = ready.Close() }()
	out, err := os.Create(m.log(initName))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating a log: %w", err), write.Close())
	}
	m.cmd = exec.CommandContext(context.WithoutCancel(ctx), "/proc/self/exe")
	m.cmd.Args = []string{initName, name}
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.ExtraFiles = out, out, []*os.File{write}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL, Setpgid: true,
	}
	err = m.launch()
	err = errors.Join(err, write.Close(), out.Close())
	if err != nil {
		return nil, fmt.Errorf("starting machine %s: %w", name, err)
	}
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil || line != "ready\n" {
		m.Close()
		return nil, fmt.Errorf("starting machine %s: %w: %s", name, err, m.tail(initName))
	}
	if m.Host, err = nodetest.Of(m.cmd.Process.Pid, name); err != nil {
		m.Close()
		return nil, fmt.Errorf("opening the network of machine %s: %w", name, err)
	}
	return m, nil
}

// launch starts the machine's first process from a thread that lives as long as it does: the kernel kills it when the
// thread ends.
func (h *Host) launch() error {
	started := make(chan error)
	go func() { // joined by Close
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := h.cmd.Start()
		started <- err
		if err == nil {
			_ = h.cmd.Wait() // it is always killed
			close(h.done)
		}
	}()
	return <-started
}

// Close ends all processes of the machine and takes its mounts and links away.
func (h *Host) Close() {
	_ = h.cmd.Process.Kill() // it may have ended
	<-h.done
	if h.Host != nil {
		h.Release()
	}
}

// Path is where the test finds a file of the machine.
func (h *Host) Path(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", h.cmd.Process.Pid, path)
}

// Write writes a file of the machine and makes its folder.
func (h *Host) Write(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(h.Path(path)), 0o755); err != nil {
		return fmt.Errorf("%s: making a folder: %w", h.Name, err)
	}
	if err := os.WriteFile(h.Path(path), []byte(text), 0o755); err != nil {
		return fmt.Errorf("%s: writing %s: %w", h.Name, path, err)
	}
	return nil
}

// Link puts a program on the machine's PATH under a name, unless the name is there.
func (h *Host) Link(name, program string) error {
	err := os.Symlink(program, h.Path(filepath.Join(binFolder, name)))
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s: linking %s: %w", h.Name, name, err)
	}
	return nil
}

// Start runs a program as a service of the machine, until it is stopped or the machine ends.
func (h *Host) Start(service string, argv ...string) error {
	h.services = append(h.services, service)
	return h.request("Start", NewService{Name: service, Argv: argv, Log: h.log(service)})
}

// Kill ends a service at once.
func (h *Host) Kill(service string) error { return h.request("Kill", service) }

// Restart stops a service and starts it as before.
func (h *Host) Restart(service string) error { return h.request("Restart", service) }

func (h *Host) request(method string, arg any) error {
	if err := request(h.Path(requestSocket), method, arg); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}

// Command is a program in the machine's namespaces, with PATH as its services have it and the given variables. It
// ends with the machine at the latest.
func (h *Host) Command(ctx context.Context, env []string, argv ...string) *exec.Cmd {
	args := slices.Concat([]string{
		fmt.Sprintf("--target=%d", h.cmd.Process.Pid), "--net", "--mount", "--pid", "--uts", "--ipc",
		"--", "/usr/bin/env", "--chdir=" + workingDirectory(), "PATH=" + nodePath,
	}, argv)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PATH=") }), "PATH="+nodePath)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // the program is a child of the one that is killed, and ends with the machine at the latest
	return cmd
}

func workingDirectory() string {
	if dir, err := os.Getwd(); err == nil {
		return dir
	}
	return "/"
}

// Output runs a program on the machine and returns what it wrote, standard error included.
func (h *Host) Output(ctx context.Context, argv ...string) (string, error) {
	out, err := h.Command(ctx, nil, argv...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: running %s: %w: %s", h.Name, strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

func (h *Host) log(service string) string {
	return filepath.Join(h.logs, h.Name+"-"+service+".log")
}

// tail is the end of what a service wrote.
func (h *Host) tail(service string) string {
	text, err := os.ReadFile(h.log(service))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6<<10):])
}
