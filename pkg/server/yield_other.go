// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

// A poller is of Linux only.
type poller struct{}

func (*poller) open()  {}
func (*poller) wait()  {}
func (*poller) close() {}
