// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package upstream

import (
	"errors"
	"syscall"
)

// setUserTimeout does nothing: there is no such option here.
func setUserTimeout(syscall.RawConn) error { return nil }

// A quickAcker does nothing: there is no such option here.
type quickAcker struct{}

func newQuickAcker(syscall.RawConn) *quickAcker { return nil }

// ackNow does nothing.
func (*quickAcker) ackNow() {}

// setSocketMark fails: only Linux has marks.
func setSocketMark(syscall.RawConn, uint32) error { return errors.ErrUnsupported }
