// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package agent

// inMemory reports false: containers exist only on Linux.
func inMemory(string) bool { return false }

// disableReadahead does nothing: it exists only on Linux.
func disableReadahead() error { return nil }
