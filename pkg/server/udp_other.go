// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package server

import (
	"context"

	"golang.org/x/sys/unix"
)

// setReceiveBuffer requests a receive buffer, up to the system's limit.
func setReceiveBuffer(fd, size int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
}

// ignorePathMTU is supported on Linux only.
func ignorePathMTU(int) {}

// replyQueue is used with batches only.
type replyQueue struct{}

// readBatches is the portable reader on systems without recvmmsg.
func (s *udpSocket) readBatches(ctx context.Context) error { return s.readPortable(ctx) }
