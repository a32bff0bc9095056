// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"
)

// Lifetime of a connection.
const (
	connAge      = 60 * time.Second       // then it gets no more queries; up to half as much again is added at random
	replaceRetry = 5 * time.Second        // between attempts to open the replacement of an aged connection
	idleTimeout  = 10 * time.Second       // without a pending query
	stallAfter   = 800 * time.Millisecond // a connection that owes an answer and is silent for so long gets no new queries
)

// connState is what stream connections and HTTPS connections have in common: their rank for a new query, and when
// they end. The lock of the pool guards it.
type connState struct {
	open       bool      // the handshake is complete
	preopened  bool      // opened before a query had to wait for it
	aged       bool      // to be replaced: takes a query only if there is no better one
	answered   bool      // an answer has come on it
	owesAnswer bool      // a query was canceled on it since the last answer
	lastUse    uint64    // sequence number of the latest query
	lastRead   time.Time // when something last came, or when the first unanswered query was sent
	idleSince  time.Time // when its last query ended
	agesAt     time.Time // when it ages; zero: not open yet
	timer      lazyTimer
	err        error // why it ended; nil: it has not
}

// The ranks, best first.
const (
	rankGood      = iota
	rankAged      // use only until another one is open
	rankPreopened // opening, and no query has waited for it yet
	rankStalled   // use only if there is no other
	rankNone
)

// rank compares the connection with others. stalled says that a query on it would wait.
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

// markOpen records the end of the handshake. expire is called when the connection ages.
func (s *connState) markOpen(now time.Time, ids *idSource, expire func()) {
	age := connAge
	if bits, err := ids.next(); err == nil {
		age += time.Duration(bits) * (connAge / 2) / (1 << 16)
	}
	s.open, s.agesAt = true, now.Add(age)
	s.timer.set(now, s.agesAt, expire)
}

// idlePolicy decides about a connection without queries: end it with the error, check again at the time, or keep it
// if both are zero. quiet is when the queries ended; replaced says that its replacement is open.
//
// A connection that stays silent after its queries were canceled is closed soon. Its path may be broken, or an
// unfinished frame or answer may block all that would follow.
func (s *connState) idlePolicy(now, quiet time.Time, noIdle, replaced bool) (checkAt time.Time, end error) {
	switch {
	case noIdle:
		return checkAt, errShutdown
	case !s.open && !s.preopened:
		return checkAt, errAbandoned
	case !s.open:
		return checkAt, nil
	case s.owesAnswer && now.Sub(s.lastRead) >= stallAfter:
		return checkAt, errSilent
	case s.owesAnswer:
		return s.lastRead.Add(stallAfter), nil
	case s.aged && replaced:
		return checkAt, errAged
	case now.Sub(quiet) >= idleTimeout:
		return checkAt, errIdle
	}
	return quiet.Add(idleTimeout), nil
}
