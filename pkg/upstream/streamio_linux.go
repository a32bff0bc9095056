// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package upstream

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A direct writes to a socket without waiting. One goroutine at a time may.
type directWriter struct {
	raw      syscall.RawConn
	sendFunc func(fd uintptr) bool // made once, so that a write needs no memory
	out      []byte
	n        int
	errno    syscall.Errno
}

func newDirectWriter(raw syscall.RawConn) *directWriter {
	w := &directWriter{raw: raw}
	w.sendFunc = w.send
	return w
}

// write sends what the kernel takes of out, and says how much that was.
func (w *directWriter) write(out []byte) (int, error) {
	w.out = out
	err := w.raw.Write(w.sendFunc)
	w.out = nil
	switch {
	case err != nil:
		return 0, err
	case w.errno == syscall.EAGAIN || w.errno == syscall.EINTR:
		return 0, nil
	case w.errno != 0:
		return 0, w.errno
	}
	return w.n, nil
}

// send asks the kernel once. RawSyscall keeps the scheduler out: the call never waits.
func (w *directWriter) send(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&w.out[0])), uintptr(len(w.out)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	w.n, w.errno = int(n), errno
	return true
}
