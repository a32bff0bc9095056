// SPDX-License-Identifier: Apache-2.0

package server

import "golang.org/x/sys/unix"

// sessionBuffer is asked of the kernel for what a session has not read, and again for
// what its client has not. It takes twice that.
const sessionBuffer = 16 << 10

// boundSession bounds what the kernel keeps for a TCP session that reads slower than its
// client writes, or the other way round. By itself it would keep megabytes for each,
// which are memory of this process's container. A kernel that refuses leaves it at that.
func boundSession(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sessionBuffer)
}
