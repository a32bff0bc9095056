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

// How a socket is used.
const (
	socketAge      = time.Second     // how long it takes queries at least
	socketAgeRange = 2 * time.Second // random addition to socketAge
	socketBuffer   = 256 << 10       // its receive buffer in bytes: 64 datagrams of 1,232 bytes, each counted as a page
)

func newSocketPool(c *common, addr netip.AddrPort, count *counters) *socketPool {
	p := &socketPool{common: c, addr: addr, count: count, random: bufio.NewReaderSize(c.Rand, randomBuffer)}
	p.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // one may go on while another waits for a lock
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

// isShortage reports whether opening a socket failed for lack of a resource that open sockets have.
func isShortage(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	}, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

// openLocked opens a socket for a slot and counts its first batch. It releases the lock meanwhile. If the slot was
// filled by then, the socket gets no slot and takes only one batch.
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

// cancel forgets an attempt. Its socket is not used for others: their packets may get lost in the same way.
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

func newOutbox() *outbox {
	o := &outbox{Outbox: mmsg.NewOutbox(outboxSize, outboxSize*128), failed: map[uint16]error{}}
	o.write = func(fd uintptr) { o.err = o.sendBatch(fd) }
	return o
}

// hasRoomLocked reports whether there is room for one more query.
func (o *outbox) hasRoomLocked() bool {
	return o.Len() < outboxSize && !o.socket.ended && len(o.socket.attempts) < socketQueries
}

// add adds a query with the ID, and returns it.
func (o *outbox) add(q []byte, id uint16) []byte {
	msg := append(o.Buffer(), q...)
	wire.SetID(msg, id)
	o.ids[o.Len()] = id
	o.Add(msg)
	return msg
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
		o.Reset()
		clear(o.failed)
		o.socket, o.next, o.err = nil, nil, nil
		p.outboxes.Put(o)
		o = next
	}
}

// sendOutbox sends one outbox. Attempts that cannot be sent get their error before it returns.
func (p *socketPool) sendOutbox(o *outbox) {
	s := o.socket
	var err error
	if s.raw == nil {
		err = o.sendSingly(s.conn)
	} else if err = s.raw.Control(o.write); err == nil {
		err = o.err
	}
	if err != nil {
		p.deliverError(s.fail(), fmt.Errorf("sending: %w", err))
	}
	for id, err := range o.failed {
		if a := s.takeByID(id); a != nil {
			p.deliverError([]*attempt{a}, fmt.Errorf("sending: %w", err))
		}
	}
}

// sendBatch sends the queries with as few system calls as possible. A rejected query does not stop those after it. An
// error means that the socket is unusable.
func (o *outbox) sendBatch(fd uintptr) error {
	for i, errno := o.Send(fd, 0); errno != 0; i, errno = o.Send(fd, i+1) {
		if err := o.classifySendError(i, errno); err != nil {
			return err
		}
	}
	return nil
}

// sendSingly does the same through a connection that has no batches.
func (o *outbox) sendSingly(w net.Conn) error {
	for i := range o.Len() {
		if _, err := w.Write(o.Datagram(i)); err != nil {
			if err = o.classifySendError(i, err); err != nil {
				return err
			}
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
	o.failed[o.ids[i]] = err
	return nil
}
