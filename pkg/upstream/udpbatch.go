// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/wire"
)

// batchConn returns access to a socket for batched system calls; nil: there is none.
func batchConn(conn net.Conn) syscall.RawConn {
	if udp, ok := conn.(*net.UDPConn); ok {
		if raw, err := udp.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// inboxSize is the most answers that one system call receives.
const inboxSize = 32

// An inbox is the memory of a socket while it is read. An idle socket holds none.
type inbox struct {
	*mmsg.Inbox
	msg   wire.Message
	batch wire.SendBatch
	at    func(i int) []byte // made once, to avoid an allocation per call
}

func newInbox() *inbox {
	in := mmsg.NewInbox(inboxSize, datagramSize)
	return &inbox{Inbox: in, at: in.Datagram}
}

// readBatches reads batches until the socket is ended or fails.
func (s *socket) readBatches() error {
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		failed = s.drainSocket(fd)
		return failed != nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// drainSocket receives all pending datagrams. Nil means to wait for more.
func (s *socket) drainSocket(fd uintptr) error {
	s.pool.readers <- struct{}{}
	defer func() { <-s.pool.readers }()
	b := s.pool.inboxes.Get().(*inbox)
	err := s.recvInto(b, fd)
	s.pool.inboxes.Put(b) // not after a panic
	return err
}

// recvInto receives into the inbox until the socket is empty.
func (s *socket) recvInto(b *inbox, fd uintptr) error {
	for {
		n, errno := b.Receive(fd)
		switch errno {
		case 0:
			s.deliver(n, b.at, &b.msg, &b.batch)
		case unix.EAGAIN:
			return nil
		default:
			return errno
		}
		if n < inboxSize {
			return nil // it was empty then; later datagrams wake the poller
		}
	}
}

// outboxSize is the most queries that one system call sends. Above 64 the cost per query no longer falls.
const outboxSize = 64

// An outbox holds queries that leave together through one socket.
type outbox struct {
	*mmsg.Outbox
	socket *socket
	next   *outbox // to be sent as well
	ids    [outboxSize]uint16
	failed []failedQuery    // that could not be sent
	write  func(fd uintptr) // sendBatch, made once to avoid an allocation per call
	err    error            // of write: why the socket is unusable
}

// A failedQuery is a query that the kernel rejected.
type failedQuery struct {
	id  uint16
	err error
}

func newOutbox() *outbox {
	o := &outbox{Outbox: mmsg.NewOutbox(outboxSize, outboxSize*128)}
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

// reset empties the outbox for reuse.
func (o *outbox) reset() {
	clear(o.failed)
	o.Reset()
	o.socket, o.next, o.failed, o.err = nil, nil, o.failed[:0], nil
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
	if s.raw == nil {
		err = o.sendSingly(s.conn)
	} else if err = s.raw.Control(o.write); err == nil {
		err = o.err
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
func (o *outbox) sendSingly(w io.Writer) error {
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
	o.failed = append(o.failed, failedQuery{o.ids[i], err})
	return nil
}
