// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodecache/node-cache/pkg/wire"
)

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
