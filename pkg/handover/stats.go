// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/panics"
)

// Outcomes of a takeover at start: the closed set of Stats.Taken.
const (
	// OutcomeNone means that no agent was running, or that takeover is not configured.
	OutcomeNone = "none"
	// OutcomeTaken means that the sockets of a running agent were taken over.
	OutcomeTaken = "taken"
	// OutcomeOrphaned means that the sockets were taken over, but the predecessor ended before
	// it confirmed that it stopped reading.
	OutcomeOrphaned = "orphaned"
	// OutcomeRefused means that a running agent refused to hand over.
	OutcomeRefused = "refused"
)

// Stats are the handovers since this agent started. The zero value is an agent that neither took
// over nor was asked to hand over.
type Stats struct {
	Listening bool // a successor can ask for the sockets

	WaitsFor string // what the start waits for; empty: nothing

	Taken   string        // outcome of the takeover at the start: none, taken, orphaned or refused; empty is none
	From    string        // name of the predecessor; empty: none
	Why     string        // why the predecessor refused
	Sockets int           // sockets that were taken over
	Waited  time.Duration // time from receiving the sockets to serving

	Given     bool      // this agent has handed over and no longer serves
	To        string    // name of the agent that has taken over; empty unless Given
	GivenAt   time.Time // zero unless Given
	Asked     uint64    // agents that asked for the sockets
	Busy      uint64    // agents of Asked that were refused while a handover to another agent was in progress
	Mismatch  uint64    // agents of Asked that speak another protocol
	Abandoned uint64    // agents of Asked that received the sockets and ended before they took over
	LastError string    // last error of the socket or of a handover; empty: none since the socket was opened

	Panics uint64 // recovered panics, each also logged with its stack
}

// A Recorder holds the Stats of an agent, which may both take over and hand over. The zero value is
// ready for use.
type Recorder struct {
	panics atomic.Uint64

	mu    sync.Mutex // guards stats
	stats Stats
}

// Stats returns a copy. It may be called from any goroutine.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	stats := r.stats
	stats.Panics = r.panics.Load()
	return stats
}

// Guard returns a guard that counts panics in the stats. A panic during a handover must not end an agent that
// serves a node.
func (r *Recorder) Guard(log *slog.Logger) panics.Guard {
	return panics.Guard{Where: "handover", Log: log, Count: &r.panics}
}

// WaitFor records what the start waits for, empty for nothing, and reports whether that is new.
func (r *Recorder) WaitFor(what string) (news bool) {
	r.Update(func(s *Stats) {
		news = s.WaitsFor != what
		s.WaitsFor = what
	})
	return news
}

// Update changes the stats under the lock.
func (r *Recorder) Update(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}
