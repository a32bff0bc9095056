// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package upstream

import (
	"errors"
	"syscall"
)

// limitSilence leaves the kernel's own limits where there is no option for it.
func limitSilence(syscall.RawConn) error { return nil }

// An acknowledger is nothing where there is no option for it.
type acknowledger struct{}

func newAcknowledger(syscall.RawConn) *acknowledger { return nil }

// hurry leaves it to the kernel when to acknowledge.
func (*acknowledger) hurry() {}

// markSocket fails: marks are Linux's.
func markSocket(syscall.RawConn, uint32) error { return errors.ErrUnsupported }
