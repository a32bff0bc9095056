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
	if s.retired || now.Sub(s.asked) >= idleTimeout {
		return
	}
	for s.youngLocked() < s.connections && len(s.list) < 2*s.connections+1 && s.pace.take(now, paceAhead) {
		s.openLocked(now).ahead = true
	}
}

func (s *sessions) openLocked(now time.Time) *session {
	s.opened++
	x := &session{sessions: s, number: s.opened, ready: make(chan struct{}), life: life{heard: now, rested: s.asked}}
	s.list = append(s.list, x)
	s.alive++
	go x.run() // joined by wait
	return x
}

// run opens the session.
func (x *session) run() {
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
	x.conn = conn
	x.openedLocked(now)
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

// openedLocked notes that the session is open.
func (x *session) openedLocked(now time.Time) {
	s := x.sessions
	if x.err != nil { // nobody waited for it
		x.open = true
		x.closeLocked()
		return
	}
	if x.users == 0 {
		x.heard = now
	}
	x.begin(now, &s.ids, x.expire)
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
