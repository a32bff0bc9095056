// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent octets may stay unacknowledged, in milliseconds
// (RFC 5482). A path that is cut without a word then ends its connections soon;
// by default the kernel would go on for a quarter of an hour.
const userTimeout = 3000

func limitSilence(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("setting TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
