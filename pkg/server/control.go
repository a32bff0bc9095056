// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// controlLen is room for one packet-info control message of either family.
const controlLen = 64

// clearInterface rewrites a received packet-info message into one to send: the
// address stays, the interface goes, so that the reply takes the route to its
// client. A link-local IPv6 address means nothing without its interface.
func clearInterface(control []byte) {
	const header = unix.SizeofCmsghdr
	if len(control) < header+unix.SizeofInet4Pktinfo {
		return
	}
	level := binary.NativeEndian.Uint32(control[header-8:])
	data := control[header:]
	switch {
	case level == unix.IPPROTO_IP:
		clear(data[:4])
	case level == unix.IPPROTO_IPV6 && len(data) >= unix.SizeofInet6Pktinfo && (data[0] != 0xfe || data[1]&0xc0 != 0x80):
		clear(data[16:20])
	}
}

// sourceControl is a copy of the received control message that makes a reply
// leave from the address that was asked.
func sourceControl(received []byte) []byte {
	control := slices.Clone(received)
	clearInterface(control)
	return control
}
