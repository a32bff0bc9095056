// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetns is the network namespace of the calling thread.
const threadNetns = "/proc/thread-self/ns/net"

// A netns is a network namespace. The agent uses one; tests use several.
type netns struct {
	file *os.File
	id   unix.Stat_t
}

// currentNetns returns the network namespace of the calling thread.
func currentNetns() (*netns, error) {
	file, err := os.Open(threadNetns)
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	s := &netns{file: file}
	if err := unix.Fstat(int(file.Fd()), &s.id); err != nil { //nolint:gosec // a descriptor
		_ = file.Close()
		return nil, fmt.Errorf("reading the network namespace: %w", err)
	}
	return s, nil
}

// do calls fn on a thread in the namespace. Programs that fn runs are in it too.
func (s *netns) do(fn func() error) error {
	var now unix.Stat_t
	if err := unix.Stat(threadNetns, &now); err != nil {
		return fmt.Errorf("reading the network namespace: %w", err)
	}
	if now.Ino == s.id.Ino && now.Dev == s.id.Dev {
		return fn()
	}
	return s.enter(fn)
}

// enter moves the calling goroutine's thread to the namespace, calls fn, and moves it back.
// A thread that cannot move back ends with its goroutine.
func (s *netns) enter(fn func() error) error {
	runtime.LockOSThread()
	before, err := currentNetns()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if before.set() == nil {
			runtime.UnlockOSThread()
		}
		_ = before.close()
	}()
	if err := s.set(); err != nil {
		return err
	}
	return fn()
}

func (s *netns) set() error {
	if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil { //nolint:gosec // a descriptor
		return fmt.Errorf("entering the network namespace: %w", err)
	}
	return nil
}

func (s *netns) close() error { return s.file.Close() }
