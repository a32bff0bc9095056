// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Lane is a reader's way into the handler. It holds what one query at a time
// needs, so it is used by one goroutine at a time and a hit allocates nothing.
type Lane interface {
	// Fast tries to answer the query in pkt from memory. With wire.Answered it
	// appended the reply to dst; with wire.Missed the caller owes a call of
	// Slow before the next Fast and leaves pkt untouched until that returned.
	Fast(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict)
	// Slow takes over the query that the last Fast missed. It does not wait for
	// the answer, which to gets later, or at once when the query is refused. Of a
	// query that came over TCP to is a wire.Stream.
	Slow(from *wire.Peer, now time.Time, to wire.Replier)
	// Flush lets go what Slow put off to the end of the batch, as queries upstream
	// are, and makes known what was counted since the last Flush. Readers call it
	// after each batch, with the time the batch was done, and after a panic, before
	// they give the lane up.
	Flush(now time.Time)
}

// A Handler gives readers their lanes: a UDP socket one of its own, TCP sessions
// one for each batch, which others use again after them.
type Handler interface {
	NewLane() Lane
}
