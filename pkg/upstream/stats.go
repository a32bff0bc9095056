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
	Network     string // "udp", "tcp", "tls" or "https"
	Name        string // of the server's certificate, where one is configured
	Addr        netip.AddrPort
	Far         bool                       // in another zone
	LastResort  bool                       // asked only while none of the others is any good
	Requests    uint64                     // tries; TCP after a truncated answer belongs to its try
	Failures    [NumCauses]uint64          // by Cause; several may fall to one try
	Truncated   uint64                     // UDP answers with TC set
	SRTT        time.Duration              // smoothed round trip, penalties included; 0: not known yet
	P95         time.Duration              // of the recent round trips, nearly; 0: not known yet
	RTTs        [len(rttBounds) + 1]uint64 // good answers by round trip, TookBounds; the last is longer
	RTTSum      time.Duration              // of them
	Hedged      uint64                     // tries that got another one beside them since they were late
	Won         uint64                     // good answers to such and to later tries
	Outstanding int                        // tries under way
	Failing     bool                       // the latest tries failed; it is probed
	Down        bool                       // for so long that it gets no query
	Looped      bool                       // queries to it come back here; it gets none
	Probes      uint64                     // sent while it failed
	Limitations []string                   // what it cannot do, as far as it has shown
	Sockets     int                        // of UDP, now
	Open        int                        // connections now, those being opened included
	Opened      uint64                     // connections ever begun
	Resumed     uint64                     // of them, TLS sessions resumed
	LastError   string                     // why the latest connection ended before an answer came on it; empty once one has come
}

// A State is how an upstream is doing.
type State uint8

// The states, a closed set. An upstream is in the last one that fits.
const (
	StateGood    State = iota
	StateFailing       // its latest tries failed: it is asked after all others, and by probes
	StateDown          // for so long that it gets probes only
	StateLooped        // what is sent to it comes back here: it gets probes only
	NumStates          // how many there are
)

// String is the state in one lower-case word, as a metric label.
func (s State) String() string {
	switch s {
	case StateGood:
		return "good"
	case StateFailing:
		return "failing"
	case StateDown:
		return "down"
	case StateLooped:
		return "looped"
	default:
		return "unknown"
	}
}

// State is how the upstream is doing.
func (s *ServerStats) State() State {
	switch {
	case s.Looped:
		return StateLooped
	case s.Down:
		return StateDown
	case s.Failing:
		return StateFailing
	}
	return StateGood
}

// counters are an upstream's own.
type counters struct {
	requests  atomic.Uint64
	failures  [NumCauses]atomic.Uint64
	truncated atomic.Uint64
	resumed   atomic.Uint64 // sessions of TLS
	hedged    atomic.Uint64
	won       atomic.Uint64
	probes    atomic.Uint64
	rtts      [len(rttBounds) + 1]atomic.Uint64
	rttSum    atomic.Int64 // ns
}

// tookBounds are the upper bounds of the histogram of round trips.
var rttBounds = [...]time.Duration{ //nolint:gochecknoglobals // a constant in all but name
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
}

// RTTBounds are the upper bounds of [ServerStats].RTTs.
func RTTBounds() []time.Duration { return rttBounds[:] }

// took counts a good answer.
func (c *counters) observeRTT(rtt time.Duration) {
	i := 0
	for i < len(rttBounds) && rtt > rttBounds[i] {
		i++
	}
	c.rtts[i].Add(1)
	c.rttSum.Add(int64(rtt))
}

// Stats reads the counters. An upstream that left the list takes its own along.
func (p *Pool) Stats() Stats {
	snap := p.currentSnapshot()
	s := Stats{Servers: make([]ServerStats, 0, len(snap.all)), Panics: p.panics.Load()}
	for i, e := range snap.all {
		server := e.stats()
		server.LastResort = i >= len(snap.all)-len(snap.lastResort)
		s.Servers = append(s.Servers, server)
	}
	return s
}

func (e *endpoint) stats() ServerStats {
	s := ServerStats{
		Network: e.network, Name: e.name, Addr: e.addr, Far: !e.near,
		Requests: e.count.requests.Load(), Truncated: e.count.truncated.Load(),
		Hedged: e.count.hedged.Load(), Won: e.count.won.Load(), Probes: e.count.probes.Load(),
		RTTSum: time.Duration(e.count.rttSum.Load()), Outstanding: int(e.outstanding.Load()),
		Failing: e.failing.Load(), Down: e.down.Load(), Looped: e.loopMonitor.looped(),
	}
	for i := range s.RTTs {
		s.RTTs[i] = e.count.rtts[i].Load()
	}
	for cause := range s.Failures {
		s.Failures[cause] = e.count.failures[cause].Load()
	}
	streams := e.primary
	if e.tcpFallback != nil {
		s.Sockets, _ = e.primary.openCount()
		streams = e.tcpFallback
	}
	s.Open, s.Opened = streams.openCount()
	s.Resumed = e.count.resumed.Load()
	if told, ok := streams.(interface{ lastError() string }); ok {
		s.LastError = told.lastError()
	}
	now := e.now()
	e.mu.Lock()
	s.SRTT, s.P95 = e.latency.srtt, e.latency.p95
	s.Limitations = e.capabilities.limitations(now)
	e.mu.Unlock()
	return s
}
