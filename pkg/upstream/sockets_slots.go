// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

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
