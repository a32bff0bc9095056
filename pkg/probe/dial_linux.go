// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// markSocket sets the packet mark of a socket. Without CAP_NET_ADMIN packets stay unmarked. That is
// safe: rules that match the mark need the same capability, so this process has installed none.
func markSocket(raw syscall.RawConn, mark uint32) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
}
