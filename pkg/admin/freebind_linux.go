// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// setFreeBind allows a socket to bind an address that no link has.
func setFreeBind(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}
