// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"
)

// When a connection has had its time.
const (
	connAge      = 60 * time.Second       // after this and up to half as long again no query comes on it
	replaceRetry = 5 * time.Second        // until one is tried again that is to follow an aged one
	idleTimeout  = 10 * time.Second       // without a query in flight
	stallAfter   = 800 * time.Millisecond // owes an answer and is silent: not for new queries
)

// A life is what connections of TCP and TLS and sessions of HTTPS have in common: how good one is beside others, and
// when it ends. The lock of its carrier guards it.
type connState struct {
	open       bool      // the handshake is over
	preopened  bool      // opened before a query had to wait for it
	aged       bool      // to be replaced: takes a query only where there is no better one
	answered   bool      // an answer has come on it
	owesAnswer bool      // somebody gave up on it since the last answer
	lastUse    uint64    // the latest query's
	lastRead   time.Time // when something last came, or since when something is owed
	idleSince  time.Time // since when it has no query, where it has none
	agesAt     time.Time // when it has had its time; zero: not open yet
	timer      lazyTimer
	err        error // why it ended; nil: it has not
}

// The ranks, the best first.
const (
	rankGood      = iota
	rankAged      // had better end, once another is open
	rankPreopened // opening, and no query has waited for it yet
	rankStalled   // if there is no other
	rankNone
)

// rank is its place among others. stalled says that a query on it would wait.
func (s *connState) rank(stalled bool) int {
	switch {
	case stalled:
		return rankStalled
	case s.preopened && !s.open:
		return rankPreopened
	case s.aged:
		return rankAged
	}
	return rankGood
}

// begin notes that the handshake is over. expire is called when it has had its time.
func (s *connState) markOpen(now time.Time, ids *idSource, expire func()) {
	age := connAge
	if bits, err := ids.next(); err == nil {
		age += time.Duration(bits) * (connAge / 2) / (1 << 16)
	}
	s.open, s.agesAt = true, now.Add(age)
	s.timer.set(now, s.agesAt, expire)
}

// fate is what becomes of one that is there and has no queries: it ends with the error, or is looked at again at that
// time, or stays as it is if both are zero. quiet is since when there were no queries; replaced says that another one does
// what it did.
//
// One that is silent although its callers gave up is soon not kept: its path may be cut, or the rest of a frame, or an
// answer that takes for ever, stand before all that would come after.
func (s *connState) idlePolicy(now, quiet time.Time, retired, replaced bool) (look time.Time, end error) {
	switch {
	case retired:
		return look, errShutdown
	case !s.open && !s.preopened:
		return look, errAbandoned
	case !s.open:
		return look, nil
	case s.owesAnswer && now.Sub(s.lastRead) >= stallAfter:
		return look, errSilent
	case s.owesAnswer:
		return s.lastRead.Add(stallAfter), nil
	case s.aged && replaced:
		return look, errAged
	case now.Sub(quiet) >= idleTimeout:
		return look, errIdle
	}
	return quiet.Add(idleTimeout), nil
}
