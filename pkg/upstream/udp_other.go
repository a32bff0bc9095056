// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package upstream

import (
	"errors"
	"net"
	"syscall"
)

// batchConn returns nil: there are no batched system calls here.
func batchConn(net.Conn) syscall.RawConn { return nil }

// An inbox is unused without batches.
type inbox struct{}

func newInbox() *inbox { return &inbox{} }

func (s *socket) readBatches() error { return errors.ErrUnsupported }

// An mmsgBatch is unused without batches.
type mmsgBatch struct{}

func (mmsgBatch) init(*outbox) {}

func (o *outbox) sendBatch(syscall.RawConn) error { return errors.ErrUnsupported }
