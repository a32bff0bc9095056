// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import (
	"syscall"
	"time"
)

const sessionBuffer = 16 << 10

// boundSession is of Linux only.
func boundSession(int, time.Duration) {}

// kernelHolds is of Linux only.
func kernelHolds(syscall.RawConn) int { return 0 }
