// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package upstream

import "syscall"

// limitSilence leaves the kernel's own limits where there is no option for it.
func limitSilence(_, _ string, _ syscall.RawConn) error { return nil }
