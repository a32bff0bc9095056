// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// markSocket has the packets of a socket carry a mark. Without the right to, they go
// unmarked: rules that act on the mark need the same right, so there are none of this
// process then.
func markSocket(raw syscall.RawConn, mark uint32) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
}
