// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// bindFreely lets a socket be bound to an address that no link has.
func bindFreely(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
}
