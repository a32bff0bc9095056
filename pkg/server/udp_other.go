// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package server

import (
	"context"

	"golang.org/x/sys/unix"
)

// growBuffer asks for a receive buffer, as far as the system's limit goes.
func growBuffer(fd, size int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
}

// ignorePathMTU is of Linux only.
func ignorePathMTU(int) {}

// outgoing is of batches only.
type outgoing struct{}

// readBatches is the portable reader where there is no recvmmsg.
func (s *udpSocket) readBatches(ctx context.Context) error { return s.readEach(ctx) }
