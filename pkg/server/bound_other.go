// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

// boundSession is of Linux only.
func boundSession(int) {}
