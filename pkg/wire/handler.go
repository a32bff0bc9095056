// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
)

// A Peer is the client of a query: where it asks from and over what.
type Peer struct {
	Addr   netip.AddrPort // IPv4 addresses in their four-octet form
	Stream bool           // TCP: no size limit below 64 KiB
}

// A Verdict says what became of a query that was tried from memory.
type Verdict uint8

// The verdicts.
const (
	Answered Verdict = iota // a reply was appended
	Missed                  // the answer is not in memory: take the slow path
	Dropped                 // no reply is due
)

// A Replier takes the one reply of a query that left the fast path.
type Replier interface {
	// Reply sends msg, which is valid only during the call. It is called
	// exactly once, from any goroutine, and does not wait for the client. A nil
	// msg means that no reply is due. The reply may be held back until later,
	// which is never nil, is flushed.
	Reply(msg []byte, batch *SendBatch)
}

// An Asked waits for what upstreams say to one query.
type AnswerReceiver interface {
	// Answered is called exactly once, from any goroutine, maybe before the call
	// that asked returns. answer is valid during the call; it is nil if and only if
	// err is not. later is never nil, and flushed by the caller afterwards.
	Answered(answer []byte, err error, batch *SendBatch)
}

// A Stream is a Replier that takes more than one message for its query, as a zone
// transfer needs (RFC 5936). The replier of a query that came over TCP is one.
type Stream interface {
	Replier
	// More sends msg, which is valid only during the call, in front of what is
	// sent later. It waits while the client is slow to take what was sent
	// before. It returns false when the client takes no more. Reply ends the
	// query all the same, with the last message or with nil.
	SendMessage(msg []byte) bool
}

// A Flusher holds something back until the batch that it belongs to is done.
type Flusher interface {
	// Flush lets it go. It may be called from any goroutine, and when there is nothing to let go.
	Flush()
}

// Later is what is put off to the end of a batch, so that one system call does for many: queries to an upstream,
// replies through a socket. It belongs to one goroutine. The zero value is ready for use.
type SendBatch struct {
	due  []Flusher
	next int // the first of due that is not flushed yet
}

// Add has f flushed at the end of the batch. It is for whoever just put the first thing into f; what others put there
// before the flush goes along.
func (l *SendBatch) Add(f Flusher) { l.due = append(l.due, f) }

// Flush ends the batch: it flushes what was added, in that order, and what is added meanwhile. If one of them panics,
// the next Flush goes on behind it.
func (l *SendBatch) Flush() {
	for l.next < len(l.due) {
		l.next++
		l.due[l.next-1].Flush()
	}
	clear(l.due)
	l.due, l.next = l.due[:0], 0
}
