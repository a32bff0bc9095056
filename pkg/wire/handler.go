// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
)

// A Peer is the client that sent a query: its address and its transport.
type Peer struct {
	Addr   netip.AddrPort // IPv4 addresses in 4-byte form
	Stream bool           // TCP: no size limit below 64 KiB
}

// A Verdict is the outcome of an attempt to answer a query from memory.
type Verdict uint8

// The verdicts.
const (
	Answered Verdict = iota // a reply was appended
	Missed                  // the answer is not in memory: call Resolve
	Dropped                 // no reply is due
)

// A Replier sends the one reply of a query that could not be answered from memory.
type Replier interface {
	// Reply sends msg, which is valid only during the call. It is called exactly once, from any
	// goroutine, and does not wait for the client. A nil msg means that no reply is sent. The reply
	// may be queued until batch is flushed. batch is never nil.
	Reply(msg []byte, batch *SendBatch)
}

// An AnswerReceiver receives the result of one upstream query.
type AnswerReceiver interface {
	// Answered is called exactly once, from any goroutine, possibly before the call that sent the
	// query returns. answer is valid only during the call. It is nil if and only if err is not.
	// batch is never nil; the caller flushes it afterwards.
	Answered(answer []byte, err error, batch *SendBatch)
}

// A Stream is a Replier that can send several messages for one query, as a zone transfer needs (RFC
// 5936). The Replier of a query that came over TCP is a Stream.
type Stream interface {
	Replier
	// SendMessage sends msg, which is valid only during the call, before later messages. It blocks
	// while the client reads slowly. It returns false when the client accepts no more. The caller
	// must still call Reply, with the last message or nil.
	SendMessage(msg []byte) bool
}

// A Flusher queues work until the end of a batch.
type Flusher interface {
	// Flush sends what is queued. It may be called from any goroutine, also when nothing is queued.
	Flush()
}

// A SendBatch collects what is sent at the end of a batch, so that one system call serves many
// queries: upstream queries and replies. It belongs to one goroutine. The zero value is ready for
// use.
type SendBatch struct {
	due  []Flusher
	next int // index of the first entry of due that is not flushed yet
}

// Add has f flushed at the end of the batch. The goroutine that queues the first item in f calls
// Add; items that others queue before the flush go with it.
func (l *SendBatch) Add(f Flusher) { l.due = append(l.due, f) }

// Flush ends the batch. It flushes the added Flushers in order, and those added meanwhile. If one
// of them panics, the next Flush continues after it.
func (l *SendBatch) Flush() {
	for l.next < len(l.due) {
		l.next++
		l.due[l.next-1].Flush()
	}
	clear(l.due)
	l.due, l.next = l.due[:0], 0
}
