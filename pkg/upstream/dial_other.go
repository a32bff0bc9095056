// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package upstream

import (
	"errors"
	"syscall"
)

// setUserTimeout leaves the kernel's own limits where there is no option for it.
func setUserTimeout(syscall.RawConn) error { return nil }

// An quickAcker is nothing where there is no option for it.
type quickAcker struct{}

func newQuickAcker(syscall.RawConn) *quickAcker { return nil }

// ackNow leaves it to the kernel when to acknowledge.
func (*quickAcker) ackNow() {}

// setSocketMark fails: marks are Linux's.
func setSocketMark(syscall.RawConn, uint32) error { return errors.ErrUnsupported }
