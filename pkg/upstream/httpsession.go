// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// A session is one connection of HTTP/2.
type session struct {
	sessions *sessions
	number   uint64           // counted from 1 over all of the upstream's
	ready    chan struct{}    // closed when it is open, or will not be
	conn     *http.ClientConn // set when ready is closed; nil: it could not be opened
	bare     net.Conn         // what TLS runs over; set before conn

	// Guarded by sessions.mu:
	life
	cancel context.CancelFunc // ends the opening; nil: it has not begun
	users  int                // requests on it
}

// A seat is a request's place on a session.
type seat struct {
	session *session
	reused  bool   // it was open before
	newest  uint64 // number of the newest session then
}

// joinLocked finds a session numbered above after for a request, or opens one.
func (s *sessions) joinLocked(now time.Time, t *try, after uint64) (seat, error) {
	best := s.pickLocked(now, after)
	var refused error
	if s.moreLocked(now, best) {
		var opened *session
		if opened, refused = s.openForLocked(now, t); opened != nil {
			best = opened
		}
	}
	if best == nil {
		return seat{}, fmt.Errorf("finding a session: %w", cmp.Or(refused, errLimit))
	}
	if best.users == 0 && !best.owes {
		best.heard = now
	}
	best.users++
	s.turns++
	best.turn = s.turns
	return seat{session: best, reused: best.open, newest: s.opened}, nil
}

// moreLocked tells whether a request that could go on the session best, if there is one, had better have another. An
// aged one has its successor on the way.
func (s *sessions) moreLocked(now time.Time, best *session) bool {
	switch {
	case best == nil || best.rankLocked(now) == rankStalled:
		return len(s.list) < 2*s.connections+2
	case best.users == 0 || best.aged:
		return false
	}
	return s.youngLocked() < s.connections
}

// youngLocked counts the sessions that have not come to their age.
func (s *sessions) youngLocked() int {
	n := 0
	for _, x := range s.list {
		if !x.aged {
			n++
		}
	}
	return n
}

// pickLocked finds the best session.
func (s *sessions) pickLocked(now time.Time, after uint64) (best *session) {
	bestRank := rankNone
	for _, x := range slices.Clone(s.list) {
		if x.open && x.users == 0 && x.conn.Available() == 0 { // the peer will have no more of it
			x.endLocked(errAged)
			continue
		}
		if x.number <= after {
			continue
		}
		rank := x.rankLocked(now)
		before := best == nil || x.users < best.users || x.users == best.users && x.turn < best.turn
		if rank < bestRank || rank == bestRank && before {
			best, bestRank = x, rank
		}
	}
	return best
}

// rankLocked is the session's rank among the others. One that is full, or that the peer is about to end, is as good as
// one that is silent: a request on it would wait.
func (x *session) rankLocked(now time.Time) int {
	silent := x.users > 0 && now.Sub(x.heard) >= stallTime
	return x.rank(silent || x.open && x.conn.Available() == 0 || !x.open && x.users >= maxInflight)
}

// part takes a request off its session. heard tells that something came back.
func (x *session) part(heard bool) {
	s := x.sessions
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	x.users--
	if x.users == 0 {
		x.rested = now
	}
	if heard {
		x.heard, x.owes = now, false
	} else {
		x.owes = true
	}
	x.restLocked(now)
}

// answered notes that an answer came on the session.
func (x *session) answered() {
	s := x.sessions
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	x.proved = true
	s.fault = nil
	s.openAheadLocked(now)
}

// restLocked decides what becomes of a session without requests.
func (x *session) restLocked(now time.Time) {
	if x.err != nil || x.users > 0 {
		return
	}
	s, quiet := x.sessions, x.rested
	if s.asked.After(quiet) {
		quiet = s.asked
	}
	look, end := x.fate(now, quiet, s.retired, x.aged && s.freshLocked(now))
	switch {
	case end != nil:
		x.endLocked(end)
	case !look.IsZero():
		x.alarm.set(now, look, x.expire)
	}
}

// freshLocked tells whether there is a session, other than those that came to their age, that is open and answers.
func (s *sessions) freshLocked(now time.Time) bool {
	return slices.ContainsFunc(s.list, func(x *session) bool { return x.open && x.rankLocked(now) == rankGood })
}

// expire does what is due, and sets the alarm to what is due next.
func (x *session) expire() {
	s := x.sessions
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	x.alarm.rang()
	if x.err != nil {
		return
	}
	next := x.ages
	if !now.Before(x.ages) {
		x.aged = true
		s.openAheadLocked(now)
		next = now.Add(ageRetry)
	}
	x.restLocked(now)
	if x.err == nil {
		x.alarm.set(now, next, x.expire)
	}
}

// end ends the session: requests on it get an error.
func (x *session) end(err error) {
	x.sessions.mu.Lock()
	defer x.sessions.mu.Unlock()
	x.endLocked(err)
}

func (x *session) endLocked(err error) {
	if x.err != nil {
		return
	}
	s := x.sessions
	x.err = err
	if x.cancel != nil {
		x.cancel()
	}
	s.list = slices.DeleteFunc(s.list, func(other *session) bool { return other == x })
	if !wanted(err) {
		if x.proved {
			s.openAheadLocked(s.now())
		} else {
			s.fault = err
		}
	}
	if x.open { // else run sees to it
		x.closeLocked()
	}
}

// closeLocked closes the session in a goroutine, which wait waits for.
func (x *session) closeLocked() {
	x.alarm.stop()
	good := wanted(x.err)
	go func() {
		defer x.sessions.endOne()
		if !good { // then there is no time for a farewell, which the peer might not take
			_ = x.bare.Close()
		}
		_ = x.conn.Close()
	}()
}
