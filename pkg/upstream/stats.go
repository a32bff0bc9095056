// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Stats is what a pool counted since it was made.
type Stats struct {
	Servers []ServerStats // in the order of the configuration
	Panics  uint64        // recovered, each also logged with its stack
}

// ServerStats is what was counted for one upstream.
type ServerStats struct {
	Network    string // "udp" or "tcp"
	Addr       netip.AddrPort
	LastResort bool              // asked only while none of the others is any good
	Requests   uint64            // tries; TCP after a truncated answer belongs to its try
	Failures   [NumCauses]uint64 // by Cause; several may fall to one try
	Truncated  uint64            // UDP answers with TC set
	SRTT       time.Duration     // smoothed round trip, penalties included; 0: not known yet
	Open       int               // TCP connections now, those being opened included
	Opened     uint64            // TCP connections ever begun
}

// counters are an upstream's own.
type counters struct {
	requests  atomic.Uint64
	failures  [NumCauses]atomic.Uint64
	truncated atomic.Uint64
}

// Stats reads the counters. An upstream that left the list takes its own along.
func (p *Pool) Stats() Stats {
	list := p.current()
	s := Stats{Servers: make([]ServerStats, 0, len(list.all)), Panics: p.panics.Load()}
	for i, e := range list.all {
		server := e.stats()
		server.LastResort = i >= len(list.all)-len(list.last)
		s.Servers = append(s.Servers, server)
	}
	return s
}

func (e *endpoint) stats() ServerStats {
	s := ServerStats{
		Network: e.network, Addr: e.addr,
		Requests:  e.count.requests.Load(),
		Truncated: e.count.truncated.Load(),
	}
	for cause := range s.Failures {
		s.Failures[cause] = e.count.failures[cause].Load()
	}
	s.Open, s.Opened = e.streams.stats()
	e.mu.Lock()
	s.SRTT = e.srtt
	e.mu.Unlock()
	return s
}
