// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package server

import (
	"context"

	"golang.org/x/sys/unix"
)

// setReceiveBuffer asks for a receive buffer, as far as the system's limit goes.
func setReceiveBuffer(fd, size int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
}

// ignorePathMTU is of Linux only.
func ignorePathMTU(int) {}

// replyQueue is of batches only.
type replyQueue struct{}

// readBatches is the portable reader where there is no recvmmsg.
func (s *udpSocket) readBatches(ctx context.Context) error { return s.readPortable(ctx) }
