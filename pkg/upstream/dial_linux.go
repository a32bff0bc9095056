// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent octets may stay unacknowledged, in milliseconds
// (RFC 5482). A path that is cut without a word then ends its connections soon;
// by default the kernel would go on for a quarter of an hour.
const userTimeout = 3000

func setUserTimeout(raw syscall.RawConn) error {
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

// An acknowledger has the kernel acknowledge what came at once. By default it waits for up to 40 ms for something to send
// along, and a peer that does not set TCP_NODELAY holds its next answers back until then.
type quickAcker struct {
	raw    syscall.RawConn
	setOpt func(fd uintptr) // made once, so that it needs no memory
}

func newQuickAcker(raw syscall.RawConn) *quickAcker {
	return &quickAcker{raw: raw, setOpt: func(fd uintptr) {
		// It does not last, and where it fails there is only a delay.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	}}
}

// hurry acknowledges what has been read. a may be nil.
func (a *quickAcker) ackNow() {
	if a != nil {
		_ = a.raw.Control(a.setOpt)
	}
}

// markSocket has the packets of a socket carry a mark.
func setSocketMark(raw syscall.RawConn, mark uint32) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
	switch {
	case err != nil:
		return fmt.Errorf("setting SO_MARK: %w", err)
	case errors.Is(failed, unix.EPERM):
		return fmt.Errorf("setting SO_MARK without the capability NET_ADMIN: %w", failed)
	case failed != nil:
		return fmt.Errorf("setting SO_MARK: %w", failed)
	}
	return nil
}
