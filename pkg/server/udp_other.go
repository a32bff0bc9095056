// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package server

import "context"

// readBatches is the portable reader where there is no recvmmsg.
func (s *udpSocket) readBatches(ctx context.Context) error { return s.readEach(ctx) }
