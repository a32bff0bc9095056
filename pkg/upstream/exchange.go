// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Limits for one query.
const (
	maxAttempts         = 6 // attempts in all
	attemptsPerUpstream = 3 // attempts to one upstream; 2 if there are three candidates
)

// betterAnswerWait is how long after its first attempt a query that has a bad answer still waits for a good one. An
// uncached name may take as long. A client's timeout is longer.
const betterAnswerWait = 2500 * time.Millisecond

// An exchange is one client query. It starts attempts one after the other, which then run in parallel until one of
// them has a good answer. It has no goroutine: transports and its timer call it.
type exchange struct {
	pool        *Pool
	query       []byte
	deadline    time.Time
	receiver    wire.AnswerReceiver
	connsOpened atomic.Int32 // connections opened for this query, see maxConnsPerQuery

	mu           sync.Mutex               // guards the fields below
	snapshot     *snapshot                // the list that the candidates were selected from
	candidates   []candidate              // best first
	memory       [maxCandidates]candidate // backing array of candidates
	firstAttempt attempt                  // memory of the first attempt: most exchanges make no other
	attempts     [maxAttempts]*attempt
	endpoints    [maxAttempts]*endpoint // endpoints[i] is the upstream of attempts[i]
	numStarted   int                    // attempts started
	numRunning   int                    // attempts pending
	noneLeft     bool                   // no further attempt may start: the timer ends the exchange
	mayHedge     bool                   // the timer starts a hedge, if the budget allows one
	done         bool                   // the result is final
	timerAt      time.Time              // when the timer fires; zero: it is not set
	failure      Failure                // the most specific failure so far; Err is nil while there is none
	inconclusive *wire.Message          // the answer if no conclusive one comes, see [wire.Message.IsInconclusive]; nil: none

	callAt    time.Time // when the timer heap calls onTimer; guarded by timerHeap.mu, like heapIndex
	heapIndex int       // index in the timer heap, counted from 1; 0: not in it
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
	if failure := p.start(q, deadline, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// start starts an exchange, or returns why it failed at once.
func (p *Pool) start(q []byte, deadline time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) *Failure {
	if len(q) < wire.HeaderLen {
		return &Failure{Reason: Malformed, Err: errShortQuery}
	}
	snap := p.currentSnapshot()
	if len(snap.all) == 0 {
		if p.Endpoints != nil {
			return &Failure{Reason: NoUpstream, Err: errNoEndpoint}
		}
		return &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
	}
	now := p.Now()
	x := &exchange{pool: p, query: q, deadline: deadline, receiver: to, snapshot: snap}
	x.candidates = p.selectCandidates(x.memory[:0], snap, q, now)
	if len(x.candidates) == 0 {
		return &Failure{Reason: snap.downReason(), Err: errAllDown}
	}
	p.earnHedge()
	if x.start(p.explore(x.candidates, snap, q, now), now, batch) {
		return &x.failure
	}
	return nil
}

// start starts the first attempt, and one with the second candidate if explore is set. It reports whether the exchange
// is over because all attempts failed at once.
func (x *exchange) start(explore bool, now time.Time, batch *wire.SendBatch) (over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if explore {
		c := &x.candidates[1]
		a := x.newAttempt(c, now)
		a.explores = true
		c.endpoint.count.explored.Add(1)
		if err := c.endpoint.send(a, batch); err != nil {
			x.recordFailedAttempt(a, c.endpoint.recordFailure(a, err, now))
		}
	}
	return x.startNext(now, batch) && x.finish(now)
}

// startNext starts an attempt, and another one each time that fails at once. It reports whether the exchange is over: no
// attempt is pending, or there is a bad answer, no upstream is left to ask and no better answer can come.
func (x *exchange) startNext(now time.Time, batch *wire.SendBatch) (over bool) {
	if snap := x.pool.currentSnapshot(); snap != x.snapshot {
		x.reselect(now, snap)
	}
	x.cancelLooping(now)
	for {
		next := x.nextCandidate()
		if next == nil || x.inconclusive != nil && !next.endpoint.healthy() {
			x.noneLeft = true
			break
		}
		a := x.newAttempt(next, now)
		err := next.endpoint.send(a, batch)
		if err == nil {
			break
		}
		x.recordFailedAttempt(a, next.endpoint.recordFailure(a, err, now))
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
	for i, a := range x.attempts[:x.numStarted] {
		if a.done || !x.endpoints[i].loopMonitor.looping.Load() {
			continue
		}
		_ = x.endpoints[i].cancel(a, now)
		x.recordFailedAttempt(a, failureOf(errLoop))
		if c := x.candidate(x.endpoints[i]); c != nil {
			c.excluded = true
		}
	}
}

// mayImprove reports whether a pending attempt may still get a good answer within betterAnswerWait.
func (x *exchange) mayImprove(now time.Time) bool {
	if now.Sub(x.firstAttempt.sentAt) >= betterAnswerWait {
		return false
	}
	for i, a := range x.attempts[:x.numStarted] {
		if !a.done && !x.endpoints[i].down.Load() {
			return true
		}
	}
	return false
}

// nextCandidate returns the candidate to ask next: of those that may be asked, the one with the fewest attempts; nil:
// there is none. A last resort is skipped while a healthy candidate is left.
func (x *exchange) nextCandidate() *candidate {
	var next, lastResort *candidate
	anyHealthy := false
	for i := range x.candidates {
		c := &x.candidates[i]
		if c.excluded || c.attempts >= min(attemptsPerUpstream, maxAttempts/len(x.candidates)) {
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
	a.query, a.receiver, a.index, a.sentAt, a.connsOpened = x.query, x, x.numStarted, now, &x.connsOpened
	a.timeout, a.hedgeDelay, a.mayHedge = c.timeout, c.hedgeDelay, c.nextHealthy
	a.repeats = x.numStarted > 1 || x.numStarted == 1 && !x.firstAttempt.explores
	for i, earlier := range x.attempts[:x.numStarted] {
		if x.endpoints[i] == c.endpoint && earlier.timeoutCounted {
			a.previous = earlier
		}
	}
	a.smallUDP = c.timedOut // the answer that timed out may have been too large for the path (RFC 6891 section 6.2.5)
	if c.noOPT {
		a.query, a.noOPT, a.headerOnly = withoutOPT(x.query), true, c.headerOnly
	}
	x.attempts[x.numStarted], x.endpoints[x.numStarted] = a, c.endpoint
	x.numStarted++
	x.numRunning++
	return a
}

// armTimer sets the timer for the next event: the hedge or timeout of the latest attempt, or the end of the exchange.
func (x *exchange) armTimer(now time.Time) {
	latest := x.attempts[x.numStarted-1]
	x.mayHedge = !x.noneLeft && latest.mayHedge && 0 < latest.hedgeDelay && latest.hedgeDelay < latest.timeout
	wait := x.deadline.Sub(now)
	switch {
	case x.noneLeft && x.failure.Reason == Rcode:
		wait = min(wait, x.firstAttempt.sentAt.Add(betterAnswerWait).Sub(now))
	case x.noneLeft && x.inconclusive == nil:
	case x.mayHedge:
		wait = min(wait, latest.hedgeDelay)
	default:
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
	before := slices.Clone(x.candidates)
	x.snapshot, x.candidates = snap, x.pool.selectCandidates(x.memory[:0], snap, x.query, now)
	for _, old := range before {
		if c := x.candidate(old.endpoint); c != nil {
			c.attempts, c.noOPT, c.headerOnly, c.timedOut, c.excluded = old.attempts, old.noOPT, old.headerOnly, old.timedOut, old.excluded
		}
	}
}

// candidate returns the candidate for the upstream, nil if there is none any more.
func (x *exchange) candidate(ep *endpoint) *candidate {
	i := slices.IndexFunc(x.candidates, func(c candidate) bool { return c.endpoint == ep })
	if i < 0 {
		return nil
	}
	return &x.candidates[i]
}

// handleReply processes the reply to one of the attempts.
func (x *exchange) handleReply(a *attempt, in reply, batch *wire.SendBatch) {
	won, over := x.processReply(a, in, batch)
	switch {
	case won:
		wire.SetID(in.m.Raw, wire.ID(x.query))
		x.receiver.Answered(in.m, nil, batch)
	case over:
		x.end(batch)
	}
}

// end passes on the result of an exchange without a good answer.
func (x *exchange) end(batch *wire.SendBatch) {
	if x.inconclusive != nil {
		wire.SetID(x.inconclusive.Raw, wire.ID(x.query))
		x.receiver.Answered(x.inconclusive, nil, batch)
		return
	}
	x.receiver.Answered(nil, &x.failure, batch)
}

// processReply reports whether the reply is the answer of the exchange, and whether the exchange is over.
func (x *exchange) processReply(a *attempt, in reply, batch *wire.SendBatch) (won, over bool) {
	now := x.pool.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done || a.done {
		if a.awaitLate {
			a.awaitLate = false
			x.endpoints[a.index].recordLateReply(a, in, now)
		}
		return false, false
	}
	a.nameSlow = x.othersLate(a, now)
	out, final := x.endpoints[a.index].acceptReply(a, in, now, batch)
	switch {
	case !final: // the same attempt asks again, see acceptReply
		return false, false
	case out.Err == nil && x.keepInconclusive(a, in.m):
	case out.Err == nil:
		a.done = true
		x.numRunning--
		in.m.Server = x.endpoints[a.index].label
		if a.explores {
			x.pool.explored.soon() // explore again with the next query: the upstream that just won may be the fastest
		}
		x.markBeaten(a, now)
		return true, x.finish(now)
	default:
		x.recordFailedAttempt(a, out)
	}
	// The failure of an earlier attempt does not shorten the wait for the latest one.
	over = (a.index == x.numStarted-1 || x.noneLeft) && x.startNext(now, batch)
	return false, over && x.finish(now)
}

// keepInconclusive ends an attempt whose answer is inconclusive, keeps the answer, and reports whether it did. Another
// upstream may know more. The one that sent the answer stays healthy: some servers leave out the SOA record.
func (x *exchange) keepInconclusive(a *attempt, m *wire.Message) bool {
	if !m.IsInconclusive() {
		return false
	}
	kept := new(wire.Message) // m is in the transport's buffer
	if kept.Parse(bytes.Clone(m.Raw)) != nil {
		return false
	}
	kept.Server = x.endpoints[a.index].label
	x.inconclusive = kept
	a.done = true
	x.numRunning--
	if c := x.candidate(x.endpoints[a.index]); c != nil {
		c.excluded = true
	}
	return true
}

// othersLate reports whether another upstream is late with the question too: then the name is slow, and not the
// upstream of the attempt.
func (x *exchange) othersLate(a *attempt, now time.Time) bool {
	for i, other := range x.attempts[:x.numStarted] {
		if !other.done && x.endpoints[i] != x.endpoints[a.index] && other.late(now) {
			return true
		}
	}
	return false
}

// markBeaten marks the pending attempts to other upstreams than the winner's: these upstreams are slow. If the winner is
// late too, the name is slow, and no attempt is marked.
func (x *exchange) markBeaten(winner *attempt, now time.Time) {
	if winner.late(now) {
		return
	}
	for i, a := range x.attempts[:x.numStarted] {
		a.beaten = !a.done && x.endpoints[i] != x.endpoints[winner.index]
	}
}

// late reports whether the attempt takes longer than the upstream usually does.
func (a *attempt) late(now time.Time) bool {
	usual := a.timeout
	if a.hedgeDelay > 0 {
		usual = a.hedgeDelay
	}
	return now.Sub(a.sentAt) >= usual
}

// onTimer is called by the timer heap when the time that was set last is reached, or earlier.
func (x *exchange) onTimer(batch *wire.SendBatch) {
	defer x.pool.recoverPanic(context.Background(), func() { // otherwise the client would wait for ever
		x.receiver.Answered(nil, &Failure{Reason: Network, Err: errPanic}, batch)
	})
	if x.handleTimer(batch) {
		x.end(batch)
	}
}

// handleTimer reports whether the exchange is over now that its timer has fired.
func (x *exchange) handleTimer(batch *wire.SendBatch) (over bool) {
	now := x.pool.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	latest, asked := x.attempts[x.numStarted-1], x.endpoints[x.numStarted-1]
	switch {
	case x.timerAt.IsZero():
		return false // the exchange ended while the timer fired
	case now.Before(x.timerAt): // it was set again for a newer attempt
		x.setTimer(now, x.timerAt.Sub(now))
		return false
	case x.done:
		x.dropLateAttempts(now)
		return false
	case !now.Before(x.deadline):
		if x.numRunning > 0 {
			x.keepFailure(Failure{Reason: Timeout, Err: fmt.Errorf("waiting for an answer: %w", context.DeadlineExceeded), from: asked, cause: CauseTimeout})
		}
		over = true
	case x.noneLeft, x.inconclusive != nil && !x.mayHedge: // an error rcode or an inconclusive answer is held, and no better one came
		over = true
	case !x.mayHedge:
		asked.recordTimeout(latest, now)
		if c := x.candidate(asked); c != nil {
			c.timedOut = true
		}
		over = x.startNext(now, batch)
	case x.pool.spendHedge():
		asked.count.hedged.Add(1)
		over = x.startNext(now, batch)
	default:
		x.mayHedge = false
		x.setTimer(now, min(latest.sentAt.Add(latest.timeout).Sub(now), x.deadline.Sub(now)))
	}
	return over && x.finish(now)
}

// finish ends the exchange and returns true. Later replies do not change its result.
//
// A late attempt that lost to a hedge stays pending until it times out. Otherwise an upstream that does not answer
// would never be noticed. An exploratory attempt stays pending to measure its upstream.
func (x *exchange) finish(now time.Time) bool {
	x.done = true
	x.timerAt = time.Time{}
	linger := time.Duration(0)
	for i, a := range x.attempts[:x.numStarted] {
		if a.done {
			continue
		}
		a.done = true
		x.numRunning--
		waited := now.Sub(a.sentAt)
		late := a.hedgeDelay > 0 && a.hedgeDelay <= waited
		if (late || a.explores) && waited < a.timeout && !a.timeoutCounted {
			a.awaitLate = true
			linger = max(linger, a.timeout-waited)
			continue
		}
		if malformed := x.endpoints[i].cancel(a, now); malformed != nil {
			x.keepFailure(Failure{Reason: Malformed, Err: malformed, from: x.endpoints[i], cause: CauseMalformed})
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
	for i, a := range x.attempts[:x.numStarted] {
		if a.awaitLate {
			a.awaitLate = false
			_ = x.endpoints[i].cancel(a, now)
		}
	}
}

// recordFailedAttempt records that an attempt failed, and the consequences for its candidate.
func (x *exchange) recordFailedAttempt(a *attempt, out Failure) {
	a.done = true
	x.numRunning--
	out.from = x.endpoints[a.index]
	x.keepFailure(out)
	c := x.candidate(x.endpoints[a.index])
	if out.Reason != Rcode || c == nil {
		return
	}
	old := !out.edns && (out.cause == CauseFormErr || out.cause == CauseNotImp)
	switch {
	case !old || a.noOPT:
		c.excluded = true
	case !c.noOPT: // the server may only lack EDNS (RFC 6891 section 7): retry it without OPT
		c.noOPT, c.headerOnly = withoutOPT(x.query) != nil, out.headerOnly
		c.excluded = !c.noOPT
	}
}

// keepFailure keeps the more specific of two failures, and the later one if both have the same reason.
func (x *exchange) keepFailure(f Failure) {
	if x.failure.Err == nil || f.Reason >= x.failure.Reason {
		x.failure = f
	}
}
