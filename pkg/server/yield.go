// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// yieldInterval is how long sessions work before they let the scheduler poll the network, which
// costs about 2 µs.
const yieldInterval = 100 * time.Microsecond

// A yielder prevents sessions from delaying UDP readers. Go's scheduler polls the network when no
// goroutine is runnable, or after 10 ms. Without a yielder, a packet would wait for all sessions
// that are building large answers.
type yielder struct {
	spent atomic.Int64 // ns of work since the network was polled
	mu    sync.Mutex   // guards poll
	poll  poller
}

// addWork counts work.
func (y *yielder) addWork(d time.Duration) { y.spent.Add(int64(d)) }

// yield waits until the scheduler has polled the network, if enough work was done since the last
// poll.
func (y *yielder) yield() {
	if y.spent.Load() < int64(yieldInterval) {
		return
	}
	y.mu.Lock() // waiting sessions continue one by one, each after its own poll
	defer y.mu.Unlock()
	if y.spent.Load() >= int64(yieldInterval) {
		y.poll.wait()
		y.spent.Store(0)
	}
}

// A poller waits for an event of its own, which the scheduler finds when it polls the network. The
// zero value, and a poller that could not be opened, never waits.
type poller struct {
	file       *os.File // eventfd(2)
	raw        syscall.RawConn
	signalFunc func(uintptr) bool // calls poller.signal
	one        [8]byte
	signaled   bool
}

func (p *poller) open() {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	p.file = os.NewFile(uintptr(fd), "eventfd")
	p.raw, _ = p.file.SyscallConn() // of an open file it has no error
	p.signalFunc = p.signal
	binary.NativeEndian.PutUint64(p.one[:], 1)
}

// wait returns when the scheduler has polled the network.
func (p *poller) wait() {
	if p.raw != nil {
		p.signaled = false
		_ = p.raw.Read(p.signalFunc)
	}
}

// signal triggers the event on its first call. The runtime calls it again when it has found the
// event.
func (p *poller) signal(fd uintptr) (found bool) {
	if p.signaled {
		return true
	}
	p.signaled = true
	_, err := unix.Write(int(fd), p.one[:])
	return err != nil
}

func (p *poller) close() {
	if p.file != nil {
		_ = p.file.Close()
	}
}
