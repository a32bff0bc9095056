// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodecache/node-cache/pkg/wire"
)

// outboxSize is the most queries that one system call sends. Above 64 the cost of each no longer falls.
const outboxSize = 64

// An outbox is queries that leave together through one socket.
type outbox struct {
	socket *socket
	next   *outbox // to be sent as well
	n      int
	ids    [outboxSize]uint16
	ends   [outboxSize]int // of the messages in octets
	octets []byte          // the messages, one after the other
	failed []failedQuery   // what send could not send
	batch  outbatch
}

// A failedQuery is one that the kernel did not take.
type failedQuery struct {
	id  uint16
	err error
}

func newOutbox() *outbox {
	o := &outbox{octets: make([]byte, 0, outboxSize*96)}
	o.batch.init(o)
	return o
}

// takesLocked tells whether there is room for one more query.
func (o *outbox) takesLocked() bool {
	return o.n < outboxSize && !o.socket.ended && len(o.socket.tries) < socketQueries
}

// add appends a query with the ID. The message that it gives is to be finished before the next one is added.
func (o *outbox) add(q []byte, id uint16) []byte {
	start := len(o.octets)
	o.octets = append(o.octets, q...)
	o.ids[o.n], o.ends[o.n] = id, len(o.octets)
	o.n++
	msg := o.octets[start:]
	wire.SetID(msg, id)
	return msg
}

// message is the i-th query.
func (o *outbox) message(i int) []byte {
	start := 0
	if i > 0 {
		start = o.ends[i-1]
	}
	return o.octets[start:o.ends[i]]
}

// reset empties the outbox for other queries.
func (o *outbox) reset() {
	clear(o.failed)
	o.socket, o.next, o.n = nil, nil, 0
	o.octets, o.failed = o.octets[:0], o.failed[:0]
}

// Flush sends what was carried since the last time.
func (u *sockets) Flush() {
	u.mu.Lock()
	o := u.due
	u.due = nil
	u.mu.Unlock()
	for o != nil {
		next := o.next
		u.send(o)
		o.reset()
		u.outboxes.Put(o)
		o = next
	}
}

// send sends one outbox. Who cannot be sent hears of it before send returns.
func (u *sockets) send(o *outbox) {
	s := o.socket
	var err error
	if s.raw != nil {
		err = o.sendBatch(s.raw)
	} else {
		err = o.sendEach(s.conn)
	}
	if err != nil {
		u.tell(s.fail(), fmt.Errorf("sending: %w", err))
	}
	for _, f := range o.failed {
		if t := s.lose(f.id); t != nil {
			u.tell([]*try{t}, fmt.Errorf("sending: %w", f.err))
		}
	}
}

// lose takes the try with the ID off the socket, if there is one.
func (s *socket) lose(id uint16) *try {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	t := s.tries[id]
	if t != nil {
		s.of.removeLocked(s, t)
	}
	return t
}

// sendEach sends one datagram at a time. An error says that the socket is of no use any more.
func (o *outbox) sendEach(w interface{ Write([]byte) (int, error) }) error {
	for i := range o.n {
		_, err := w.Write(o.message(i))
		if err == nil {
			continue
		}
		if err = o.refused(i, err); err != nil {
			return err
		}
	}
	return nil
}

// refused sorts the error of sending the i-th query: it concerns that query only, and is kept for it, or the socket as
// a whole, and is returned.
func (o *outbox) refused(i int, err error) error {
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
