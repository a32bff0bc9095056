// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An attempt is one query to one upstream. An exchange makes one or more.
type attempt struct {
	query []byte // a whole message that attempts share; the transport chooses its ID and the case of its name
	// randomCase asks the transport to send the name in random case and to require the same case in the answer
	// (0x20). Only UDP honors it: on a connection, an off-path attacker cannot inject an answer.
	randomCase  bool
	connsOpened *atomic.Int32 // connections opened for one client query by all its attempts, at most maxConnsPerQuery; nil: not counted
	pending     pendingQuery  // state of the transport, guarded by the transport's lock

	onReply func(reply, *wire.SendBatch) // receives the reply; nil: exchange does

	exchange       *exchange
	endpoint       *endpoint
	index          int  // in its exchange, from 0
	noOPT          bool // sent without an OPT record
	smallUDP       bool // sent with the smallest EDNS size, since the upstream did not answer before
	latencyStale   bool // the latency was measured too long ago to be useful
	sentAt         time.Time
	timeout        time.Duration
	hedgeDelay     time.Duration // after which an answer counts as late; 0: unknown
	mayHedge       bool          // the next candidate is healthy, so a hedge may start
	done           bool          // guarded by exchange.mu, as all fields below
	timeoutCounted bool          // already counted as timed out
	awaitLate      bool          // the exchange has ended; a late reply still updates the upstream's health
	transport      transport     // that sends it now
	udpRTT         time.Duration // of the UDP answer, when the attempt moved on to TCP; 0: it has not
	caseChanged    bool          // it moved on to TCP because the answer had another case
	tcpRetry       bool          // it moved on to TCP: counted in capabilities.tcpRetries
}

// A pendingQuery is what a transport stores about an attempt.
type pendingQuery struct {
	datagram datagramState // over UDP
	sent     []byte        // the query as sent, except over UDP

	id         uint16      // on its connection
	conn       *streamConn // the connection it is on; nil: none
	newestConn uint64      // number of the newest connection when the query was assigned
	reused     bool        // the connection was open before the query was assigned
	retried    bool        // already moved once to another connection
	request    *dohRequest // over HTTPS; nil: none
}

// deliver hands the reply to the exchange or probe that started the attempt.
func (a *attempt) deliver(r reply, batch *wire.SendBatch) {
	if a.onReply != nil {
		a.onReply(r, batch)
		return
	}
	a.exchange.handleReply(a, r, batch)
}

// An outcome is the result of an attempt; err is nil if the answer is good.
type outcome struct {
	cause Cause // set if err is
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

// A transport sends queries to one upstream and delivers the replies: over UDP sockets, TCP or TLS connections, or
// HTTPS. Its methods are safe for concurrent use.
type transport interface {
	// send queues the attempt's query, which leaves when batch is flushed at the latest. An error is final. Otherwise
	// the attempt's deliver is called once, unless cancel is called first. The call comes after send has returned,
	// without a lock of the transport. batch is not nil and is not flushed here.
	send(a *attempt, batch *wire.SendBatch) error
	// cancel abandons the attempt. A call of deliver may be under way all the same. It returns the error of the last
	// malformed message that came for the attempt without ending it, nil if there was none.
	cancel(a *attempt) (malformed error)
	// shutdown refuses new queries. Pending ones go on; the last of them closes what it used.
	shutdown()
	// closeIdle closes what has no query now, and everything else after its last query. New queries are still
	// accepted.
	closeIdle()
	// wait returns when, after shutdown or closeIdle, nothing is open and no goroutine is left.
	wait()
	// openCount returns the number of sockets or connections that are open or opening, and of those ever opened.
	openCount() (now int, ever uint64)
}

// A reply is what a transport received for an attempt. If err is nil and none of truncated, caseChanged and
// headerOnlyRcode is set, m is a whole, well-formed message that answers the query.
type reply struct {
	m               *wire.Message // valid during the call only
	truncated       bool          // UDP: TC was set; m is nil
	caseChanged     bool          // UDP: the question came back in another case; m is nil
	headerOnlyRcode uint16        // response code of a header without a question, see [wire.NoEDNS]; m is nil; 0: none
	err             error         // wraps errMalformed, errLimit or errDied, or is a system error
}
