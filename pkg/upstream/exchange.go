// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Limits for one query.
const (
	targetCandidates    = 2 // upstreams asked, if configured as targets
	endpointCandidates  = 3 // upstreams asked, if from Endpoints, which change more often
	maxCandidates       = max(targetCandidates, endpointCandidates)
	maxAttempts         = 6 // in all
	attemptsPerUpstream = 3 // to one upstream
	maxConnsPerQuery    = 3 // connections opened
)

// betterAnswerWait is how long a query that has a bad answer waits for a good one from an upstream that has not
// answered. It is as long as an uncached name may take, and less than a client's timeout.
const betterAnswerWait = 2500 * time.Millisecond

// An exchange is one client query. It starts attempts one after the other, which then run in parallel until one of
// them has a good answer. It has no goroutine: transports and its timer call it.
type exchange struct {
	pool        *Pool
	query       []byte
	deadline    time.Time
	receiver    wire.AnswerReceiver
	connsOpened atomic.Int32 // connections opened for it

	mu           sync.Mutex // guards the fields below
	snapshot     *snapshot  // that the candidates were selected from
	candidates   candidates // best first
	firstAttempt attempt    // most exchanges need no other
	attempts     [maxAttempts]*attempt
	numStarted   int    // attempts started
	numRunning   int    // attempts pending
	noneLeft     bool   // no attempt is left to start
	done         bool   // the result is final
	queryNoOPT   []byte // query without its OPT record, built when first needed
	headerOnly   bool   // an upstream answered the OPT record with a bare header
	timerKind    timerKind
	timerAt      time.Time // when the timer fires; zero: it is not set
	failure      Failure   // the most specific so far; Err is nil while there is none

	callAt    time.Time // when the timer heap calls it; guarded by the heap, like heapIndex
	heapIndex int       // in the timer heap, from 1; 0: not in it
}

// timerKind is what an exchange waits for.
type timerKind uint8

const (
	timerHedge    timerKind = iota // the latest attempt is late
	timerTimeout                   // the latest attempt times out
	timerDeadline                  // no attempt is left to start
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
	id        uint16    // on its socket or connection
	sent      []byte    // the query as sent
	inline    [104]byte // memory of sent, except for long names
	socket    *socket   // over UDP: that has it in its table; nil: none
	malformed error     // over UDP: of the last answer that could not be parsed

	conn       *conn              // the connection it is on; nil: none
	newestConn uint64             // number of the newest connection when the query was assigned
	reused     bool               // the connection was open before the query was assigned
	retried    bool               // already moved once to another connection
	stop       context.CancelFunc // over HTTPS: ends the request; nil: there is none
}

