// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A try is one query to one upstream.
type try struct {
	query []byte // a whole message that other tries share; its ID and the case of its letters are for the carrier to draw
	// mixed says that the letters of the name leave in random case, and are to come back so. It is heeded over UDP:
	// nobody forges an answer on a connection by guessing.
	mixed bool
	conns *atomic.Int32 // connections opened for the same query of a client, by all its tries; maxConns at most. Nil: not counted
	ride  ride          // what the carrier notes, guarded by its lock

	report func(received, *wire.SendBatch) // takes what came; nil: race does

	race     *race
	ep       *endpoint
	number   int       // in its race, from 0
	plain    bool      // sent without OPT record
	small    bool      // sent with the smallest EDNS size, since the upstream was silent before
	stale    bool      // the upstream was not asked for long before
	began    time.Time // when it was sent
	patience time.Duration
	hedge    time.Duration // after which it is late; 0: nobody can say
	relief   bool          // somebody able may be asked beside it then
	ended    bool          // guarded by race.mu, as all below
	blamed   bool          // for its silence
	orphan   bool          // its race has ended, and it goes on for what can be learned from it
	over     carrier       // that has it now
	rtt      time.Duration // over UDP, when the answer must be fetched over TCP
	recased  bool          // it must be because the letters came back changed
	fetching bool          // over TCP after UDP: it counts in manners.fetches
}

// A ride is what a carrier notes about a try on its way.
type ride struct {
	packet packet // as a datagram
	sent   []byte // the query as it was sent, but as a datagram

	id      uint16   // on its connection
	line    *line    // the connection it is on; nil: none
	newest  uint64   // number of the newest connection when it came on this one
	reused  bool     // that one was open before the query came
	second  bool     // it has had its second chance
	request *request // the one of HTTPS that it is; nil: none
}

// carried says what came for the try.
func (t *try) carried(r received, batch *wire.SendBatch) {
	if t.report != nil {
		t.report(r, batch)
		return
	}
	t.race.carried(t, r, batch)
}

// An outcome is what became of a try; err is nil if it has a good answer.
type outcome struct {
	cause Cause // with err
	rcode uint16
	edns  bool
	err   error
}

func (o *outcome) reason() Reason {
	switch {
	case errors.Is(o.err, errRcode):
		return Rcode
	case errors.Is(o.err, errMalformed):
		return Malformed
	case o.cause == CauseTimeout:
		return Timeout
	}
	return Network
}
