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
func (u *sockets) socketLocked() (*socket, error) {
	if u.left {
		return nil, errLeft
	}
	drawn, err := u.drawLocked(2)
	if err != nil {
		return nil, err
	}
	// While slots are empty, of two the empty one: many sockets are open before one is used again.
	at := int(drawn[0]) % socketSlots
	if other := int(drawn[1]) % socketSlots; u.slots[other] == nil {
		at = other
	}
	short := errLimit
	if s := u.slots[at]; (s == nil || s.wornLocked()) && u.held < maxSockets {
		s, err := u.openLocked(at)
		if !isShortage(err) {
			return s, err
		}
		short = fmt.Errorf("%w: %w", errLimit, err)
	}
	for i := range u.slots { // at is the first that is looked at
		if s := u.slots[(at+i)%socketSlots]; s != nil && len(s.tries) < socketQueries {
			s.batches++
			return s, nil
		}
	}
	return nil, fmt.Errorf("finding a socket: %w", short)
}

// wornLocked tells whether another socket is to take the place of this one. While there can be none, it goes on.
func (s *socket) wornLocked() bool {
	return s.spent || s.batches >= socketBatches || len(s.tries) >= socketQueries
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
func (u *sockets) openLocked(at int) (*socket, error) {
	age, err := u.ageLocked()
	if err != nil {
		return nil, err
	}
	u.held++
	u.begun++
	u.mu.Unlock()
	conn, err := u.connect()
	u.mu.Lock()
	if err == nil && u.left {
		_ = conn.Close()
		err = errLeft
	}
	if err != nil {
		u.releaseLocked()
		return nil, err
	}
	s := &socket{of: u, conn: conn, raw: rawOf(conn), slot: -1, batches: 1, tries: map[uint16]*try{}}
	s.life = time.AfterFunc(age, s.expire)
	u.placeLocked(s, at)
	go s.run() // joined by wait
	return s, nil
}

// placeLocked puts a socket into a slot, unless there is a good one in it.
func (u *sockets) placeLocked(s *socket, at int) {
	old := u.slots[at]
	if old != nil && !old.wornLocked() {
		return
	}
	u.slots[at], s.slot = s, at
	if old != nil {
		old.slot = -1
		u.restLocked(old)
	}
}

// connect opens a socket with room for a burst of answers.
func (u *sockets) connect() (conn net.Conn, err error) {
	defer u.recovered(context.Background(), func() { err = errPanic })
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err = u.dial(ctx, "udp", u.addr)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	if udp, ok := conn.(*net.UDPConn); ok {
		_ = udp.SetReadBuffer(socketBuffer) // less room is no reason not to ask
	}
	return conn, nil
}

// ageLocked draws how long a socket is to take queries.
func (u *sockets) ageLocked() (time.Duration, error) {
	drawn, err := u.drawLocked(1)
	if err != nil {
		return 0, err
	}
	return socketAge + socketAgeRange*time.Duration(drawn[0])/256, nil
}

// expire is called when a socket is too old for further queries.
func (s *socket) expire() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.spent = true
	s.of.restLocked(s)
}

// restLocked ends a socket that has nothing to do and is not to be used again.
func (u *sockets) restLocked(s *socket) {
	if len(s.tries) == 0 && (s.spent || s.slot < 0 || u.retired) {
		u.endLocked(s)
	}
}

// endLocked has the reader of a socket close it. No query gets there any more.
func (u *sockets) endLocked(s *socket) {
	if s.ended {
		return
	}
	s.ended = true
	if s.slot >= 0 {
		u.slots[s.slot], s.slot = nil, -1
	}
	s.life.Stop()
	// Close would wait for a reader that is at work, and that may wait for this lock.
	_ = s.conn.SetDeadline(time.Unix(1, 0)) // long past: it wakes the reader
}

// releaseLocked counts a socket that is closed, or could not be opened.
func (u *sockets) releaseLocked() {
	u.held--
	u.gone.Broadcast()
}

// release counts a socket that was closed.
func (u *sockets) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.releaseLocked()
}

// removeLocked takes a try out of its socket's table.
func (u *sockets) removeLocked(s *socket, t *try) {
	delete(s.tries, t.ride.packet.id)
	t.ride.packet.socket = nil
	u.restLocked(s)
}

// drop forgets a try. Its socket is not used for others: whatever came of its query may come of the next one.
func (u *sockets) drop(t *try) (malformed error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := t.ride.packet.socket; s != nil {
		s.spent = true
		u.removeLocked(s, t)
	}
	return t.ride.packet.malformed
}

// leave is retire for an upstream that nobody may ask any more.
func (u *sockets) leave() {
	u.mu.Lock()
	u.left = true
	u.mu.Unlock()
	u.retire()
}

// retire closes the sockets without a query now, and the others after their last one.
func (u *sockets) retire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired = true
	for _, s := range u.slots {
		if s != nil {
			u.restLocked(s)
		}
	}
}

// wait returns when no socket is open.
func (u *sockets) wait() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.held > 0 {
		u.gone.Wait()
	}
}

// open counts the sockets.
func (u *sockets) open() (now int, ever uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.held, u.begun
}
