// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"sync"
	"time"
)

// Outcomes of looking for an agent to take over from: the closed set of Stats.Taken.
const (
	// OutcomeNone says that no agent was there, or that none was looked for.
	OutcomeNone = "none"
	// OutcomeTaken says that the sockets of a running agent were taken over.
	OutcomeTaken = "taken"
	// OutcomeOrphaned says that they were, and that the agent they came from had ended
	// before it was told so.
	OutcomeOrphaned = "orphaned"
	// OutcomeRefused says that an agent was there and did not give them.
	OutcomeRefused = "refused"
)

// Stats is what has become of hand-overs since the start of this agent. Its zero value
// is that of an agent that neither took over nor was asked to hand over.
type Stats struct {
	Listening bool // a successor can ask for the sockets

	Taken   string        // at the start: none, taken, orphaned or refused; empty is none
	From    string        // the agent that was asked; empty: none was
	Why     string        // why it was refused
	Sockets int           // that were taken
	Waited  time.Duration // from having the sockets to serving by them

	Given     bool      // this agent has handed over and serves no more
	To        string    // the agent that has taken over; empty unless Given
	GivenAt   time.Time // zero unless Given
	Asked     uint64    // agents that asked for the sockets
	Busy      uint64    // those of Asked that were told to wait for another one
	Mismatch  uint64    // those of Asked that speak another protocol
	Abandoned uint64    // those of Asked that had the sockets and ended before they took over
	LastError string    // of the last attempt to hand over that failed; empty: none did

	Panics uint64 // defects that cut one step short, each also logged with its stack
}

// A Recorder keeps the Stats of an agent, which may both take over and hand over. Its zero
// value is ready.
type Recorder struct {
	mu    sync.Mutex // guards stats
	stats Stats
}

// Stats may be called at any time.
func (t *Recorder) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// Update changes the stats.
func (t *Recorder) Update(change func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.stats)
}
