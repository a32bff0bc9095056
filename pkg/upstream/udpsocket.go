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

// datagramSize is how many bytes of a datagram are read: the largest EDNS size of a query here.
const datagramSize = 4096

// A socket is a UDP socket that is connected to the upstream, so that the kernel drops packets from other addresses.
// Only its reader closes it.
type socket struct {
	pool     *socketPool
	conn     net.Conn
	raw      syscall.RawConn // nil: no batches for this kind of socket or system
	ageTimer *time.Timer     // calls onAge

	// Guarded by socketPool.mu:
	attempts map[uint16]*attempt // by ID
	slot     int                 // in socketPool.slots; -1: in none
	batches  int                 // assigned to it
	retiring bool                // too old, or without an answer: used only if there is no other
	ended    bool                // about to be closed
}

// run reads until the socket is ended or fails, and closes it.
func (s *socket) run() {
	defer s.pool.release()
	defer s.pool.recoverPanic(context.Background(), func() {})
	err := s.read()
	pending := s.fail()
	_ = s.conn.Close() // everything of interest has been read
	s.pool.deliverError(pending, fmt.Errorf("receiving: %w", err))
}

// read reads until there is an error, and returns it.
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

// fail ends the socket and returns its pending attempts.
func (s *socket) fail() (pending []*attempt) {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range s.attempts {
		a.pending.datagram.socket = nil
		pending = append(pending, a)
	}
	clear(s.attempts)
	p.endLocked(s)
	return pending
}

// deliverError delivers the error to each attempt, even if one of the callbacks panics.
func (p *socketPool) deliverError(attempts []*attempt, err error) {
	var batch wire.SendBatch
	for _, a := range attempts {
		p.deliverReply(a, reply{err: err}, &batch)
	}
	batch.Flush()
}

func (p *socketPool) deliverReply(a *attempt, r reply, batch *wire.SendBatch) {
	defer p.recoverPanic(context.Background(), func() {})
	a.deliver(r, batch)
}

// deliver handles n datagrams received together, and then sends the queries that follow from them.
func (s *socket) deliver(n int, datagram func(i int) []byte, msg *wire.Message, batch *wire.SendBatch) {
	for i := 0; i < n; {
		i = s.deliverFrom(i, n, datagram, msg, batch)
	}
	batch.Flush()
}

// deliverFrom handles the datagrams from i on. It returns the index to go on with: after a panic the one behind,
// otherwise n.
func (s *socket) deliverFrom(i, n int, datagram func(i int) []byte, msg *wire.Message, batch *wire.SendBatch) (next int) {
	defer s.pool.recoverPanic(context.Background(), func() {})
	for next = i; next < n; {
		i, next = next, next+1
		s.handleDatagram(datagram(i), msg, batch)
	}
	return next
}

// handleDatagram delivers a datagram to the attempt that it answers. It counts and drops datagrams that answer none
// or cannot be parsed; otherwise any sender could end an attempt (RFC 5452 section 9.1). Of a truncated answer only the
// header and the question are read, as TCP repeats all of it.
func (s *socket) handleDatagram(r []byte, msg *wire.Message, batch *wire.SendBatch) {
	var (
		p          = s.pool
		a, matched = s.match(r)
		out        reply
	)
	switch {
	case matched == wire.NoMatch:
		p.count.failures[CauseMismatch].Add(1)
		return
	case matched == wire.CaseMismatch:
		out.caseChanged = true
	case matched == wire.NoEDNS:
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
		p.count.failures[CauseMismatch].Add(1) // another answer came first
		return
	}
	a.deliver(out, batch)
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
	matched := wire.Match(a.pending.datagram.sent, r)
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

// noteMalformed stores the error of an answer, in case no better answer comes.
func (s *socket) noteMalformed(a *attempt, id uint16, err error) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.attempts[id] == a {
		a.pending.datagram.malformed = err
	}
}

// isTruncated returns the TC bit of a message of at least a header.
func isTruncated(r []byte) bool { return r[2]&0x02 != 0 }

// outboxSize is the most queries that one system call sends. Above 64 the cost per query no longer falls.
const outboxSize = 64

// An outbox holds queries that leave together through one socket.
type outbox struct {
	socket *socket
	next   *outbox // to be sent as well
	n      int
	ids    [outboxSize]uint16
	ends   [outboxSize]int // of the messages in buf
	buf    []byte          // the messages, one after the other
	failed []failedQuery   // that could not be sent
	mmsg   mmsgBatch
}

// A failedQuery is a query that the kernel rejected.
type failedQuery struct {
	id  uint16
	err error
}

func newOutbox() *outbox {
	o := &outbox{buf: make([]byte, 0, outboxSize*96)}
	o.mmsg.init(o)
	return o
}

// hasRoomLocked reports whether there is room for one more query.
func (o *outbox) hasRoomLocked() bool {
	return o.n < outboxSize && !o.socket.ended && len(o.socket.attempts) < socketQueries
}

// add appends a query with the ID. The caller must finish the returned message before the next call.
func (o *outbox) add(q []byte, id uint16) []byte {
	start := len(o.buf)
	o.buf = append(o.buf, q...)
	o.ids[o.n], o.ends[o.n] = id, len(o.buf)
	o.n++
	msg := o.buf[start:]
	wire.SetID(msg, id)
	return msg
}

// message returns the i-th query.
func (o *outbox) message(i int) []byte {
	start := 0
	if i > 0 {
		start = o.ends[i-1]
	}
	return o.buf[start:o.ends[i]]
}

// reset empties the outbox for reuse.
func (o *outbox) reset() {
	clear(o.failed)
	o.socket, o.next, o.n = nil, nil, 0
	o.buf, o.failed = o.buf[:0], o.failed[:0]
}

// Flush sends the queued queries.
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

// sendOutbox sends one outbox. Attempts that cannot be sent get their error before it returns.
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

// sendSingly sends one datagram at a time. An error means that the socket is unusable.
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

// classifySendError sorts the error of sending the i-th query. An error of that query alone is stored; an error of
// the socket is returned.
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
