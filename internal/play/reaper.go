// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A reaper collects the processes that end, as the first process of a namespace has to: those whose parents have ended
// before them, an agent that a command of the shell left behind say, are its children too.
type reaper struct {
	signals chan os.Signal
	group   sync.WaitGroup

	mu      sync.Mutex // guards ended, changed
	ended   map[int]syscall.WaitStatus
	changed chan struct{} // closed, and replaced, with each one that ends
}

// newReaper starts a reaper. From then on no other code may wait for a child.
func newReaper() *reaper {
	r := &reaper{signals: make(chan os.Signal, 1), ended: map[int]syscall.WaitStatus{}, changed: make(chan struct{})}
	signal.Notify(r.signals, unix.SIGCHLD)
	r.group.Go(func() {
		for range r.signals {
			r.collect()
		}
	})
	return r
}

// stop ends the reaper.
func (r *reaper) stop() {
	signal.Stop(r.signals)
	close(r.signals)
	r.group.Wait()
}

func (r *reaper) collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		r.mu.Lock()
		r.ended[pid] = status
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

// wait waits for the end of a child.
func (r *reaper) wait(ctx context.Context, pid int) (syscall.WaitStatus, error) {
	for {
		r.mu.Lock()
		status, ended := r.ended[pid]
		delete(r.ended, pid)
		changed := r.changed
		r.mu.Unlock()
		if ended {
			return status, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-changed:
		}
	}
}
