// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// When HTTP/2 itself finds out that a peer is silent: after this a session without a frame is pinged,
// and after as long again without an answer it is closed.
const pingAfter = silenceTime / 2

// A session is one connection of HTTP/2.
type session struct {
	sessions *sessions
	number   uint64           // counted from 1 over all of the upstream's
	ready    chan struct{}    // closed when it is open, or will not be
	conn     *http.ClientConn // set when ready is closed; nil: it could not be opened
	bare     net.Conn         // what TLS runs over; set before conn

	// Guarded by sessions.mu:
	cancel context.CancelFunc // ends the opening; nil: it has not begun
	open   bool
	ahead  bool // opened before a query had to wait for it
	aged   bool
	proved bool // an answer has come on it
	users  int  // requests on it
	turn   uint64
	heard  time.Time // last answer, or since when one is owed
	owes   bool      // somebody gave up on it since the last answer
	rested time.Time // since when it has no request, where it has none
	ages   time.Time
	alarm  alarm // calls expire
	err    error // why it ended; nil: it has not
}

// A seat is a request's place on a session.
type seat struct {
	session *session
	reused  bool   // it was open before
	newest  uint64 // number of the newest session then
}

// joinLocked finds a session numbered above after for a request, or opens one.
func (s *sessions) joinLocked(now time.Time, t *try, after uint64) (seat, error) {
	best, good := s.pickLocked(now, after)
	var refused error
	switch {
	case best != nil && best.rankLocked(now) == rankGood && (best.users == 0 || good >= s.connections):
	case len(s.list) >= 2*s.connections+2:
		refused = errLimit
	default:
		var opened *session
		if opened, refused = s.openForLocked(now, t); opened != nil {
			best = opened
		}
	}
	if best == nil {
		return seat{}, fmt.Errorf("finding a session: %w", refused)
	}
	if best.users == 0 && !best.owes {
		best.heard = now
	}
	best.users++
	s.turns++
	best.turn = s.turns
	return seat{session: best, reused: best.open, newest: s.opened}, nil
}

// pickLocked finds the best session, and counts the good ones.
func (s *sessions) pickLocked(now time.Time, after uint64) (best *session, good int) {
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
		if rank == rankGood {
			good++
		}
		before := best == nil || x.users < best.users || x.users == best.users && x.turn < best.turn
		if rank < bestRank || rank == bestRank && before {
			best, bestRank = x, rank
		}
	}
	return best, good
}

// rankLocked is the session's rank among the others. One that is full, or that the peer is about to end, is as good as
// one that is silent: a request on it would wait.
func (x *session) rankLocked(now time.Time) int {
	switch {
	case x.users > 0 && now.Sub(x.heard) >= stallTime, x.open && x.conn.Available() == 0, !x.open && x.users >= maxInflight:
		return rankStalled
	case x.ahead && !x.open:
		return rankAhead
	case x.aged:
		return rankAged
	}
	return rankGood
}

// openForLocked opens a session for a query that waits. The error says why not.
func (s *sessions) openForLocked(now time.Time, t *try) (*session, error) {
	if s.left {
		return nil, errLeft
	}
	if !s.pace.take(now, 0) {
		if s.fault != nil {
			return nil, fmt.Errorf("opening sessions too often, as they end: %w", s.fault)
		}
		return nil, errLimit
	}
	if t.conns != nil && t.conns.Add(1) > maxConns {
		return nil, errLimit
	}
	return s.openLocked(now), nil
}

// openAheadLocked opens what is missing of the sessions, no query having to wait for them.
func (s *sessions) openAheadLocked(now time.Time) {
	young := 0
	for _, x := range s.list {
		if !x.aged {
			young++
		}
	}
	for ; !s.retired && now.Sub(s.asked) < idleTimeout && young < s.connections && s.pace.take(now, paceAhead); young++ {
		s.openLocked(now).ahead = true
	}
}

