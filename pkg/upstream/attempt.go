// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A try is one query to one upstream.
type attempt struct {
	query []byte // a whole message that other tries share; its ID and the case of its letters are for the carrier to draw
	// mixed says that the letters of the name leave in random case, and are to come back so. It is heeded over UDP:
	// nobody forges an answer on a connection by guessing.
	randomCase  bool
	connsOpened *atomic.Int32 // connections opened for the same query of a client, by all its tries; maxConns at most. Nil: not counted
	pending     pendingQuery  // what the carrier notes, guarded by its lock

	onReply func(reply, *wire.SendBatch) // takes what came; nil: race does

	exchange       *exchange
	endpoint       *endpoint
	index          int       // in its race, from 0
	noOPT          bool      // sent without OPT record
	smallUDP       bool      // sent with the smallest EDNS size, since the upstream was silent before
	latencyStale   bool      // the upstream was not asked for long before
	sentAt         time.Time // when it was sent
	timeout        time.Duration
	hedgeDelay     time.Duration // after which it is late; 0: nobody can say
	mayHedge       bool          // somebody able may be asked beside it then
	done           bool          // guarded by race.mu, as all below
	timeoutCounted bool          // for its silence
	awaitLate      bool          // its race has ended, and it goes on for what can be learned from it
	transport      transport     // that has it now
	udpRTT         time.Duration // over UDP, when the answer must be fetched over TCP
	caseChanged    bool          // it must be because the letters came back changed
	tcpRetry       bool          // over TCP after UDP: it counts in manners.fetches
}

// A ride is what a carrier notes about a try on its way.
type pendingQuery struct {
	datagram datagramState // as a datagram
	sent     []byte        // the query as it was sent, but as a datagram

	id         uint16      // on its connection
	conn       *streamConn // the connection it is on; nil: none
	newestConn uint64      // number of the newest connection when it came on this one
	reused     bool        // that one was open before the query came
	retried    bool        // it has had its second chance
	request    *dohRequest // the one of HTTPS that it is; nil: none
}

// carried says what came for the try.
func (a *attempt) deliver(r reply, batch *wire.SendBatch) {
	if a.onReply != nil {
		a.onReply(r, batch)
		return
	}
	a.exchange.handleReply(a, r, batch)
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

// A carrier brings queries to one upstream and brings back what it says: sockets of UDP, connections of TCP or TLS,
// requests of HTTPS. Its methods may be called from any goroutine.
type transport interface {
	// carry takes the try's query to be sent at the latest when later is flushed. An error says that nothing will
	// come of it; otherwise the try's carried is called once, unless drop comes first. That call comes after carry has
	// returned and with no lock of the carrier held. later is not nil and is not flushed here.
	send(a *attempt, batch *wire.SendBatch) error
	// drop says that nobody waits for the try any more. A call of carried may be under way all the same. It returns what
	// was wrong with the last malformed message that came for the try and did not end the wait, nil if there was none.
	cancel(a *attempt) (malformed error)
	// leave refuses queries from now on; those under way go on, and with the last of them all that is open is closed.
	shutdown()
	// retire closes what has no query now, and all else after its last query. Queries are still taken.
	closeIdle()
	// wait returns when, after leave or retire, nothing is open and no goroutine is left.
	wait()
	// open counts the sockets, connections or sessions that are open or opening, and those ever begun.
	openCount() (now int, ever uint64)
}

// A received is what came for a try. If err is nil and none of truncated, recased and noEDNS is set, m is a whole message,
// read from end to end, that answers the query.
type reply struct {
	m               *wire.Message // of which Raw is the message; valid during the call only
	truncated       bool          // over UDP: it came with TC set, and m is nil
	caseChanged     bool          // over UDP: its question is spelled in other letters than were sent, and m is nil
	headerOnlyRcode uint16        // the response code of a header without a question, see [wire.NoEDNS], and m is nil; 0: none
	err             error         // wraps errMalformed, errLimit, errDied, or is what the system said
}
