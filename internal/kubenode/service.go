// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long a service may take to end after SIGTERM before it is killed.
const stopGrace = 10 * time.Second

// A request to the first process of a machine.
type request struct {
	Do   string   `json:"do"` // start, stop, restart or kill
	Name string   `json:"name"`
	Argv []string `json:"argv,omitempty"` // a new service's; one that is known starts as before without
	Log  string   `json:"log,omitempty"`  // path of the file for its output
}

// An answer is the result of a request.
type answer struct {
	Error string `json:"error,omitempty"` // empty: well
}

// A service is a program that the first process of a machine runs.
type service struct {
	argv []string
	log  string
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

// serve answers one request.
func (s *services) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var r request
	var a answer
	err := json.NewDecoder(conn).Decode(&r)
	if err == nil {
		err = s.do(r)
	}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(a) // the client has gone if this fails
}

func (s *services) do(r request) error {
	switch r.Do {
	case "start":
		return s.start(r)
	case "stop":
		return s.end(r.Name, unix.SIGTERM)
	case "kill":
		return s.end(r.Name, unix.SIGKILL)
	case "restart":
		return errors.Join(s.end(r.Name, unix.SIGTERM), s.start(r))
	default:
		return fmt.Errorf("unknown request %q", r.Do)
	}
}

func (s *services) start(r request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byName[r.Name]
	if one == nil || r.Argv != nil {
		if len(r.Argv) == 0 {
			return errors.New("no such service")
		}
		one = &service{argv: r.Argv, log: r.Log}
		s.byName[r.Name] = one
	}
	if one.pid != 0 {
		return nil
	}
	out, err := os.OpenFile(one.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	p, err := os.StartProcess(one.argv[0], one.argv, &os.ProcAttr{
		Dir: stateFolder, Env: []string{"PATH=" + nodePath, "HOME=/root", "LC_ALL=C"},
		Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	one.pid, one.done = p.Pid, make(chan struct{})
	return p.Release()
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

// background is the context of what lasts as long as the machine.
func background() context.Context { return context.Background() }
