// SPDX-License-Identifier: Apache-2.0

package server

import "sync/atomic"

// udpCounters is the live form of UDPStats.
type udpCounters struct {
	received, sent, unsent, oversize, panics atomic.Uint64
}

// UDPStats counts datagrams since the start.
type UDPStats struct {
	Received uint64
	Sent     uint64
	Unsent   uint64 // replies the kernel did not take
	Oversize uint64 // queries too long to be one: dropped
	Panics   uint64 // queries whose handling was cut short by a defect
}

// Stats may be called at any time.
func (u *UDP) Stats() UDPStats {
	return UDPStats{
		Received: u.stats.received.Load(),
		Sent:     u.stats.sent.Load(),
		Unsent:   u.stats.unsent.Load(),
		Oversize: u.stats.oversize.Load(),
		Panics:   u.stats.panics.Load(),
	}
}
