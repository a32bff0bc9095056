// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	maxSockets     = 2 * socketSlots // and those included that only wait for what is on its way
	socketBatches  = 64              // batches of queries that leave from one port
	socketQueries  = 1024            // on their way through one socket
	socketAge      = time.Second     // how long a socket takes queries at least,
	socketAgeRange = 2 * time.Second // and how much longer at most
	idDraws        = 8               // after so many one is free, but for a chance of 1 in 2^48
)

// sockets are the UDP sockets to one upstream. Queries that come together leave together, in one system call, through
// one socket that is drawn for them. Each has an ID of its own: who wants to forge its answer must guess both port and
// ID, and the letters of the name where these are mixed.
//
//	carry ─ ID, letters ─ the socket's table ─ outbox ─ Flush ─► upstream
//	                            │                                  │
//	try.carried ◄── whole? ◄── ID, question ◄──── reader ◄─────────┘
//
// A socket takes queries for a few seconds and a few batches, and is closed with its last one. After a query that
// found no answer it takes no more: where something on the way swallows what comes from a port, as a stale entry of
// connection tracking does, the next try is heard.
//
// One lock guards all of it and is never held while the network is at work.
type socketPool struct {
	*common
	addr     netip.AddrPort
	count    *counters
	inboxes  sync.Pool     // of *inbox: a socket holds one only while it reads
	readers  chan struct{} // one for each inbox in use: an inbox is large, and the sockets are many
	outboxes sync.Pool     // of *outbox

	mu          sync.Mutex // guards the fields below, and those of socket and packet where they say so
	cond        *sync.Cond // tells that a socket was closed
	outboxQueue *outbox    // what Flush is to send; the first takes more
	slots       [socketSlots]*socket
	openSockets int       // sockets open or opening
	opened      uint64    // sockets opened, ever
	noIdle      bool      // keep no socket without a query
	closed      bool      // the upstream is no longer one: take no query
	randBuf     [512]byte // from common's rand
	randUsed    int       // octets of random that are used up
}

// A packet is what sockets note about a try, guarded by their lock.
type datagramState struct {
	socket    *socket // whose table it is in; nil: in none
	id        uint16
	sent      []byte    // the query as it was sent
	inline    [104]byte // of sent, but for long names
	malformed error     // what was wrong with the last answer that could not be read
}

func newSocketPool(c *common, addr netip.AddrPort, count *counters) *socketPool {
	p := &socketPool{common: c, addr: addr, count: count}
	p.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // while one waits for a lock, another may go on
	p.cond = sync.NewCond(&p.mu)
	p.inboxes.New = func() any { return newInbox() }
	p.outboxes.New = func() any { return newOutbox() }
	p.randUsed = len(p.randBuf)
	return p
}

// carry takes the query's place in a socket's table and puts it into the outbox. Where the batch finds its slot empty
// it opens a socket, which never waits for anybody.
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

// addLocked gives the try an ID and puts it into the outbox and into the table of the outbox's socket.
func (p *socketPool) addLocked(a *attempt, o *outbox) error {
	id, err := p.freeIDLocked(o.socket)
	if err != nil {
		return err
	}
	var letters uint64
	if a.randomCase {
		drawn, err := p.randomLocked(8)
		if err != nil {
			return err
		}
		letters = binary.LittleEndian.Uint64(drawn)
	}
	msg := o.add(a.query, id)
	if a.randomCase {
		wire.RandomCase(msg, letters)
	}
	d := &a.pending.datagram
	d.socket, d.id, d.malformed = o.socket, id, nil
	d.sent = append(d.inline[:0], msg...)
	o.socket.attempts[id] = a
	return nil
}

