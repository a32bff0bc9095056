// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A socket is a UDP socket that is connected to the upstream, so that the kernel drops packets from other addresses.
// Only its reader closes it.
type socket struct {
	pool     *socketPool
	conn     net.Conn
	raw      syscall.RawConn // nil: no socket of the kernel, so no batches
	ageTimer *time.Timer     // sets retiring when the socket is too old

	// Guarded by socketPool.mu:
	attempts map[uint16]*attempt // pending attempts by DNS message ID
	slot     int                 // index in socketPool.slots; -1: it has no slot
	batches  int                 // number of batches assigned to it
	retiring bool                // too old, or a query got no answer: used only if there is no other
	ended    bool                // about to be closed
}

// datagramSize is how many bytes of a datagram are read: the largest EDNS size of a query here.
const datagramSize = 4096

// inboxSize is the most answers that one system call receives.
const inboxSize = 32

// An inbox is the memory of a socket while it is read. An idle socket holds none.
type inbox struct {
	*mmsg.Inbox
	msg   wire.Message
	batch wire.SendBatch
}

// usedUpLocked reports whether a new socket should replace this one, which stays in use if no new one can be opened.
func (s *socket) usedUpLocked() bool {
	return s.retiring || s.batches >= socketBatches || len(s.attempts) >= socketQueries
}

// run reads until the socket is ended or fails, and closes it.
func (s *socket) run() {
	p := s.pool
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.releaseLocked()
	}()
	defer p.recoverPanic(context.Background(), func() {})
	err := s.read()
	pending := s.fail()
	_ = s.conn.Close() // everything of interest has been read
	p.deliverError(pending, fmt.Errorf("receiving: %w", err))
}

// read reads until there is an error, and returns it.
func (s *socket) read() (err error) {
	defer s.pool.recoverPanic(context.Background(), func() { err = errPanic })
	if s.raw == nil {
		for in := (&inbox{Inbox: mmsg.NewInbox(1, datagramSize)}); ; s.deliver(in, 1) {
			if err := in.ReadOne(s.conn); err != nil {
				return err
			}
		}
	}
	var failed error
	err = s.raw.Read(func(fd uintptr) bool {
		failed = s.drainSocket(fd)
		return failed != nil
	})
	return cmp.Or(failed, err)
}

// drainSocket receives all pending datagrams. Nil means to wait for more.
func (s *socket) drainSocket(fd uintptr) error {
	s.pool.readers <- struct{}{}
	defer func() { <-s.pool.readers }()
	in := s.pool.inboxes.Get().(*inbox)
	err := s.receiveInto(in, fd)
	s.pool.inboxes.Put(in) // not after a panic
	return err
}

// receiveInto receives into the inbox until the socket is empty.
func (s *socket) receiveInto(in *inbox, fd uintptr) error {
	for {
		n, errno := in.Receive(fd)
		switch errno {
		case 0:
			s.deliver(in, n)
		case unix.EAGAIN:
			return nil
		default:
			return errno
		}
		if n < inboxSize {
			return nil // the socket was empty then; later datagrams wake the poller
		}
	}
}

// deliver handles n datagrams received together, and then sends the queries that follow from them.
func (s *socket) deliver(in *inbox, n int) {
	for i := range n {
		s.handleDatagram(in.Datagram(i), &in.msg, &in.batch)
	}
	in.batch.Flush()
}

// handleDatagram delivers a datagram to the attempt that it answers. It counts and drops datagrams that answer none
// or cannot be parsed; otherwise any sender could end an attempt (RFC 5452 section 9.1). Of a truncated answer only the
// header and the question are read, as TCP repeats all of it.
func (s *socket) handleDatagram(r []byte, msg *wire.Message, batch *wire.SendBatch) {
	p := s.pool
	defer p.recoverPanic(context.Background(), func() {}) // the other datagrams are still delivered
	var out reply
	a, matched := s.match(r)
	switch {
	case matched == wire.NoMatch:
		p.count.failures[CauseMismatch].Add(1)
		return
	case matched == wire.CaseMismatch:
		out.caseChanged = true
	case matched == wire.NoEDNS:
		out.headerOnlyRcode = uint16(r[3] & 0x0f)
	case r[2]&0x02 != 0: // TC
		out.truncated = true
	default:
		if err := msg.Parse(r); err != nil {
			p.count.failures[CauseMalformed].Add(1)
			s.noteMalformed(a, wire.ID(r), fmt.Errorf("%w: %w", errMalformed, err))
			return
		}
		out.m = msg
	}
	if !s.claim(a, wire.ID(r)) {
		p.count.failures[CauseMismatch].Add(1) // another answer came first
		return
	}
	a.receiver.handleReply(a, out, batch)
}

// match returns the attempt with the ID of a datagram, and how well the question matches.
func (s *socket) match(r []byte) (*attempt, wire.MatchResult) {
	if len(r) < wire.HeaderLen {
		return nil, wire.NoMatch
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	a := s.attempts[wire.ID(r)]
	if a == nil {
		return nil, wire.NoMatch
	}
	matched := wire.Match(a.sent, r)
	if matched == wire.CaseMismatch && !a.randomCase {
		matched = wire.ExactMatch // random case was not requested
	}
	return a, matched
}

// claim removes an attempt from the socket, and reports whether it was there.
func (s *socket) claim(a *attempt, id uint16) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.attempts[id] != a {
		return false
	}
	s.pool.removeLocked(s, a)
	return true
}

// noteMalformed stores the error of an answer, in case no well-formed one comes.
func (s *socket) noteMalformed(a *attempt, id uint16, err error) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.attempts[id] == a {
		a.malformed = err
	}
}

// takeByID removes and returns the attempt with the ID, nil if there is none.
func (s *socket) takeByID(id uint16) *attempt {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	a := s.attempts[id]
	if a != nil {
		s.pool.removeLocked(s, a)
	}
	return a
}

// fail ends the socket and returns its pending attempts.
func (s *socket) fail() (pending []*attempt) {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range s.attempts {
		a.socket = nil
		pending = append(pending, a)
	}
	clear(s.attempts)
	p.endLocked(s)
	return pending
}
