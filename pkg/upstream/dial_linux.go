// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent bytes may stay unacknowledged, in milliseconds (RFC 5482). It ends connections over a
// broken path soon; the kernel's default is a quarter of an hour.
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

// A quickAcker makes the kernel acknowledge received data at once. By default the kernel waits up to 40 ms for data
// to send along. A peer without TCP_NODELAY holds its next answers back until then.
type quickAcker struct {
	raw    syscall.RawConn
	setOpt func(fd uintptr) // made once, to avoid an allocation per call
}

func newQuickAcker(raw syscall.RawConn) *quickAcker {
	return &quickAcker{raw: raw, setOpt: func(fd uintptr) {
		// TCP_QUICKACK does not last, and a failure only costs a delay.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	}}
}

// ackNow acknowledges what has been read. q may be nil.
func (a *quickAcker) ackNow() {
	if a != nil {
		_ = a.raw.Control(a.setOpt)
	}
}

// setSocketMark sets SO_MARK on a socket.
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
