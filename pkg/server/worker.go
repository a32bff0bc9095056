// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Worker is a reader's way into the handler. It holds what one query at a time
// needs, so it is used by one goroutine at a time and a hit allocates nothing.
type Worker interface {
	// AnswerFromMemory tries to answer the query in pkt from memory. With wire.Answered it
	// appended the reply to dst; with wire.Missed the caller owes a call of
	// Resolve before the next AnswerFromMemory and leaves pkt untouched until that returned.
	AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict)
	// Resolve takes over the query that the last AnswerFromMemory missed. It does not wait for
	// the answer, which to gets later, or at once when the query is refused. Of a
	// query that came over TCP to is a wire.Stream.
	Resolve(from *wire.Peer, now time.Time, to wire.Replier)
	// Flush lets go what Resolve put off to the end of the batch, as queries upstream
	// are, and makes known what was counted since the last Flush. Readers call it
	// after each batch, with the time the batch was done, and after a panic, before
	// they give the worker up.
	Flush(now time.Time)
}

// A Handler gives readers their workers: a UDP socket one of its own, TCP sessions
// one for each batch, which others use again after them.
type Handler interface {
	NewWorker() Worker
}
