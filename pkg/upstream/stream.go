// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the connections to one upstream.
const (
	maxConnections = 16              // that may be asked for
	maxInflight    = 1024            // queries on one connection
	maxOutbox      = 1 << 18         // octets waiting to be written on one connection
	maxGathered    = 16              // queries of a batch that go on one connection before the next is looked for
	dialTimeout    = 3 * time.Second // for the handshake, that of TLS included
	writeTimeout   = 3 * time.Second // for one write; a peer that does not read is gone
	silenceTime    = 3 * time.Second // owes an answer and is silent: makes way for another
)

var (
	// errDied marks the errors of a connection that ended with queries on it.
	errDied = errors.New("connection ended")
	// errLeft is what a query gets from an upstream that fell out of the list.
	errLeft = fmt.Errorf("upstream has left: %w", errLimit)

	errIdle      = errors.New("idle")
	errRetired   = errors.New("retired")
	errAged      = errors.New("aged")
	errAbandoned = errors.New("nobody waits for it")
	errStuck     = errors.New("peer does not read")
	errSilent    = errors.New("peer does not answer")
)

// lines are the connections to one upstream over TCP (RFC 7766) or TLS (RFC 7858), shared by many queries at a time.
//
//	carry ─ place: an ID on a connection ─ outbox ─ Flush: one write for a batch ─► upstream
//	                                                                                   │
//	try.carried, for each ◄─ unlocked ─ ID, question: all that one read brought ◄──────┘
//
// One lock guards all of it and is never held over I/O, nor while anybody is told what came. A query costs no
// goroutine, timer or channel: a connection has a goroutine that reads, one that writes what the kernel did not take at
// once, and a timer for the moments when something may be due.
type lines struct {
	*common
	addr  netip.AddrPort
	count *counters
	trust *trust // nil: plain TCP
	eager bool   // keep all connections open while queries come

	mu      sync.Mutex // guards the fields below, and line's where it says so
	lines   []*line    // opening or open; those that have failed are not here
	opened  uint64     // ever, which numbers the connections
	turns   uint64     // queries ever placed, which says whose turn it is
	asked   time.Time  // when a query last came
	pace    pace
	ids     draws
	fault   error // of the latest connection that ended before an answer came on it; nil once one has come
	retired bool  // keep no connection without a query
	left    bool  // the upstream is no longer one: take no query
	alive   int   // connections whose goroutines run
	gone    sync.Cond
}

// newLines makes the carrier for TCP or, where the target says so, TLS. For a target of UDP it is there for what comes
// truncated, and opens no connection ahead. It opens nothing yet.
func newLines(c *common, t Target, count *counters) *lines {
	s := &lines{common: c, addr: t.Addr, count: count, eager: t.Network != "udp"}
	s.gone.L = &s.mu
	s.ids.from = c.rand
	if t.Network == "tls" {
		s.trust = newTrust(c, t, count, "dot")
	}
	return s
}

// carry puts the query on a connection.
func (s *lines) carry(t *try, batch *wire.SendBatch) error {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = now
	t.ride.second = false
	return s.placeLocked(now, t, 0, batch)
}

// placeLocked gives the query a place on a connection numbered above after.
func (s *lines) placeLocked(now time.Time, t *try, after uint64, batch *wire.SendBatch) error {
	if s.left {
		return errLeft
	}
	l := s.pickLocked(now, after, len(t.query)+maxPadding, batch)
	if (l == nil || l.stalledLocked(now)) && s.dropSilentLocked(now) {
		l = s.pickLocked(now, after, len(t.query)+maxPadding, batch)
	}
	var refused error
	if s.youngLocked() < s.roomLocked(now, l) {
		var opened *line
		if opened, refused = s.openForLocked(now, t); opened != nil {
			l = opened
		}
	}
	if l == nil {
		return fmt.Errorf("finding a connection: %w", cmp.Or(refused, errLimit))
	}
	return l.addLocked(now, t, batch)
}

// roomLocked is how many connections there may be with another one for a query that could go on l, if there is such an
// l. One that does nothing is not left aside, nor one that is aged, whose successor is on the way. Where none is of use,
// there may be one more than are meant to be.
func (s *lines) roomLocked(now time.Time, l *line) int {
	switch {
	case l == nil || l.stalledLocked(now):
		return s.connections + 1
	case l.calls.n > 0 && !l.aged:
		return s.connections
	}
	return 0
}

// youngLocked counts the connections that have not come to their age.
func (s *lines) youngLocked() int {
	n := 0
	for _, l := range s.lines {
		if !l.aged {
			n++
		}
	}
	return n
}

// pickLocked finds the best connection that has room for a query of so many octets: of those of the best rank the one
// with the fewest queries, then the one whose turn is the longest ago, so that none is idle while others work. The first
// few queries of a batch keep together: they share a write then.
func (s *lines) pickLocked(now time.Time, after uint64, octets int, batch *wire.SendBatch) *line {
	var best *line
	bestRank := rankNone
	for _, l := range s.lines {
		if l.number <= after || l.calls.n >= maxInflight || len(l.outbox)+2+octets > maxOutbox {
			continue
		}
		rank := l.rankLocked(now)
		if rank == rankGood && l.gatherer == batch && l.gathered < maxGathered {
			return l
		}
		if rank < bestRank || rank == bestRank && l.beforeLocked(best) {
			best, bestRank = l, rank
		}
	}
	return best
}

func (l *line) rankLocked(now time.Time) int { return l.rank(l.stalledLocked(now)) }

// beforeLocked tells which of two connections of one rank takes the query.
func (l *line) beforeLocked(other *line) bool {
	if l.calls.n != other.calls.n {
		return l.calls.n < other.calls.n
	}
	return l.turn < other.turn
}

// dropSilentLocked makes room where all connections are taken: those go that have been silent for too long. Queries
// that never pause would keep them otherwise, and a peer that hangs in them would be lost while it serves others.
func (s *lines) dropSilentLocked(now time.Time) (dropped bool) {
	if len(s.lines) <= s.connections {
		return false
	}
	for _, l := range slices.Clone(s.lines) {
		if l.silentLocked(now, silenceTime) {
			l.failLocked(errSilent)
			dropped = true
		}
	}
	return dropped
}

// drop takes the query off its connection, if it is still there. What is malformed ends the wait, so there is nothing
// to tell.
func (s *lines) drop(t *try) error {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := t.ride.line; l != nil {
		l.removeLocked(now, t)
		l.owes = true
		l.restLocked(now)
	}
	return nil
}

// leave is retire for an upstream that nobody may ask any more.
func (s *lines) leave() {
	s.mu.Lock()
	s.left = true
	s.mu.Unlock()
	s.retire()
}

// retire closes idle connections now, and the others after their last query.
func (s *lines) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	for _, l := range slices.Clone(s.lines) {
		if l.calls.n == 0 {
			l.failLocked(errRetired)
		}
	}
}

// wait returns when no connection is left, nor a goroutine of one.
func (s *lines) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.alive > 0 {
		s.gone.Wait()
	}
}

// open counts the connections.
func (s *lines) open() (now int, ever uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines), s.opened
}

// lastError says why the latest connection ended before an answer came on it. It is empty once an answer has come on
// any.
func (s *lines) lastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return ""
	}
	return s.fault.Error()
}
