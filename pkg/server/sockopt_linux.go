// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setFreeBind permits binding to an address that no link has.
func setFreeBind(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}

// sessionBuffer is the requested size in bytes of a session's kernel send and receive buffers. The
// kernel doubles it.
const sessionBuffer = 16 << 10

// limitSessionBuffers bounds the kernel memory of a TCP session whose client writes faster than the
// session reads, or reads slower than it writes. By default that would be megabytes for each
// session, charged to this container. Errors are ignored.
//
// The kernel closes a connection whose client leaves data unread for the duration unread. Otherwise
// it would keep the answers of a closed session for minutes.
func limitSessionBuffers(fd int, unread time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unread.Milliseconds()))
}

// unsentBytes returns the number of bytes that the kernel keeps until the client acknowledges them.
func unsentBytes(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
