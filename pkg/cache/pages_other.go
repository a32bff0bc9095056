// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cache

// disableHugePages does nothing outside Linux.
func disableHugePages([]byte) {}
