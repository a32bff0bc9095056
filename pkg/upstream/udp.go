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
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the UDP sockets to one upstream.
const (
	socketSlots   = 128             // sockets that take queries
	maxSockets    = 2 * socketSlots // including those that only wait for answers
	socketBatches = 64              // batches of queries from one port
	socketQueries = 1024            // pending queries on one socket
)

// A socketPool holds the UDP sockets to one upstream. The queries of a batch leave in one system call, through one
// random socket. Each query has a random ID. To forge an answer, an attacker must guess port, ID and, with 0x20, the
// case of the name.
//
//	send ─ ID, case ─ the socket's table ─ outbox ─ Flush ─► upstream
//	                            │                              │
//	handleReply ◄──── parse ◄─ match ID and question ◄─ reader ◄┘
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
	inboxes  sync.Pool     // idle *inbox values; a socket holds one only while it reads
	readers  chan struct{} // limits the inboxes in use, which are large
	outboxes sync.Pool     // idle *outbox values

	mu          sync.Mutex // guards the fields below, and those of socket and attempt where they say so
	cond        *sync.Cond // signaled when a socket was closed or could not be opened
	outboxQueue *outbox    // outboxes that Flush sends, a linked list; the first one takes more queries
	slots       [socketSlots]*socket
	openSockets int    // open or opening
	opened      uint64 // sockets ever opened
	noIdle      bool   // close sockets after their last query
	closed      bool   // the upstream was removed: refuse queries
	random      *bufio.Reader
}

// How a socket is used.
const (
	socketAge      = time.Second     // how long it takes queries at least
	socketAgeRange = 2 * time.Second // random addition to socketAge
	socketBuffer   = 256 << 10       // its receive buffer in bytes: 64 datagrams of 1,232 bytes, each counted as a page
)

func newSocketPool(c *common, addr netip.AddrPort, count *counters) *socketPool {
	p := &socketPool{common: c, addr: addr, count: count, random: bufio.NewReaderSize(c.Rand, randomBuffer)}
	p.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // twice the processors: a reader may go on while another waits for a lock
	p.cond = sync.NewCond(&p.mu)
	p.inboxes.New = func() any { return &inbox{Inbox: mmsg.NewInbox(inboxSize, datagramSize)} }
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
	var caseBits uint64
	if a.randomCase {
		drawn, err := draw(p.random, 8)
		if err != nil {
			return err
		}
		caseBits = binary.LittleEndian.Uint64(drawn)
	}
	if err := addByID(o.socket.attempts, a, p.random); err != nil {
		return err
	}
	msg := o.add(a.query, a.id)
	if a.randomCase {
		wire.RandomCase(msg, caseBits)
	}
	a.socket, a.malformed = o.socket, nil
	a.sent = append(a.inline[:0], msg...)
	return nil
}

// drawSocketLocked returns a random socket for a batch. It releases the lock while it opens a socket.
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
	for i := range p.slots { // begin with the slot at
		if s := p.slots[(at+i)%socketSlots]; s != nil && len(s.attempts) < socketQueries {
			s.batches++
			return s, nil
		}
	}
	return nil, fmt.Errorf("choosing a socket: %w", short)
}

// isShortage reports whether opening a socket failed for lack of a resource that open sockets have.
func isShortage(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	}, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

// openLocked opens a socket for a slot and counts its first batch. It releases the lock meanwhile. If the slot holds
// a usable socket by then, the new one gets no slot and takes only one batch.
func (p *socketPool) openLocked(at int) (*socket, error) {
	drawn, err := draw(p.random, 1)
	if err != nil {
		return nil, err
	}
	age := socketAge + socketAgeRange*time.Duration(drawn[0])/256
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
	s := &socket{pool: p, conn: conn, raw: rawConn(conn), slot: -1, batches: 1, attempts: map[uint16]*attempt{}}
	s.ageTimer = time.AfterFunc(age, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.retiring = true
		p.checkIdleLocked(s)
	})
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
	conn, err = p.Dial(ctx, "udp", p.addr)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	if udp, ok := conn.(*net.UDPConn); ok {
		_ = udp.SetReadBuffer(socketBuffer) // a smaller buffer works as well
	}
	return conn, nil
}

// cancel forgets an attempt. It retires the attempt's socket: packets of other queries on it may get lost in the same way.
func (p *socketPool) cancel(a *attempt) (malformed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := a.socket; s != nil {
		s.retiring = true
		p.removeLocked(s, a)
	}
	return a.malformed
}

// closeIdle implements transport.
func (p *socketPool) closeIdle(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle, p.closed = true, p.closed || refuse
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

// deliverError delivers the error to each attempt, even if one of the callbacks panics.
func (p *socketPool) deliverError(attempts []*attempt, err error) {
	var batch wire.SendBatch
	for _, a := range attempts {
		func() {
			defer p.recoverPanic(context.Background(), func() {})
			a.receiver.handleReply(a, reply{err: err}, &batch)
		}()
	}
	batch.Flush()
}

// removeLocked removes an attempt from its socket's table.
func (p *socketPool) removeLocked(s *socket, a *attempt) {
	delete(s.attempts, a.id)
	a.socket = nil
	p.checkIdleLocked(s)
}

// checkIdleLocked ends a socket that has no query and gets no more.
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
