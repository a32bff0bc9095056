// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A poller waits for an event of its own, which the scheduler finds when it looks at the
// network. The zero value, and one that could not be opened, never waits.
type poller struct {
	file  *os.File // eventfd(2)
	raw   syscall.RawConn
	try   func(uintptr) bool // calls poller.event
	added [8]byte
	asked bool
}

func (p *poller) open() {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	p.file = os.NewFile(uintptr(fd), "eventfd")
	p.raw, _ = p.file.SyscallConn() // of an open file it has no error
	p.try = p.event
	binary.NativeEndian.PutUint64(p.added[:], 1)
}

// wait returns when the scheduler has looked at the network.
func (p *poller) wait() {
	if p.raw != nil {
		p.asked = false
		_ = p.raw.Read(p.try)
	}
}

// event makes the event at first, and is then called again once it is found.
func (p *poller) event(fd uintptr) (found bool) {
	if p.asked {
		return true
	}
	p.asked = true
	_, err := unix.Write(int(fd), p.added[:])
	return err != nil
}

func (p *poller) close() {
	if p.file != nil {
		_ = p.file.Close()
	}
}
