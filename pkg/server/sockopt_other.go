// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import (
	"errors"
	"net/netip"
	"syscall"
	"time"
)

// setFreeBind lets a socket be bound to an address that no link has.
func setFreeBind(int, netip.Addr) error { return errors.ErrUnsupported }

const sessionBuffer = 16 << 10

// limitSessionBuffers is of Linux only.
func limitSessionBuffers(int, time.Duration) {}

// unsentBytes is of Linux only.
func unsentBytes(syscall.RawConn) int { return 0 }

// attachSelector is of Linux only.
func attachSelector(int, int) error { return errors.ErrUnsupported }

// A poller is of Linux only.
type poller struct{}

func (*poller) open()  {}
func (*poller) wait()  {}
func (*poller) close() {}
