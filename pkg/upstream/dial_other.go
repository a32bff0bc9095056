// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package upstream

import (
	"errors"
	"syscall"
)

// limitSilence leaves the kernel's own limits where there is no option for it.
func limitSilence(syscall.RawConn) error { return nil }

// markSocket fails: marks are Linux's.
func markSocket(syscall.RawConn, uint32) error { return errors.ErrUnsupported }
