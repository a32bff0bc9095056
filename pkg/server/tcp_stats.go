// SPDX-License-Identifier: Apache-2.0

package server

import "sync/atomic"

// TCPStats are the counts of a TCP server. All but Open only grow.
type TCPStats struct {
	Open     int    // sessions at this moment
	Accepted uint64 // sessions admitted
	Queries  uint64 // whole frames taken from clients

	RefusedSessions  uint64 // connections closed at once: MaxSessions reached, and no session had to go for them
	RefusedPerClient uint64 // connections closed at once: MaxPerClient reached
	ShedIdle         uint64 // sessions closed in favour of new ones, idle ones first
	AcceptErrors     uint64 // accept calls that failed, as with no file descriptor left

	IdleClosed    uint64 // sessions that said nothing for Idle
	SlowClosed    uint64 // sessions with a frame unfinished after FrameTimeout
	ShortFrames   uint64 // sessions ended by a frame shorter than a DNS header
	WriteTimeouts uint64 // sessions whose client took no byte for WriteTimeout
	Overflows     uint64 // sessions whose client left too many bytes of answers unread
	ShedMemory    uint64 // sessions closed because all together held MaxHeld bytes
	Oversized     uint64 // answers too long for a frame, not sent
	Stalls        uint64 // times a session stopped reading because MaxPipeline misses were outstanding
	DrainCut      uint64 // sessions not finished at DrainTimeout
	Panics        uint64 // sessions ended by a panic in the handler
}

// tcpCounters is the live form of TCPStats.
type tcpCounters struct {
	accepted, queries                                         atomic.Uint64
	refusedSessions, refusedPerClient, shedIdle, acceptErrors atomic.Uint64
	idleClosed, slowClosed, shortFrames, writeTimeouts        atomic.Uint64
	overflows, oversized, stalls, drainCut, panics            atomic.Uint64
	shedMemory                                                atomic.Uint64
}

// Stats returns the counts so far. It may be called at any time from any goroutine.
func (t *TCP) Stats() TCPStats {
	c := &t.count
	return TCPStats{
		Open:             t.table.count(),
		Accepted:         c.accepted.Load(),
		Queries:          c.queries.Load(),
		RefusedSessions:  c.refusedSessions.Load(),
		RefusedPerClient: c.refusedPerClient.Load(),
		ShedIdle:         c.shedIdle.Load(),
		AcceptErrors:     c.acceptErrors.Load(),
		IdleClosed:       c.idleClosed.Load(),
		SlowClosed:       c.slowClosed.Load(),
		ShortFrames:      c.shortFrames.Load(),
		WriteTimeouts:    c.writeTimeouts.Load(),
		Overflows:        c.overflows.Load(),
		ShedMemory:       c.shedMemory.Load(),
		Oversized:        c.oversized.Load(),
		Stalls:           c.stalls.Load(),
		DrainCut:         c.drainCut.Load(),
		Panics:           c.panics.Load(),
	}
}
