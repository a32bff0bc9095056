// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setFreeBind lets a socket be bound to an address that no link has.
func setFreeBind(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}

// sessionBuffer is asked of the kernel for what a session has not read, and again for
// what its client has not. It takes twice that.
const sessionBuffer = 16 << 10

// limitSessionBuffers bounds what the kernel keeps for a TCP session that reads slower than its
// client writes, or the other way round. By itself it would keep megabytes for each,
// which are memory of this process's container. A kernel that refuses leaves it at that.
//
// What a client leaves unread for as long as unread, the kernel gives up with the
// connection. It would else keep the answers of a closed session for minutes.
func limitSessionBuffers(fd int, unread time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unread.Milliseconds()))
}

// unsentBytes is how many bytes of answers the kernel keeps that the client has not taken.
func unsentBytes(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
