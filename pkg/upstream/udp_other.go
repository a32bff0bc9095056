// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package upstream

import (
	"errors"
	"net"
	"syscall"
)

// batchConn says that no socket can be used in batches here.
func batchConn(net.Conn) syscall.RawConn { return nil }

// An inbox is of use with batches.
type inbox struct{}

func newInbox() *inbox { return &inbox{} }

func (s *socket) readBatches() error { return errors.ErrUnsupported }

// An mmsgBatch is of use with batches.
type mmsgBatch struct{}

func (mmsgBatch) init(*outbox) {}

func (o *outbox) sendBatch(syscall.RawConn) error { return errors.ErrUnsupported }
