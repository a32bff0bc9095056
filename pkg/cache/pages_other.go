// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cache

// smallPages is of Linux only.
func smallPages([]byte) {}
