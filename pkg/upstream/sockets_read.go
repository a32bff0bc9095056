// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// datagramSize is the octets of a datagram that are read: the largest EDNS size a query may have here.
const datagramSize = 4096

// A socket is one UDP port that is connected to the upstream, so that the kernel drops what others send there. Its
// reader is the only one who closes it.
type socket struct {
	pool     *socketPool
	conn     net.Conn
	raw      syscall.RawConn // nil: there are no batches for this kind of socket or system
	ageTimer *time.Timer     // calls expire

	// Guarded by of.mu:
	attempts map[uint16]*attempt // by ID
	slot     int                 // in of.slots; -1: in none
	batches  int                 // that were given to it
	retiring bool                // too old, or found no answer: is not to be used again, if there is another
	ended    bool                // is about to be closed
}

// run reads until the socket is ended or fails, and closes it.
func (s *socket) run() {
	defer s.pool.release()
	defer s.pool.recoverPanic(context.Background(), func() {})
	err := s.read()
	orphans := s.fail()
	_ = s.conn.Close() // all that matters has been read
	s.pool.deliverError(orphans, fmt.Errorf("receiving: %w", err))
}

// read returns why there is nothing more to be read.
func (s *socket) read() (err error) {
	defer s.pool.recoverPanic(context.Background(), func() { err = errPanic })
	if s.raw != nil {
		return s.readBatches()
	}
	return s.readEach()
}

// readEach reads one datagram at a time.
func (s *socket) readEach() error {
	var (
		buf   [datagramSize]byte
		msg   wire.Message
		batch wire.SendBatch
	)
	for {
		n, err := s.conn.Read(buf[:])
		if err != nil {
			return err
		}
		s.deliver(1, func(int) []byte { return buf[:n] }, &msg, &batch)
	}
}

// fail ends the socket and gives the tries that were on it.
func (s *socket) fail() (orphans []*attempt) {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range s.attempts {
		a.pending.datagram.socket = nil
		orphans = append(orphans, a)
	}
	clear(s.attempts)
	p.endLocked(s)
	return orphans
}

// tell has each of the tries know what became of it, also after one whose handling panicked.
func (p *socketPool) deliverError(tries []*attempt, err error) {
	var batch wire.SendBatch
	for _, a := range tries {
		p.deliverReply(a, reply{err: err}, &batch)
	}
	batch.Flush()
}

func (p *socketPool) deliverReply(a *attempt, r reply, batch *wire.SendBatch) {
	defer p.recoverPanic(context.Background(), func() {})
	a.deliver(r, batch)
}

// deliver takes n datagrams that came together, and flushes what their answers cause.
func (s *socket) deliver(n int, datagram func(i int) []byte, msg *wire.Message, batch *wire.SendBatch) {
	for i := 0; i < n; {
		i = s.deliverFrom(i, n, datagram, msg, batch)
	}
	batch.Flush()
}

// deliverFrom takes datagrams from the i-th on and returns the one to go on with: the next after one whose handling
// panicked, or the end.
func (s *socket) deliverFrom(i, n int, datagram func(i int) []byte, msg *wire.Message, batch *wire.SendBatch) (next int) {
	defer s.pool.recoverPanic(context.Background(), func() {})
	for next = i; next < n; {
		i, next = next, next+1
		s.handleDatagram(datagram(i), msg, batch)
	}
	return next
}

// take hands a datagram to the try that it answers. What answers none is counted and dropped, and so is what cannot be
// read: the wait for the answer goes on, or anybody could end it (RFC 5452 section 9.1). Of a truncated answer nothing
// but the header and the question is read; TCP brings all of it.
func (s *socket) handleDatagram(r []byte, msg *wire.Message, batch *wire.SendBatch) {
	var (
		p           = s.pool
		a, likeness = s.match(r)
		out         reply
	)
	switch {
	case likeness == wire.NoMatch:
		p.count.failures[CauseMismatch].Add(1)
		return
	case likeness == wire.CaseMismatch:
		out.caseChanged = true
	case likeness == wire.NoEDNS:
		out.headerOnlyRcode = uint16(r[3] & 0x0f)
	case isTruncated(r):
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
		p.count.failures[CauseMismatch].Add(1) // another answer was there before
		return
	}
	a.deliver(out, batch)
}

// match finds the try whose ID a datagram has, and tells how its question resembles what was asked there.
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
	likeness := wire.Match(a.pending.datagram.sent, r)
	if likeness == wire.CaseMismatch && !a.randomCase {
		likeness = wire.ExactMatch // nobody asked for these letters
	}
	return a, likeness
}

// claim takes a try off the socket. It reports whether it was there still.
func (s *socket) claim(a *attempt, id uint16) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.attempts[id] != a {
		return false
	}
	s.pool.removeLocked(s, a)
	return true
}

// note remembers what was wrong with an answer, in case there is no better one.
func (s *socket) noteMalformed(a *attempt, id uint16, err error) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.attempts[id] == a {
		a.pending.datagram.malformed = err
	}
}

// isTruncated reads the TC bit of a message that is at least a header.
func isTruncated(r []byte) bool { return r[2]&0x02 != 0 }
