// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package probe

import "syscall"

// markSocket does nothing: only Linux has packet marks.
func markSocket(syscall.RawConn, uint32) error { return nil }