func (s *sessions) openLocked(now time.Time) *session {
	s.opened++
	x := &session{sessions: s, number: s.opened, ready: make(chan struct{}), heard: now, rested: s.asked}
	s.list = append(s.list, x)
	s.alive++
	go x.begin() // joined by wait
	return x
}

// begin opens the session.
func (x *session) begin() {
	s := x.sessions
	conn, err := x.connect()
	if err != nil {
		x.end(fmt.Errorf("connecting: %w", err))
		close(x.ready)
		s.endOne()
		return
	}
	now := s.now()
	s.mu.Lock()
	x.conn, x.open = conn, true
	if x.err != nil { // nobody waited for it
		x.closeLocked()
	} else {
		x.begunLocked(now)
	}
	close(x.ready)
	s.mu.Unlock()
	conn.SetStateHook(func(conn *http.ClientConn) { x.lost(conn) })
	x.lost(conn) // if it was before there was a hook
}

// connect makes the connection. Its transport is for this one only, so that what it dials is known to be this session's.
func (x *session) connect() (conn *http.ClientConn, err error) {
	s := x.sessions
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout) // many requests wait for it
	defer cancel()
	s.mu.Lock()
	x.cancel, err = cancel, x.err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer s.recovered(ctx, func() { err = errPanic })
	transport := &http.Transport{
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return x.dial(ctx) },
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, // else it refuses what is above
			SendPingTimeout:             pingAfter,
			PingTimeout:                 pingAfter,
			WriteByteTimeout:            writeTimeout,
		},
	}
	transport.Protocols.SetHTTP2(true)
	return transport.NewClientConn(ctx, "https", s.target.Addr.String())
}

// begunLocked notes that the session is open.
func (x *session) begunLocked(now time.Time) {
	s := x.sessions
	age := lineAge
	if bits, err := s.ids.next(); err == nil {
		age += time.Duration(bits) * (lineAge / 2) / (1 << 16)
	}
	x.ages = now.Add(age)
	x.alarm.set(now, x.ages, x.expire)
	if x.users == 0 {
		x.heard = now
	}
	x.restLocked(now)
	for _, old := range slices.Clone(s.list) {
		if old.aged {
			old.restLocked(now)
		}
	}
}

// lost ends the session if the peer has, or the network.
func (x *session) lost(conn *http.ClientConn) {
	if err := conn.Err(); err != nil {
		x.end(err)
	}
}

// dial makes the connection under the session.
func (x *session) dial(ctx context.Context) (net.Conn, error) {
	s := x.sessions
	nc, err := s.dial(ctx, "tcp", s.target.Addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = limitSilence(raw) // without it there are still the pings
		}
	}
	secured, err := s.trust.handshake(ctx, nc)
	if err == nil && secured.ConnectionState().NegotiatedProtocol != "h2" {
		err = fmt.Errorf("%w: it does not speak HTTP/2", errTLS)
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	x.bare = nc
	return secured, nil // as it is: the transport looks at what was negotiated
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
	s := x.sessions
	switch {
	case x.err != nil || x.users > 0:
	case s.retired:
		x.endLocked(errRetired)
	case !x.open && !x.ahead:
		x.endLocked(errAbandoned)
	case !x.open:
	case x.owes && now.Sub(x.heard) >= stallTime:
		x.endLocked(errSilent)
	case x.owes:
		x.alarm.set(now, x.heard.Add(stallTime), x.expire)
	case x.aged && slices.ContainsFunc(s.list, func(o *session) bool { return o.open && o.rankLocked(now) == rankGood }):
		x.endLocked(errAged)
	default:
		quiet := x.rested
		if s.asked.After(quiet) {
			quiet = s.asked
		}
		if now.Sub(quiet) >= idleTimeout {
			x.endLocked(errIdle)
			return
		}
		x.alarm.set(now, quiet.Add(idleTimeout), x.expire)
	}
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
	if x.open { // else begin sees to it
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
