// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/wire"
)

// outboxSize is the most queries that one system call sends. Above 64 the cost per query no longer falls.
const outboxSize = 64

// An outbox holds queries that leave together through one socket.
type outbox struct {
	*mmsg.Outbox
	socket *socket
	next   *outbox            // next outbox in socketPool.outboxQueue; nil: none
	ids    [outboxSize]uint16 // IDs of the queries, in their order
	failed map[uint16]error   // by ID: errors of the queries that the kernel rejected
	write  func(fd uintptr)   // sendBatch; made once, to avoid an allocation per call
	err    error              // result of write: why the socket is unusable; nil: it is usable
}

func newOutbox() *outbox {
	o := &outbox{Outbox: mmsg.NewOutbox(outboxSize, outboxSize*128), failed: map[uint16]error{}}
	o.write = func(fd uintptr) { o.err = o.sendBatch(fd) }
	return o
}

// hasRoomLocked reports whether the outbox and its socket can take one more query.
func (o *outbox) hasRoomLocked() bool {
	return o.Len() < outboxSize && !o.socket.ended && len(o.socket.attempts) < socketQueries
}

// add adds a copy of q with the ID, and returns the copy.
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

// sendSingly sends the queries one by one, for a connection that is not a kernel socket.
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
