// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// runOuter runs the inner process in namespaces of its own, and waits for it.
func runOuter(o options) (code int, err error) {
	if err := checkRequirements(o); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding the own program: %w", err)
	}
	dir, err := os.MkdirTemp("", "node-cache-play-")
	if err != nil {
		return 0, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.Remove(dir) }() // empty: what it showed inside was never mounted here

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	theirs, ours, err := os.Pipe() // it closes with us, however we end
	if err != nil {
		return 0, fmt.Errorf("making a pipe: %w", err)
	}
	defer func() { _ = ours.Close() }()
	cmd := exec.Command(self, "inside", "-dir", dir, "-node-cache", o.nodeCache, "-manifests", o.manifests) //nolint:noctx // it ends with a signal, and then cleans up
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return 0, &hintError{fmt.Errorf("making namespaces: %w", err), "in a container, it has to be a privileged one"}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return max(exit.ExitCode(), 1), nil // it has said why
			}
			return 0, err
		}
	}
}

// checkRequirements says what this machine lacks.
func checkRequirements(o options) error {
	if os.Geteuid() != 0 {
		return &hintError{errors.New("it makes network namespaces, which only root may"), "sudo make play; `make run` needs no privileges"}
	}
	if _, err := os.Stat(o.nodeCache); err != nil {
		return &hintError{fmt.Errorf("finding node-cache: %w", err), "make build"}
	}
	if _, err := os.Stat(o.manifests); err != nil {
		return &hintError{fmt.Errorf("finding the objects of a cluster: %w", err), "run it at the top of the repository"}
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		return &hintError{errors.New("there is no program nsenter"), "apt-get install util-linux"}
	}
	return nil
}
