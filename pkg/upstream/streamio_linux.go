// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package upstream

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A directWriter writes to a socket without blocking. It is not safe for concurrent use.
type directWriter struct {
	raw      syscall.RawConn
	sendFunc func(fd uintptr) bool // made once, to avoid an allocation per write
	out      []byte
	n        int
	errno    syscall.Errno
}

func newDirectWriter(raw syscall.RawConn) *directWriter {
	w := &directWriter{raw: raw}
	w.sendFunc = w.send
	return w
}

// write writes as much of out as the kernel accepts, and returns how much.
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

// send makes one system call. RawSyscall bypasses the scheduler: the call never blocks.
func (w *directWriter) send(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&w.out[0])), uintptr(len(w.out)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	w.n, w.errno = int(n), errno
	return true
}
