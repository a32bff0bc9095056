// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Stats are the counters of a pool since it was made.
type Stats struct {
	Servers []ServerStats // in the order of the configuration
	Panics  uint64        // recovered; each is also logged with its stack
}

// ServerStats are the counters of one upstream.
type ServerStats struct {
	Network     string // "udp", "tcp", "tls" or "https"
	Name        string // server name in the certificate, if configured
	Addr        netip.AddrPort
	Far         bool                       // in another zone than this node
	LastResort  bool                       // used only while no other upstream is healthy
	Requests    uint64                     // attempts; TCP after a truncated answer is part of its attempt
	Failures    [NumCauses]uint64          // failures by Cause; one attempt may count several
	Truncated   uint64                     // UDP answers with TC set
	SRTT        time.Duration              // smoothed round trip of good answers, without penalties; 0: unknown
	P95         time.Duration              // approximate p95 of recent round trips; 0: unknown
	RTTs        [len(rttBounds) + 1]uint64 // good answers by round trip, see RTTBounds; the last bucket has no bound
	RTTSum      time.Duration              // sum of these round trips
	Hedged      uint64                     // late attempts that were hedged
	Won         uint64                     // good answers to hedges and to retries
	Explored    uint64                     // attempts that only measured it, sent together with one to the best upstream
	Outstanding int                        // pending attempts
	Failing     bool                       // the latest attempts failed; it is being probed
	Erring      bool                       // its latest answers were errors, for several names
	Down        bool                       // failing for so long that it gets no queries
	Looped      bool                       // queries to it come back here; it gets none
	Cause       Cause                      // of the latest failure, if it is not good
	Probes      uint64                     // probes sent while it was failing
	Limitations []string                   // what it is known not to support
	Sockets     int                        // open UDP sockets
	Open        int                        // connections open or opening
	Opened      uint64                     // connections ever opened
	Resumed     uint64                     // connections with a resumed TLS session
	LastError   string                     // why the latest connection ended before an answer came on it; empty once one has come
	CaseChecks  uint64                     // answers to names in random case that were not believed, and asked for again
}

// A State summarizes the health of an upstream.
type State uint8

// The states, a closed set. The last one that applies counts.
const (
	StateGood    State = iota
	StateErrors        // its latest answers were errors, for several names: it is asked as before
	StateFailing       // its latest attempts failed: it is asked after all others, and probed
	StateDown          // failing for so long that it gets only probes
	StateLooped        // queries to it come back here: it gets only probes
	NumStates          // number of states
)

// String returns the state as a metric label.
func (s State) String() string { return label(int(s), "good", "errors", "failing", "down", "looped") }

// State returns the state of the upstream.
func (s *ServerStats) State() State {
	switch {
	case s.Looped:
		return StateLooped
	case s.Down:
		return StateDown
	case s.Failing:
		return StateFailing
	case s.Erring:
		return StateErrors
	}
	return StateGood
}

// counters are the counters of one upstream.
type counters struct {
	requests   atomic.Uint64
	failures   [NumCauses]atomic.Uint64
	truncated  atomic.Uint64
	caseChecks atomic.Uint64
	resumed    atomic.Uint64 // connections with a resumed TLS session
	hedged     atomic.Uint64
	won        atomic.Uint64
	explored   atomic.Uint64
	probes     atomic.Uint64
	rtts       [len(rttBounds) + 1]atomic.Uint64
	rttSum     atomic.Int64 // ns
}

// rttBounds are the upper bounds of the round trip histogram.
var rttBounds = [...]time.Duration{ //nolint:gochecknoglobals // a constant in all but name
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
}

// RTTBounds returns the upper bounds of [ServerStats].RTTs.
func RTTBounds() []time.Duration { return rttBounds[:] }
