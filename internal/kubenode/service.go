// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long a service may take to end after SIGTERM before it is killed.
const stopGrace = 10 * time.Second

// A NewService is a program that the first process of a machine is asked to run.
type NewService struct {
	Name string
	Argv []string
	Log  string // path of the file for its output
}

// A service is a program that the first process of a machine runs.
type service struct {
	NewService
	pid  int           // 0 when it does not run
	done chan struct{} // closed when it has ended
}

// services are the programs of a machine. This process is the parent of all that have lost theirs, too, so one goroutine
// waits for all.
type services struct {
	mu     sync.Mutex // guards byName and the services
	byName map[string]*service
}

func newServices() *services {
	s := &services{byName: map[string]*service{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() { // ends with the machine
		for range signals {
			s.collect()
		}
	}()
	return s
}

// collect takes the status of every process that has ended.
func (s *services) collect() {
	for {
		s.mu.Lock() // a service is in the list before its end is looked for
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		for _, one := range s.byName {
			if err == nil && pid > 0 && one.pid == pid {
				one.pid = 0
				close(one.done)
			}
		}
		s.mu.Unlock()
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// The exported methods are called over net/rpc. Their last arguments are not used.

// Kill ends a service at once.
func (s *services) Kill(name string, _ *bool) error { return s.end(name, unix.SIGKILL) }

// Restart stops a service and starts it as before.
func (s *services) Restart(name string, _ *bool) error {
	if err := s.end(name, unix.SIGTERM); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name].start()
}

// Start adds a service and starts it.
func (s *services) Start(n NewService, _ *bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[n.Name] = &service{NewService: n}
	return s.byName[n.Name].start()
}

// start starts a service that does not run. Nothing waits for the command: collect does.
func (s *service) start() error {
	out, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer func() { _ = out.Close() }()            // the child has its own descriptor
	cmd := exec.Command(s.Argv[0], s.Argv[1:]...) //nolint:noctx // until the machine ends
	cmd.Dir, cmd.Env = stateFolder, []string{"PATH=" + nodePath, "HOME=/root", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pid, s.done = cmd.Process.Pid, make(chan struct{})
	return cmd.Process.Release()
}

// end ends a service, by a kill when it takes too long, and waits until it is gone.
func (s *services) end(name string, sig syscall.Signal) error {
	s.mu.Lock()
	one := s.byName[name]
	if one == nil {
		s.mu.Unlock()
		return errors.New("no such service")
	}
	pid, done := one.pid, one.done
	s.mu.Unlock()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	if err := syscall.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-done
	return nil
}