// freeLocked draws an ID that no other query on the socket has.
func (p *socketPool) freeIDLocked(s *socket) (uint16, error) {
	for range idDraws {
		b, err := p.randomLocked(2)
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

// drawLocked gives n random octets, 8 at most, which are good until the next call.
func (p *socketPool) randomLocked(n int) ([]byte, error) {
	if p.randUsed+n > len(p.randBuf) {
		if _, err := io.ReadFull(p.rand, p.randBuf[:]); err != nil {
			return nil, fmt.Errorf("drawing random numbers: %w", err)
		}
		p.randUsed = 0
	}
	p.randUsed += n
	return p.randBuf[p.randUsed-n : p.randUsed], nil
}

// socketBuffer is the octets the kernel is to keep for a socket until they are read: 64 datagrams of 1,232 octets, each
// of which it counts as a page.
const socketBuffer = 256 << 10

// socketLocked draws a socket for a batch of queries. It may let go of the lock meanwhile.
func (p *socketPool) drawSocketLocked() (*socket, error) {
	if p.closed {
		return nil, errRemoved
	}
	drawn, err := p.randomLocked(2)
	if err != nil {
		return nil, err
	}
	// While slots are empty, of two the empty one: many sockets are open before one is used again.
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
	for i := range p.slots { // at is the first that is looked at
		if s := p.slots[(at+i)%socketSlots]; s != nil && len(s.attempts) < socketQueries {
			s.batches++
			return s, nil
		}
	}
	return nil, fmt.Errorf("finding a socket: %w", short)
}

// wornLocked tells whether another socket is to take the place of this one. While there can be none, it goes on.
func (s *socket) usedUpLocked() bool {
	return s.retiring || s.batches >= socketBatches || len(s.attempts) >= socketQueries
}

// isShortage tells whether an error of opening a socket is for want of something that open sockets have.
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

// openLocked opens a socket for a slot and counts its first batch. It lets go of the lock meanwhile. If the slot was
// filled in that time, the socket has no slot and takes one batch only.
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

// placeLocked puts a socket into a slot, unless there is a good one in it.
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

// connect opens a socket with room for a burst of answers.
func (p *socketPool) connect() (conn net.Conn, err error) {
	defer p.recoverPanic(context.Background(), func() { err = errPanic })
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err = p.dial(ctx, "udp", p.addr)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	if udp, ok := conn.(*net.UDPConn); ok {
		_ = udp.SetReadBuffer(socketBuffer) // less room is no reason not to ask
	}
	return conn, nil
}

// ageLocked draws how long a socket is to take queries.
func (p *socketPool) randomAgeLocked() (time.Duration, error) {
	drawn, err := p.randomLocked(1)
	if err != nil {
		return 0, err
	}
	return socketAge + socketAgeRange*time.Duration(drawn[0])/256, nil
}

// expire is called when a socket is too old for further queries.
func (s *socket) onAge() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.retiring = true
	s.pool.checkIdleLocked(s)
}

// restLocked ends a socket that has nothing to do and is not to be used again.
func (p *socketPool) checkIdleLocked(s *socket) {
	if len(s.attempts) == 0 && (s.retiring || s.slot < 0 || p.noIdle) {
		p.endLocked(s)
	}
}

// endLocked has the reader of a socket close it. No query gets there any more.
func (p *socketPool) endLocked(s *socket) {
	if s.ended {
		return
	}
	s.ended = true
	if s.slot >= 0 {
		p.slots[s.slot], s.slot = nil, -1
	}
	s.ageTimer.Stop()
	// Close would wait for a reader that is at work, and that may wait for this lock.
	_ = s.conn.SetDeadline(time.Unix(1, 0)) // long past: it wakes the reader
}

// releaseLocked counts a socket that is closed, or could not be opened.
func (p *socketPool) releaseLocked() {
	p.openSockets--
	p.cond.Broadcast()
}

// release counts a socket that was closed.
func (p *socketPool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseLocked()
}

// removeLocked takes a try out of its socket's table.
func (p *socketPool) removeLocked(s *socket, a *attempt) {
	delete(s.attempts, a.pending.datagram.id)
	a.pending.datagram.socket = nil
	p.checkIdleLocked(s)
}

// drop forgets a try. Its socket is not used for others: whatever came of its query may come of the next one.
func (p *socketPool) cancel(a *attempt) (malformed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := a.pending.datagram.socket; s != nil {
		s.retiring = true
		p.removeLocked(s, a)
	}
	return a.pending.datagram.malformed
}

// leave is retire for an upstream that nobody may ask any more.
func (p *socketPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// retire closes the sockets without a query now, and the others after their last one.
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

// wait returns when no socket is open.
func (p *socketPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.openSockets > 0 {
		p.cond.Wait()
	}
}

// open counts the sockets.
func (p *socketPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.openSockets, p.opened
}
