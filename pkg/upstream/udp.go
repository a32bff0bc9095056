// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the UDP sockets to one upstream.
const (
	socketSlots    = 128             // sockets that take queries
	maxSockets     = 2 * socketSlots // including those that only wait for answers
	socketBatches  = 64              // batches of queries from one port
	socketQueries  = 1024            // pending queries on one socket
	socketAge      = time.Second     // how long a socket takes queries at least
	socketAgeRange = 2 * time.Second // random addition to socketAge
	idDraws        = 8               // tries to find a free ID; all fail with a chance of 1 in 2^48
)

// A socketPool holds the UDP sockets to one upstream. The queries of a batch leave in one system call, through one
// random socket. Each query has a random ID. To forge an answer, an attacker must guess port, ID and, with 0x20, the
// case of the name.
//
//	send ─ ID, case ─ the socket's table ─ outbox ─ Flush ─► upstream
//	                            │                              │
//	attempt.deliver ◄─ parse ◄─ match ID and question ◄─ reader ◄┘
//
// A socket takes queries for a few seconds and a limited number of batches, and closes after the last answer. After a
// query without an answer it takes no more: if something on the path drops packets from its port, such as a stale
// conntrack entry, the next attempt comes from another port.
//
// One lock guards all of it. It is never held during system calls on a socket.
type socketPool struct {
	*common
	addr     netip.AddrPort
	count    *counters
	inboxes  sync.Pool     // of *inbox; a socket holds one only while it reads
	readers  chan struct{} // limits the inboxes in use, which are large
	outboxes sync.Pool     // of *outbox

	mu          sync.Mutex // guards the fields below, and those of socket and pendingQuery where they say so
	cond        *sync.Cond // signaled when a socket is closed
	outboxQueue *outbox    // that Flush sends; the first one takes more queries
	slots       [socketSlots]*socket
	openSockets int    // open or opening
	opened      uint64 // sockets ever opened
	noIdle      bool   // close sockets after their last query
	closed      bool   // the upstream was removed: refuse queries
	random      *bufio.Reader
}

func newSocketPool(c *common, addr netip.AddrPort, count *counters) *socketPool {
	p := &socketPool{common: c, addr: addr, count: count, random: bufio.NewReaderSize(c.rand, randomBuffer)}
	p.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // one may go on while another waits for a lock
	p.cond = sync.NewCond(&p.mu)
	p.inboxes.New = func() any { return newInbox() }
	p.outboxes.New = func() any { return newOutbox() }
	return p
}

// send adds the query to a socket's table and to the outbox. It opens a socket if the batch has none, which never
// blocks.
func (p *socketPool) send(a *attempt, batch *wire.SendBatch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errRemoved
	}
	if p.outboxQueue == nil || !p.outboxQueue.hasRoomLocked() {
		s, err := p.drawSocketLocked()
		if err != nil {
			return err
		}
		if p.outboxQueue == nil {
			batch.Add(p)
		}
		o := p.outboxes.Get().(*outbox)
		o.socket, o.next = s, p.outboxQueue
		p.outboxQueue = o
	}
	return p.addLocked(a, p.outboxQueue)
}

// addLocked gives the attempt an ID, and adds it to the outbox and to the table of the outbox's socket.
func (p *socketPool) addLocked(a *attempt, o *outbox) error {
	id, err := p.freeIDLocked(o.socket)
	if err != nil {
		return err
	}
	var caseBits uint64
	if a.randomCase {
		drawn, err := draw(p.random, 8)
		if err != nil {
			return err
		}
		caseBits = binary.LittleEndian.Uint64(drawn)
	}
	msg := o.add(a.query, id)
	if a.randomCase {
		wire.RandomCase(msg, caseBits)
	}
	d := &a.pending
	d.socket, d.id, d.malformed = o.socket, id, nil
	d.sent = append(d.inline[:0], msg...)
	o.socket.attempts[id] = a
	return nil
}

// freeIDLocked returns a random ID that is free on the socket.
func (p *socketPool) freeIDLocked(s *socket) (uint16, error) {
	for range idDraws {
		b, err := draw(p.random, 2)
		if err != nil {
			return 0, err
		}
		id := binary.LittleEndian.Uint16(b)
		if s.attempts[id] == nil {
			return id, nil
		}
	}
	return 0, fmt.Errorf("finding a free ID: %w", errLimit)
}

// socketBuffer is the receive buffer of a socket in bytes: 64 datagrams of 1,232 bytes, each of which the kernel
// counts as a page.
const socketBuffer = 256 << 10

// drawSocketLocked returns a random socket for a batch. It may release the lock meanwhile.
func (p *socketPool) drawSocketLocked() (*socket, error) {
	if p.closed {
		return nil, errRemoved
	}
	drawn, err := draw(p.random, 2)
	if err != nil {
		return nil, err
	}
	// Prefer an empty slot of two, so that many sockets are open before one is reused.
	at := int(drawn[0]) % socketSlots
	if other := int(drawn[1]) % socketSlots; p.slots[other] == nil {
		at = other
	}
	short := errLimit
	if s := p.slots[at]; (s == nil || s.usedUpLocked()) && p.openSockets < maxSockets {
		s, err := p.openLocked(at)
		if !isShortage(err) {
			return s, err
		}
		short = fmt.Errorf("%w: %w", errLimit, err)
	}
	for i := range p.slots { // begin with at
		if s := p.slots[(at+i)%socketSlots]; s != nil && len(s.attempts) < socketQueries {
			s.batches++
			return s, nil
		}
	}
	return nil, fmt.Errorf("choosing a socket: %w", short)
}

