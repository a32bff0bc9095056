// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
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

// outboxSize is the most queries that one system call sends. Above 64 the cost of each no longer falls.
const outboxSize = 64

// An outbox is queries that leave together through one socket.
type outbox struct {
	socket *socket
	next   *outbox // to be sent as well
	n      int
	ids    [outboxSize]uint16
	ends   [outboxSize]int // of the messages in octets
	buf    []byte          // the messages, one after the other
	failed []failedQuery   // what send could not send
	mmsg   mmsgBatch
}

// A failedQuery is one that the kernel did not take.
type failedQuery struct {
	id  uint16
	err error
}

func newOutbox() *outbox {
	o := &outbox{buf: make([]byte, 0, outboxSize*96)}
	o.mmsg.init(o)
	return o
}

// takesLocked tells whether there is room for one more query.
func (o *outbox) hasRoomLocked() bool {
	return o.n < outboxSize && !o.socket.ended && len(o.socket.attempts) < socketQueries
}

// add appends a query with the ID. The message that it gives is to be finished before the next one is added.
func (o *outbox) add(q []byte, id uint16) []byte {
	start := len(o.buf)
	o.buf = append(o.buf, q...)
	o.ids[o.n], o.ends[o.n] = id, len(o.buf)
	o.n++
	msg := o.buf[start:]
	wire.SetID(msg, id)
	return msg
}

// message is the i-th query.
func (o *outbox) message(i int) []byte {
	start := 0
	if i > 0 {
		start = o.ends[i-1]
	}
	return o.buf[start:o.ends[i]]
}

// reset empties the outbox for other queries.
func (o *outbox) reset() {
	clear(o.failed)
	o.socket, o.next, o.n = nil, nil, 0
	o.buf, o.failed = o.buf[:0], o.failed[:0]
}

// Flush sends what was carried since the last time.
func (p *socketPool) Flush() {
	p.mu.Lock()
	o := p.outboxQueue
	p.outboxQueue = nil
	p.mu.Unlock()
	for o != nil {
		next := o.next
		p.sendOutbox(o)
		o.reset()
		p.outboxes.Put(o)
		o = next
	}
}

// send sends one outbox. Who cannot be sent hears of it before send returns.
func (p *socketPool) sendOutbox(o *outbox) {
	s := o.socket
	var err error
	if s.raw != nil {
		err = o.sendBatch(s.raw)
	} else {
		err = o.sendSingly(s.conn)
	}
	if err != nil {
		p.deliverError(s.fail(), fmt.Errorf("sending: %w", err))
	}
	for _, f := range o.failed {
		if a := s.takeByID(f.id); a != nil {
			p.deliverError([]*attempt{a}, fmt.Errorf("sending: %w", f.err))
		}
	}
}

// lose takes the try with the ID off the socket, if there is one.
func (s *socket) takeByID(id uint16) *attempt {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	a := s.attempts[id]
	if a != nil {
		s.pool.removeLocked(s, a)
	}
	return a
}

// sendEach sends one datagram at a time. An error says that the socket is of no use any more.
func (o *outbox) sendSingly(w interface{ Write([]byte) (int, error) }) error {
	for i := range o.n {
		_, err := w.Write(o.message(i))
		if err == nil {
			continue
		}
		if err = o.classifySendError(i, err); err != nil {
			return err
		}
	}
	return nil
}

// refused sorts the error of sending the i-th query: it concerns that query only, and is kept for it, or the socket as
// a whole, and is returned.
func (o *outbox) classifySendError(i int, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		err = fmt.Errorf("%w: %w", errLimit, err)
	case errors.Is(err, syscall.EMSGSIZE), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
	default:
		return err
	}
	o.failed = append(o.failed, failedQuery{o.ids[i], err})
	return nil
}
