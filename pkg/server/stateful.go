// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxPushed bounds the bytes of queued answers to which Push may add a message.
	maxPushed = 2*maxResponded + 512
	// maxResponded bounds the bytes of queued answers to which SendMessage may add one: the largest message, of 16,382 bytes, has room
	// behind it, and a heartbeat behind that. So a client that subscribes faster than it reads waits, and its first PUSHes are not
	// built in vain.
	maxResponded = 16 << 10
	// lastWait is how long a client may take to end the connection after the last message (RFC 8490 section 6.6.1).
	lastWait = 5 * time.Second
	// opcodeStateful is that of DNS stateful operations.
	opcodeStateful = 6
	// noDeadline is longer than any session waits.
	noDeadline = 24 * time.Hour
)

// A Stateful handles the messages of DNS stateful operations (RFC 8490). Other queries of their sessions go to the [Handler].
type Stateful interface {
	// NewStateful returns the session of a client, nil if it may have none: the Handler gets its messages then.
	NewStateful(client netip.Addr, to StatefulConn) StatefulSession
	// EndAll ends all sessions: the server stops.
	EndAll()
}

// A StatefulSession is that of one connection. One goroutine calls its methods.
type StatefulSession interface {
	// Handle handles a message. It reports whether it was an operation, more than a Keepalive.
	Handle(msg []byte) (active bool)
	// Delinquent returns how long the client may have no operation until the connection is aborted; 0: it has one that lasts.
	Delinquent() time.Duration
	// Close is called once the connection has ended.
	Close()
}

// A StatefulConn sends the messages of a session. Any goroutine may call its methods, also after the connection has ended.
type StatefulConn interface {
	// SendMessage sends a message before later ones. It blocks while the client reads slowly. It returns false when the client accepts no more.
	SendMessage(msg []byte) bool
	// Push is SendMessage, but returns false instead of blocking.
	Push(msg []byte) bool
	// HasRoom reports whether Push would take a message of 16,382 bytes.
	HasRoom() bool
	// Last sends the last message. Later ones, and answers, are dropped. The connection ends 5 s later at the latest.
	Last(msg []byte)
	// Abort ends the connection with a reset.
	Abort()
}

func isStateful(pkt []byte) bool { return pkt[2]>>3&0xf == opcodeStateful }

// handleStateful handles a message of opcode 6. It returns false if the client may have no stateful session.
func (s *session) handleStateful(pkt []byte, now time.Time) bool {
	if s.stateful == nil {
		s.stateful = s.server.cfg.Stateful.NewStateful(s.peer.Addr.Addr(), statefulConn{&s.out})
		if s.stateful == nil {
			return false
		}
		s.operation = now
	}
	before := s.lasting.Load()
	active := s.stateful.Handle(pkt)
	limit := s.stateful.Delinquent()
	s.lasting.Store(limit == 0)
	if s.delinquent = limit; active || before {
		s.operation = now
	}
	return true
}

// statefulDeadline returns when a stateful session has had no operation for too long. Idle timeouts do not apply (RFC 8490 section 5.2).
func (s *session) statefulDeadline(answered time.Time) time.Time {
	if s.lasting.Load() {
		return time.Now().Add(noDeadline)
	}
	last := s.operation
	if answered.After(last) {
		last = answered
	}
	return last.Add(s.delinquent)
}

// closeStateful ends the stateful session, if there is one.
func (s *session) closeStateful() {
	if s.stateful != nil {
		s.stateful.Close()
	}
}

// A statefulConn implements [StatefulConn].
type statefulConn struct{ *outbox }

func (c statefulConn) SendMessage(msg []byte) bool { return c.sendWithin(msg, maxResponded) }

func (c statefulConn) Push(msg []byte) bool {
	o := c.outbox
	o.mu.Lock()
	held := len(o.pending) + o.sending
	room := o.closed || held == 0 || held+wire.FrameHeader+len(msg) <= maxPushed
	if room {
		o.appendLocked(msg)
	}
	o.mu.Unlock()
	o.server.shedMemory()
	return room
}

func (c statefulConn) HasRoom() bool {
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed || len(o.pending)+o.sending <= maxResponded
}

func (c statefulConn) Last(msg []byte) {
	o := c.outbox
	o.mu.Lock()
	o.appendLocked(msg)
	o.ended = true
	o.mu.Unlock()
	time.AfterFunc(lastWait, func() { o.abort() })
}

func (c statefulConn) Abort() { c.abort() }

// hasEnded reports whether the last message was sent.
func (o *outbox) hasEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}