// usedUpLocked reports whether a new socket should replace this one. It stays in use if none can be opened.
func (s *socket) usedUpLocked() bool {
	return s.retiring || s.batches >= socketBatches || len(s.attempts) >= socketQueries
}

// isShortage reports whether opening a socket failed for lack of a resource that open sockets have.
func isShortage(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// openLocked opens a socket for a slot and counts its first batch. It releases the lock meanwhile. If the slot was
// filled by then, the socket gets no slot and takes only one batch.
func (p *socketPool) openLocked(at int) (*socket, error) {
	age, err := p.randomAgeLocked()
	if err != nil {
		return nil, err
	}
	p.openSockets++
	p.opened++
	p.mu.Unlock()
	conn, err := p.connect()
	p.mu.Lock()
	if err == nil && p.closed {
		_ = conn.Close()
		err = errRemoved
	}
	if err != nil {
		p.releaseLocked()
		return nil, err
	}
	s := &socket{pool: p, conn: conn, raw: batchConn(conn), slot: -1, batches: 1, attempts: map[uint16]*attempt{}}
	s.ageTimer = time.AfterFunc(age, s.onAge)
	p.placeLocked(s, at)
	go s.run() // joined by wait
	return s, nil
}

// placeLocked puts a socket into a slot unless that holds a usable one.
func (p *socketPool) placeLocked(s *socket, at int) {
	old := p.slots[at]
	if old != nil && !old.usedUpLocked() {
		return
	}
	p.slots[at], s.slot = s, at
	if old != nil {
		old.slot = -1
		p.checkIdleLocked(old)
	}
}

// connect opens a socket with a receive buffer for a burst of answers.
func (p *socketPool) connect() (conn net.Conn, err error) {
	defer p.recoverPanic(context.Background(), func() { err = errPanic })
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err = p.dial(ctx, "udp", p.addr)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	if udp, ok := conn.(*net.UDPConn); ok {
		_ = udp.SetReadBuffer(socketBuffer) // a smaller buffer works as well
	}
	return conn, nil
}

// randomAgeLocked returns how long a socket takes queries.
func (p *socketPool) randomAgeLocked() (time.Duration, error) {
	drawn, err := draw(p.random, 1)
	if err != nil {
		return 0, err
	}
	return socketAge + socketAgeRange*time.Duration(drawn[0])/256, nil
}

// onAge ends the use of a socket for further queries.
func (s *socket) onAge() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.retiring = true
	s.pool.checkIdleLocked(s)
}

// checkIdleLocked ends a socket that has no query and gets none.
func (p *socketPool) checkIdleLocked(s *socket) {
	if len(s.attempts) == 0 && (s.retiring || s.slot < 0 || p.noIdle) {
		p.endLocked(s)
	}
}

// endLocked makes the reader of a socket close it. The socket gets no more queries.
func (p *socketPool) endLocked(s *socket) {
	if s.ended {
		return
	}
	s.ended = true
	if s.slot >= 0 {
		p.slots[s.slot], s.slot = nil, -1
	}
	s.ageTimer.Stop()
	// Close would wait for the reader, which may wait for this lock.
	_ = s.conn.SetDeadline(time.Unix(1, 0)) // in the past: wakes the reader
}

// releaseLocked counts a socket that was closed or could not be opened.
func (p *socketPool) releaseLocked() {
	p.openSockets--
	p.cond.Broadcast()
}

// release is releaseLocked for callers without the lock.
func (p *socketPool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseLocked()
}

// removeLocked removes an attempt from its socket's table.
func (p *socketPool) removeLocked(s *socket, a *attempt) {
	delete(s.attempts, a.pending.id)
	a.pending.socket = nil
	p.checkIdleLocked(s)
}

// cancel forgets an attempt. Its socket is not used for others: their packets may get lost in the same way.
func (p *socketPool) cancel(a *attempt) (malformed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := a.pending.socket; s != nil {
		s.retiring = true
		p.removeLocked(s, a)
	}
	return a.pending.malformed
}

// shutdown implements transport.
func (p *socketPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// closeIdle implements transport.
func (p *socketPool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle = true
	for _, s := range p.slots {
		if s != nil {
			p.checkIdleLocked(s)
		}
	}
}

// wait implements transport.
func (p *socketPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.openSockets > 0 {
		p.cond.Wait()
	}
}

// openCount implements transport.
func (p *socketPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.openSockets, p.opened
}

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
		a.pending.socket = nil
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
	matched := wire.Match(a.pending.sent, r)
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
		a.pending.malformed = err
	}
}

// isTruncated returns the TC bit of a message of at least a header.
func isTruncated(r []byte) bool { return r[2]&0x02 != 0 }
