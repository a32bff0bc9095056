// SPDX-License-Identifier: Apache-2.0

package server

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sessionBuffer is asked of the kernel for what a session has not read, and again for
// what its client has not. It takes twice that.
const sessionBuffer = 16 << 10

// boundSession bounds what the kernel keeps for a TCP session that reads slower than its
// client writes, or the other way round. By itself it would keep megabytes for each,
// which are memory of this process's container. A kernel that refuses leaves it at that.
//
// What a client leaves unread for as long as unread, the kernel gives up with the
// connection. It would else keep the answers of a closed session for minutes.
func boundSession(fd int, unread time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unread.Milliseconds()))
}

// kernelHolds is how many bytes of answers the kernel keeps that the client has not taken.
func kernelHolds(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
