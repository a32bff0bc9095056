// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// FreeBind lets a socket bind an address that no link has.
func FreeBind(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}
