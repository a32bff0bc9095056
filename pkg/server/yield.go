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

	mu         sync.Mutex         // guards the fields below
	file       *os.File           // eventfd(2), which the scheduler finds readable when it polls; nil: it could not be opened, and yield does not wait
	raw        syscall.RawConn    // access to file
	signalFunc func(uintptr) bool // signal; made once, to avoid an allocation per call
	one        [8]byte            // the number 1, which signal writes to file
	signaled   bool               // signal has triggered the event
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
	if y.spent.Load() < int64(yieldInterval) {
		return
	}
	if y.file != nil {
		y.signaled = false
		_ = y.raw.Read(y.signalFunc)
	}
	y.spent.Store(0)
}

func (y *yielder) open() {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	y.file = os.NewFile(uintptr(fd), "eventfd")
	y.raw, _ = y.file.SyscallConn() // of an open file it has no error
	y.signalFunc = y.signal
	binary.NativeEndian.PutUint64(y.one[:], 1)
}

// signal triggers the event on its first call. The runtime calls it again when it has found the
// event.
func (y *yielder) signal(fd uintptr) (found bool) {
	if y.signaled {
		return true
	}
	y.signaled = true
	_, err := unix.Write(int(fd), y.one[:])
	return err != nil
}

func (y *yielder) close() {
	if y.file != nil {
		_ = y.file.Close()
	}
}