// An outcome is the result of an attempt; err is nil if the answer is good.
type outcome struct {
	cause Cause // set if err is
	rcode uint16
	edns  bool
	err   error
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

// Ask sends q, a whole query with any ID and an EDNS size of at most 4096. It calls to.Answered once, at the latest
// at deadline and possibly before Ask returns: with a whole answer or with a [*Failure]. The answer has q's ID, the
// response code NOERROR or NXDOMAIN, and AD only as [Config.TrustAD] permits.
//
// The question in the answer has the case that was sent, which may be random. The case shows which other names the
// server copied from it, see [wire.Message.CanonicalizeQuestion].
//
// Ask keeps q, which must not change any more, not even after Answered: a losing attempt may still be sending it.
// Queries leave when batch is flushed at the latest.
func (p *Pool) Ask(q []byte, deadline time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if _, failure := p.start(q, deadline, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// start starts an exchange, or returns why it failed at once.
func (p *Pool) start(q []byte, deadline time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) (*exchange, *Failure) {
	if len(q) < wire.HeaderLen {
		return nil, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	snap := p.currentSnapshot()
	if len(snap.all) == 0 {
		if p.endpoints != nil {
			return nil, &Failure{Reason: NoUpstream, Err: errNoEndpoint}
		}
		return nil, &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
	}
	now := p.now()
	x := &exchange{pool: p, query: q, deadline: deadline, receiver: to, snapshot: snap, candidates: p.selectCandidates(snap, q, now)}
	if x.candidates.count == 0 {
		return nil, &Failure{Reason: snap.downReason(), Err: errAllDown}
	}
	p.hedgeBudget.earn()
	if x.start(now, batch) {
		return nil, &x.failure
	}
	return x, nil
}

// Exchange is a blocking Ask. It appends the answer to dst, with the question in the case of q. It ends with ctx,
// which should have a deadline. On error, a [*Failure], it returns dst unchanged. It does not change q, and keeps
// neither q nor dst.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	deadline, limited := ctx.Deadline()
	if !limited {
		deadline = p.now().Add(time.Hour)
	}
	var batch wire.SendBatch
	w := waiter{answer: dst, done: make(chan struct{})}
	x, failure := p.start(append([]byte(nil), q...), deadline, &w, &batch) //nolint:contextcheck // ctx is used below
	batch.Flush()
	if failure != nil {
		return dst, failure
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if x.abort(ctx.Err()) {
			return dst, &x.failure
		}
		<-w.done
	}
	if w.err == nil {
		wire.CopyQuestion(w.answer[len(dst):], q)
	}
	return w.answer, w.err
}

// A waiter waits for the answer of an exchange.
type waiter struct {
	answer []byte // begins with the caller's bytes
	err    error
	done   chan struct{} // closed when the fields above are final
}

// Answered implements [wire.AnswerReceiver].
func (w *waiter) Answered(answer *wire.Message, err error, _ *wire.SendBatch) {
	if w.err = err; err == nil {
		w.answer = append(w.answer, answer.Raw...)
	}
	close(w.done)
}

// start starts the first attempt. It reports whether the exchange is over because all attempts failed at once.
func (x *exchange) start(now time.Time, batch *wire.SendBatch) (over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.startNext(now, batch) && x.finish(now)
}

// startNext starts the next attempt, and further ones while they fail at once. It reports whether the exchange is
// over: all attempts failed; or all were started, at least one answer was bad, and no better one is expected.
func (x *exchange) startNext(now time.Time, batch *wire.SendBatch) (over bool) {
	if snap := x.pool.currentSnapshot(); snap != x.snapshot {
		x.reselect(now, snap)
	}
	x.cancelLooping(now)
	for {
		next := x.nextCandidate()
		if next == nil {
			x.noneLeft = true
			break
		}
		a := x.newAttempt(next, now)
		err := a.endpoint.send(a, batch)
		if err == nil {
			break
		}
		x.recordFailedAttempt(a, a.endpoint.recordFailure(a, err, now))
	}
	if x.numRunning == 0 || x.noneLeft && x.failure.Reason == Rcode && !x.mayImprove(now) {
		return true
	}
	x.armTimer(now)
	return false
}

// cancelLooping cancels the attempts with upstreams that were found to loop back to this process: their answer may
// depend on this very exchange.
func (x *exchange) cancelLooping(now time.Time) {
	for _, a := range x.attempts[:x.numStarted] {
		if a.done || !a.endpoint.loopMonitor.looping.Load() {
			continue
		}
		_ = a.endpoint.cancel(a, now)
		x.recordFailedAttempt(a, outcome{cause: CauseNetwork, err: errLoop})
		if c := x.candidate(a.endpoint); c != nil {
			c.excluded = true
		}
	}
}

// mayImprove reports whether a pending attempt may still get a good answer.
func (x *exchange) mayImprove(now time.Time) bool {
	if now.Sub(x.firstAttempt.sentAt) >= betterAnswerWait {
		return false
	}
	for _, a := range x.attempts[:x.numStarted] {
		if !a.done && !a.endpoint.down.Load() {
			return true
		}
	}
	return false
}

// nextCandidate returns the candidate with the fewest attempts that may be asked again, nil if there is none. A last
// resort is skipped while a healthy candidate is left.
func (x *exchange) nextCandidate() *candidate {
	var next, lastResort *candidate
	anyHealthy := false
	for i := range x.candidates.list[:x.candidates.count] {
		c := &x.candidates.list[i]
		if c.excluded || c.attempts >= min(attemptsPerUpstream, maxAttempts/x.candidates.count) {
			continue
		}
		best := &next
		if c.class == classLastResort {
			best = &lastResort
		} else {
			anyHealthy = anyHealthy || c.endpoint.healthy()
		}
		if *best == nil || c.attempts < (*best).attempts {
			*best = c
		}
	}
	switch {
	case x.numStarted == maxAttempts:
		return nil
	case lastResort != nil && !anyHealthy && (next == nil || lastResort.attempts < next.attempts):
		return lastResort
	}
	return next
}

// newAttempt creates the next attempt with a candidate.
func (x *exchange) newAttempt(c *candidate, now time.Time) *attempt {
	c.attempts++
	a := &x.firstAttempt
	if x.numStarted > 0 {
		a = new(attempt)
	}
	a.exchange, a.endpoint, a.index, a.query, a.noOPT = x, c.endpoint, x.numStarted, x.query, c.noOPT
	a.sentAt, a.timeout, a.hedgeDelay, a.mayHedge = now, c.timeout, c.hedgeDelay, c.nextHealthy
	a.smallUDP = c.timedOut // RFC 6891 section 6.2.5: its answer may have been too large for the path
	a.connsOpened = &x.connsOpened
	if c.noOPT {
		a.query = x.withoutOPT()
	}
	x.attempts[x.numStarted] = a
	x.numStarted++
	x.numRunning++
	return a
}

// armTimer sets the timer for the next event.
func (x *exchange) armTimer(now time.Time) {
	latest := x.attempts[x.numStarted-1]
	wait := x.deadline.Sub(now)
	switch {
	case x.noneLeft:
		x.timerKind = timerDeadline
		if x.failure.Reason == Rcode {
			wait = min(wait, x.firstAttempt.sentAt.Add(betterAnswerWait).Sub(now))
		}
	case latest.mayHedge && latest.hedgeDelay > 0 && latest.hedgeDelay < latest.timeout:
		x.timerKind = timerHedge
		wait = min(wait, latest.hedgeDelay)
	default:
		x.timerKind = timerTimeout
		wait = min(wait, latest.timeout)
	}
	x.setTimer(now, wait)
}

func (x *exchange) setTimer(now time.Time, d time.Duration) {
	x.timerAt = now.Add(d)
	x.pool.timers.set(x, now, x.timerAt)
}

// reselect selects the candidates from a newer snapshot. Pending attempts with removed upstreams go on.
func (x *exchange) reselect(now time.Time, snap *snapshot) {
	before := x.candidates
	x.snapshot, x.candidates = snap, x.pool.selectCandidates(snap, x.query, now)
	for i := range before.list[:before.count] {
		old := &before.list[i]
		if c := x.candidate(old.endpoint); c != nil {
			c.attempts, c.noOPT, c.timedOut, c.excluded = old.attempts, old.noOPT, old.timedOut, old.excluded
		}
	}
}

// candidate returns the candidate for the upstream, nil if there is none any more.
func (x *exchange) candidate(ep *endpoint) *candidate {
	for i := range x.candidates.list[:x.candidates.count] {
		if x.candidates.list[i].endpoint == ep {
			return &x.candidates.list[i]
		}
	}
	return nil
}

// deliver hands the reply to the exchange or probe that started the attempt.
func (a *attempt) deliver(r reply, batch *wire.SendBatch) {
	if a.onReply != nil {
		a.onReply(r, batch)
		return
	}
	a.exchange.handleReply(a, r, batch)
}

// handleReply processes the reply to one of the attempts.
func (x *exchange) handleReply(a *attempt, in reply, batch *wire.SendBatch) {
	won, over := x.processReply(a, in, batch)
	switch {
	case won:
		wire.SetID(in.m.Raw, wire.ID(x.query))
		x.receiver.Answered(in.m, nil, batch)
	case over:
		x.receiver.Answered(nil, &x.failure, batch)
	}
}

// processReply reports whether the reply is the answer of the exchange, and whether the exchange is over.
func (x *exchange) processReply(a *attempt, in reply, batch *wire.SendBatch) (won, over bool) {
	now := x.pool.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done || a.done {
		if a.awaitLate {
			a.awaitLate = false
			a.endpoint.recordLateReply(a, in, now)
		}
		return false, false
	}
	out, final := a.endpoint.handleReply(a, in, now, batch)
	switch {
	case !final: // the attempt goes on over TCP
		return false, false
	case out.err == nil:
		a.done = true
		x.numRunning--
		return true, x.finish(now)
	}
	x.recordFailedAttempt(a, out)
	// The failure of an earlier attempt does not shorten the latest one.
	over = (a.index == x.numStarted-1 || x.noneLeft) && x.startNext(now, batch)
	return false, over && x.finish(now)
}

// withoutOPT returns the query without its OPT record, or nil if it has none.
func (x *exchange) withoutOPT() []byte {
	if x.queryNoOPT != nil {
		return x.queryNoOPT
	}
	var m wire.Message
	if m.Parse(append([]byte(nil), x.query...)) != nil || !m.HasOPT() || m.StripOPT() != nil {
		return nil
	}
	x.queryNoOPT = m.Raw
	return x.queryNoOPT
}

// onTimer is called by the timer heap.
func (x *exchange) onTimer(batch *wire.SendBatch) {
	defer x.pool.recoverPanic(context.Background(), func() { // otherwise the client would wait for ever
		x.receiver.Answered(nil, &Failure{Reason: Network, Err: errPanic}, batch)
	})
	if x.handleTimer(batch) {
		x.receiver.Answered(nil, &x.failure, batch)
	}
}

// handleTimer reports whether the exchange is over now that its timer has fired.
func (x *exchange) handleTimer(batch *wire.SendBatch) (over bool) {
	now := x.pool.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	latest := x.attempts[x.numStarted-1]
	switch {
	case x.timerAt.IsZero():
		return false // it fired while it was being stopped
	case now.Before(x.timerAt): // it was set again for a newer attempt
		x.setTimer(now, x.timerAt.Sub(now))
		return false
	case x.done:
		x.dropLateAttempts(now)
		return false
	case !now.Before(x.deadline):
		x.recordUnanswered(context.DeadlineExceeded)
		over = true
	case x.timerKind == timerDeadline: // no better answer came in time
		over = true
	case x.timerKind == timerTimeout:
		latest.endpoint.recordTimeout(latest, now)
		if c := x.candidate(latest.endpoint); c != nil {
			c.timedOut = true
		}
		over = x.startNext(now, batch)
	case x.pool.hedgeBudget.spend():
		latest.endpoint.count.hedged.Add(1)
		over = x.startNext(now, batch)
	default:
		x.timerKind = timerTimeout
		x.setTimer(now, min(latest.sentAt.Add(latest.timeout).Sub(now), x.deadline.Sub(now)))
	}
	return over && x.finish(now)
}

// abort ends the exchange unless it has ended, and reports whether it did. Answered is then not called.
func (x *exchange) abort(err error) (ended bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done {
		return false
	}
	x.recordUnanswered(err)
	return x.finish(x.pool.now())
}

// recordUnanswered records that the pending attempts have got no answer.
func (x *exchange) recordUnanswered(err error) {
	if x.numRunning > 0 {
		x.keepFailure(Failure{Reason: Timeout, Err: fmt.Errorf("waiting for an answer: %w", err)})
	}
}

// finish ends the exchange and returns true. Later replies do not change its result.
//
// A late attempt that lost to a hedge stays pending until it times out. Otherwise an upstream that does not answer
// would never be noticed.
func (x *exchange) finish(now time.Time) bool {
	x.done = true
	x.timerAt = time.Time{}
	linger := time.Duration(0)
	for _, a := range x.attempts[:x.numStarted] {
		if a.done {
			continue
		}
		a.done = true
		x.numRunning--
		waited := now.Sub(a.sentAt)
		if a.hedgeDelay > 0 && a.hedgeDelay <= waited && waited < a.timeout && !a.timeoutCounted {
			a.awaitLate = true
			linger = max(linger, a.timeout-waited)
			continue
		}
		if malformed := a.endpoint.cancel(a, now); malformed != nil {
			x.keepFailure(Failure{Reason: Malformed, Err: malformed})
		}
	}
	if linger > 0 {
		x.setTimer(now, linger)
	} else {
		x.pool.timers.remove(x)
	}
	return true
}

// dropLateAttempts cancels the attempts that stayed pending after the end.
func (x *exchange) dropLateAttempts(now time.Time) {
	for _, a := range x.attempts[:x.numStarted] {
		if a.awaitLate {
			a.awaitLate = false
			_ = a.endpoint.cancel(a, now)
		}
	}
}

// recordFailedAttempt records that an attempt failed, and the consequences for its candidate.
func (x *exchange) recordFailedAttempt(a *attempt, out outcome) {
	a.done = true
	x.numRunning--
	reason := out.reason()
	x.keepFailure(Failure{Reason: reason, Rcode: out.rcode, Err: out.err})
	c := x.candidate(a.endpoint)
	if reason != Rcode || c == nil {
		return
	}
	old := !out.edns && (out.cause == CauseFormErr || out.cause == CauseNotImp)
	switch {
	case !old || a.noOPT:
		c.excluded = true
	case !c.noOPT: // RFC 6891 section 7: it may only be too old for EDNS
		c.noOPT = x.withoutOPT() != nil
		c.excluded = !c.noOPT
	}
}

// keepFailure keeps the more specific of two failures.
func (x *exchange) keepFailure(f Failure) {
	if x.failure.Err == nil || f.Reason >= x.failure.Reason {
		x.failure = f
	}
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
