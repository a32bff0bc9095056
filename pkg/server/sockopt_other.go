// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import (
	"errors"
	"net/netip"
	"syscall"
	"time"
)

// setFreeBind is supported on Linux only.
func setFreeBind(int, netip.Addr) error { return errors.ErrUnsupported }

const sessionBuffer = 16 << 10

// limitSessionBuffers is supported on Linux only.
func limitSessionBuffers(int, time.Duration) {}

// unsentBytes is supported on Linux only.
func unsentBytes(syscall.RawConn) int { return 0 }

// attachSelector is supported on Linux only.
func attachSelector(int, int) error { return errors.ErrUnsupported }

// A poller is supported on Linux only.
type poller struct{}

func (*poller) open()  {}
func (*poller) wait()  {}
func (*poller) close() {}
