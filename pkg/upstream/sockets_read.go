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
	of   *sockets
	conn net.Conn
	raw  syscall.RawConn // nil: there are no batches for this kind of socket or system
	life *time.Timer     // calls expire

	// Guarded by of.mu:
	tries   map[uint16]*try // by ID
	slot    int             // in of.slots; -1: in none
	batches int             // that were given to it
	spent   bool            // too old, or found no answer: is not to be used again, if there is another
	ended   bool            // is about to be closed
}

// run reads until the socket is ended or fails, and closes it.
func (s *socket) run() {
	defer s.of.release()
	defer s.of.recovered(context.Background(), func() {})
	err := s.read()
	orphans := s.fail()
	_ = s.conn.Close() // all that matters has been read
	s.of.tell(orphans, fmt.Errorf("receiving: %w", err))
}

// read returns why there is nothing more to be read.
func (s *socket) read() (err error) {
	defer s.of.recovered(context.Background(), func() { err = errPanic })
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
func (s *socket) fail() (orphans []*try) {
	u := s.of
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range s.tries {
		t.ride.packet.socket = nil
		orphans = append(orphans, t)
	}
	clear(s.tries)
	u.endLocked(s)
	return orphans
}

// tell has each of the tries know what became of it, also after one whose handling panicked.
func (u *sockets) tell(tries []*try, err error) {
	var batch wire.SendBatch
	for _, t := range tries {
		u.tellOne(t, received{err: err}, &batch)
	}
	batch.Flush()
}

func (u *sockets) tellOne(t *try, r received, batch *wire.SendBatch) {
	defer u.recovered(context.Background(), func() {})
	t.carried(r, batch)
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
	defer s.of.recovered(context.Background(), func() {})
	for next = i; next < n; {
		i, next = next, next+1
		s.take(datagram(i), msg, batch)
	}
	return next
}

// take hands a datagram to the try that it answers. What answers none is counted and dropped, and so is what cannot be
// read: the wait for the answer goes on, or anybody could end it (RFC 5452 section 9.1). Of a truncated answer nothing
// but the header and the question is read; TCP brings all of it.
func (s *socket) take(r []byte, msg *wire.Message, batch *wire.SendBatch) {
	var (
		u           = s.of
		t, likeness = s.match(r)
		out         received
	)
	switch {
	case likeness == wire.NoMatch:
		u.count.failures[CauseMismatch].Add(1)
		return
	case likeness == wire.CaseMismatch:
		out.recased = true
	case likeness == wire.NoEDNS:
		out.noEDNS = uint16(r[3] & 0x0f)
	case isTruncated(r):
		out.truncated = true
	default:
		if err := msg.Parse(r); err != nil {
			u.count.failures[CauseMalformed].Add(1)
			s.note(t, wire.ID(r), fmt.Errorf("%w: %w", errMalformed, err))
			return
		}
		out.m = msg
	}
	if !s.claim(t, wire.ID(r)) {
		u.count.failures[CauseMismatch].Add(1) // another answer was there before
		return
	}
	t.carried(out, batch)
}

// match finds the try whose ID a datagram has, and tells how its question resembles what was asked there.
func (s *socket) match(r []byte) (*try, wire.MatchResult) {
	if len(r) < wire.HeaderLen {
		return nil, wire.NoMatch
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	t := s.tries[wire.ID(r)]
	if t == nil {
		return nil, wire.NoMatch
	}
	likeness := wire.Match(t.ride.packet.sent, r)
	if likeness == wire.CaseMismatch && !t.mixed {
		likeness = wire.ExactMatch // nobody asked for these letters
	}
	return t, likeness
}

// claim takes a try off the socket. It reports whether it was there still.
func (s *socket) claim(t *try, id uint16) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.tries[id] != t {
		return false
	}
	s.of.removeLocked(s, t)
	return true
}

// note remembers what was wrong with an answer, in case there is no better one.
func (s *socket) note(t *try, id uint16, err error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.tries[id] == t {
		t.ride.packet.malformed = err
	}
}

// isTruncated reads the TC bit of a message that is at least a header.
func isTruncated(r []byte) bool { return r[2]&0x02 != 0 }
