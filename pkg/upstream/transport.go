// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A transport sends queries to one upstream and delivers the replies: over UDP sockets, or over TCP, TLS or HTTPS
// connections. Its methods are safe for concurrent use.
type transport interface {
	// send queues the attempt's query, which leaves when batch is flushed at the latest. An error is final. Otherwise
	// the attempt's receiver is called once, unless cancel is called first. The call comes after send has returned,
	// without a lock of the transport. batch is not nil and is not flushed here.
	send(a *attempt, batch *wire.SendBatch) error
	// cancel abandons the attempt. A call of its receiver may be under way all the same. It returns the error of the
	// last malformed message that came for the attempt without ending it, nil if there was none.
	cancel(a *attempt) (malformed error)
	// closeIdle closes each socket or connection that has no query now, and the others after their last query. New
	// queries are refused if refuse is set, and accepted otherwise.
	closeIdle(refuse bool)
	// wait returns when, after closeIdle, nothing is open and no goroutine is left.
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

// An attempt is one query to one upstream. An exchange makes one or more.
type attempt struct {
	query    []byte      // a whole message that attempts share; the transport chooses its ID and the case of its name
	receiver interface { // gets the reply
		handleReply(a *attempt, r reply, batch *wire.SendBatch)
	}
	index       int // among the receiver's attempts
	sentAt      time.Time
	previous    *attempt      // the receiver's earlier attempt with the same upstream, which timed out; nil: none
	connsOpened *atomic.Int32 // connections opened for one client query by all its attempts, at most maxConnsPerQuery; nil: not counted

	// What a transport stores, guarded by its lock:
	id         uint16             // DNS message ID on its socket or connection
	reused     bool               // the connection was open before the query was assigned
	retried    bool               // already moved once to another connection
	sent       []byte             // the query as sent
	inline     [104]byte          // memory of sent, except for long names
	socket     *socket            // UDP: the socket that has it in its table; nil: none
	malformed  error              // UDP: error of the last answer that could not be parsed; nil: none
	conn       *conn              // the connection it is on; nil: none
	lastConn   uint64             // number of the connection that it was last assigned to; 0: none
	newestConn uint64             // number of the newest connection when the query was assigned
	assignedAt time.Time          // when it was last assigned to a connection
	answer     []byte             // TCP and TLS: the received answer, until it is parsed
	stop       context.CancelFunc // HTTPS: ends the request; nil: there is none

	// What the endpoint knows:
	transport    transport     // the transport that it was last passed to
	noOPT        bool          // sent without an OPT record
	headerOnly   bool          // noOPT is set because the upstream answered the OPT record with a bare header
	smallUDP     bool          // sent with smallUDPSize: an earlier attempt timed out, or the upstream answers only such queries
	latencyStale bool          // the upstream had no query for staleAfter, so its smoothed latency starts anew
	randomCase   bool          // over UDP, the name is sent in random case, which the answer must repeat (0x20)
	udpRTT       time.Duration // round trip of the first UDP answer if the attempt asked again; 0: it has not
	tcpRetry     bool          // moved to TCP after a truncated answer: counted in capabilities.tcpRetries
	overTCP      bool          // in lower case over TCP to a UDP upstream, so that no host off the path can forge the answer
	doubt        doubt         // why an answer to the random case is not believed
	doubted      answerKind    // kind of that answer

	// What the exchange knows, guarded by its lock:
	timeout        time.Duration
	hedgeDelay     time.Duration // time after which an answer counts as late; 0: unknown
	mayHedge       bool          // the next candidate is healthy, so a hedge may start
	explores       bool          // it measures its upstream; the best upstream was asked at the same time
	repeats        bool          // it is a hedge or a retry
	nameSlow       bool          // its answer says nothing about the upstream: another upstream is late with the same question
	beaten         bool          // another upstream answered in time
	done           bool
	timeoutCounted bool // already counted as timed out
	awaitLate      bool // the exchange has ended; a late reply still updates the upstream's health
}

// maxConnsPerQuery is how many connections the attempts of one client query may open in all.
const maxConnsPerQuery = 3

// randomBuffer is how many random bytes are read at once, as each read is expensive.
const randomBuffer = 512

// draw returns n random bytes, which are valid until the next call.
func draw(random *bufio.Reader, n int) ([]byte, error) {
	drawn, err := random.Peek(n)
	if err != nil {
		return nil, fmt.Errorf("reading random numbers: %w", err)
	}
	_, _ = random.Discard(n)
	return drawn, nil
}

// idDraws is how many random IDs are tried. If 1024 of the 65,536 IDs are taken, all fail with a chance of 1 in 2^48.
const idDraws = 8

// addByID adds an attempt to the queries of a socket or connection, under a random ID that is free.
func addByID(queries map[uint16]*attempt, a *attempt, random *bufio.Reader) error {
	for range idDraws {
		drawn, err := draw(random, 2)
		if err != nil {
			return err
		}
		a.id = binary.LittleEndian.Uint16(drawn)
		if queries[a.id] == nil {
			queries[a.id] = a
			return nil
		}
	}
	return fmt.Errorf("finding a free ID: %w", errLimit)
}

// A lazyTimer calls a function at the earliest of several times. Postponing does not touch the runtime timer: the
// function is then called too early, and must set the timer again.
type lazyTimer struct {
	dueAt time.Time // when the runtime timer fires; zero: not set
	timer *time.Timer
}

// set calls f, which is always the same, at then or earlier.
func (t *lazyTimer) set(now, then time.Time, f func()) {
	if !t.dueAt.IsZero() && !then.Before(t.dueAt) {
		return
	}
	t.dueAt = then
	if t.timer == nil {
		t.timer = time.AfterFunc(then.Sub(now), f)
		return
	}
	t.timer.Reset(then.Sub(now))
}

// fired records that f was called.
func (t *lazyTimer) fired() { t.dueAt = time.Time{} }

func (t *lazyTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}
