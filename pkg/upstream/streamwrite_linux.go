// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package upstream

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A direct writes to a socket without waiting. One goroutine at a time may.
type direct struct {
	raw   syscall.RawConn
	try   func(fd uintptr) bool // made once, so that a write needs no memory
	out   []byte
	n     int
	errno syscall.Errno
}

func newDirect(raw syscall.RawConn) *direct {
	d := &direct{raw: raw}
	d.try = d.send
	return d
}

// write sends what the kernel takes of out, and says how much that was.
func (d *direct) write(out []byte) (int, error) {
	d.out = out
	err := d.raw.Write(d.try)
	d.out = nil
	switch {
	case err != nil:
		return 0, err
	case d.errno == syscall.EAGAIN || d.errno == syscall.EINTR:
		return 0, nil
	case d.errno != 0:
		return 0, d.errno
	}
	return d.n, nil
}

// send asks the kernel once. RawSyscall keeps the scheduler out: the call never waits.
func (d *direct) send(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&d.out[0])), uintptr(len(d.out)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	d.n, d.errno = int(n), errno
	return true
}
