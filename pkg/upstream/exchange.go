// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// What one query may cost, whatever the upstreams do.
const (
	targetCandidates    = 2 // upstreams asked, of targets
	endpointCandidates  = 3 // and of endpoints, which come and go more often
	maxCandidates       = max(targetCandidates, endpointCandidates)
	maxAttempts         = 6 // in all,
	attemptsPerUpstream = 3 // and with one of them
	maxConnsPerQuery    = 3 // connections opened
)

// betterTime is how long a query with a bad answer in hand still waits for a good one from an upstream that is silent: as
// long as a name may take that nobody has asked for in a while, and less than a client's patience.
const betterAnswerWait = 2500 * time.Millisecond

// A race is one query of a client: tries that are started one after the other and then run side by side until one of them
// wins. It has no goroutine. What happens to it comes from the carriers and from its timer.
type exchange struct {
	pool        *Pool
	query       []byte
	deadline    time.Time
	asker       wire.AnswerReceiver
	connsOpened atomic.Int32 // opened for it

	mu           sync.Mutex // guards the fields below
	snapshot     *snapshot  // that sides were chosen from
	candidates   candidates // the best first
	firstAttempt attempt    // most need no other
	attempts     [maxAttempts]*attempt
	numStarted   int    // of tries
	numRunning   int    // of them
	noneLeft     bool   // no try is left to start
	done         bool   // nothing is heard any more
	queryNoOPT   []byte // query without its OPT record, made when first needed
	headerOnly   bool   // an upstream answered the OPT record with a header alone
	timerKind    timerKind
	timerAt      time.Time // when its time runs out; zero: it is not waiting for that
	failure      Failure   // the gravest so far; Err is nil while there is none

	heapIndex int // in the timetable, from 1, and guarded by it; 0: it has none
}

// waits is what the timer of a race is set for.
type timerKind uint8

const (
	timerHedge    timerKind = iota // the latest try is late for its upstream
	timerAttempt                   // the latest try's patience ends
	timerDeadline                  // no try is left
)

// run starts the first try. It tells whether the race is over already, all tries having failed at once.
func (x *exchange) start(now time.Time, batch *wire.SendBatch) (over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.startNext(now, batch) && x.finish(now)
}

// advance starts the next try, and that after it if it fails at once. It tells whether the race is over: all tries
// failed, or all had their patience, at least one upstream gave a bad answer and no better one is to be expected.
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

// breakLoops ends the tries with upstreams that have been found to lead back here meanwhile: what would be their answer
// may be waiting for this race.
func (x *exchange) cancelLooping(now time.Time) {
	for _, a := range x.attempts[:x.numStarted] {
		if a.done || !a.endpoint.loopMonitor.looped() {
			continue
		}
		_ = a.endpoint.cancel(a, now)
		x.recordFailedAttempt(a, outcome{cause: CauseNetwork, err: errLoop})
		if c := x.candidate(a.endpoint); c != nil {
			c.excluded = true
		}
	}
}

// mayImprove tells whether one of the upstreams that have not said anything yet may still have a good answer.
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

// turn is the side that had the fewest tries and may be asked again, nil if there is none. A last resort has no turn
// while another one may be asked that is expected to answer.
func (x *exchange) nextCandidate() *candidate {
	var next, resort *candidate
	hopeful := false
	for i := range x.candidates.list[:x.candidates.count] {
		c := &x.candidates.list[i]
		if c.excluded || c.attempts >= min(attemptsPerUpstream, maxAttempts/x.candidates.count) {
			continue
		}
		best := &next
		if c.lastResort {
			best = &resort
		} else {
			hopeful = hopeful || c.ep.healthy()
		}
		if *best == nil || c.attempts < (*best).attempts {
			*best = c
		}
	}
	switch {
	case x.numStarted == maxAttempts:
		return nil
	case resort != nil && !hopeful && (next == nil || resort.attempts < next.attempts):
		return resort
	}
	return next
}

// start makes the next try, with a side.
func (x *exchange) newAttempt(c *candidate, now time.Time) *attempt {
	c.attempts++
	a := &x.firstAttempt
	if x.numStarted > 0 {
		a = new(attempt)
	}
	a.exchange, a.endpoint, a.index, a.query, a.noOPT = x, c.ep, x.numStarted, x.query, c.noOPT
	a.sentAt, a.timeout, a.hedgeDelay, a.mayHedge = now, c.timeout, c.hedgeDelay, c.nextHealthy
	a.smallUDP = c.timedOut // RFC 6891 section 6.2.5: what it said may have been too large for the way
	a.connsOpened = &x.connsOpened
	if c.noOPT {
		a.query = x.withoutOPT()
	}
	x.attempts[x.numStarted] = a
	x.numStarted++
	x.numRunning++
	return a
}

// await sets the timer for what may happen next.
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
		x.timerKind = timerAttempt
		wait = min(wait, latest.timeout)
	}
	x.setTimer(now, wait)
}

func (x *exchange) setTimer(now time.Time, d time.Duration) {
	x.timerAt = now.Add(d)
	x.pool.timers.set(x, now, x.timerAt)
}

// rechoose takes the sides from a newer list. Tries that run on upstreams that have left go on.
func (x *exchange) reselect(now time.Time, snap *snapshot) {
	before := x.candidates
	x.snapshot, x.candidates = snap, x.pool.selectCandidates(snap, x.query, now)
	for i := range before.list[:before.count] {
		old := &before.list[i]
		if c := x.candidate(old.ep); c != nil {
			c.attempts, c.noOPT, c.timedOut, c.excluded = old.attempts, old.noOPT, old.timedOut, old.excluded
		}
	}
}

// side is the upstream's place in the race, nil when it has none any more.
func (x *exchange) candidate(ep *endpoint) *candidate {
	for i := range x.candidates.list[:x.candidates.count] {
		if x.candidates.list[i].ep == ep {
			return &x.candidates.list[i]
		}
	}
	return nil
}

// carried takes what came for one of the tries.
func (x *exchange) handleReply(a *attempt, in reply, batch *wire.SendBatch) {
	won, over := x.processReply(a, in, batch)
	switch {
	case won:
		wire.SetID(in.m.Raw, wire.ID(x.query))
		x.asker.Answered(in.m.Raw, nil, batch)
	case over:
		x.asker.Answered(nil, &x.failure, batch)
	}
}

// take tells whether what came has won the race, and whether it is over.
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
	out, settled := a.endpoint.handleReply(a, in, now, batch)
	switch {
	case !settled: // it goes on by another way
		return false, false
	case out.err == nil:
		a.done = true
		x.numRunning--
		return true, x.finish(now)
	}
	x.recordFailedAttempt(a, out)
	// The failure of an earlier one leaves the latest its patience.
	over = (a.index == x.numStarted-1 || x.noneLeft) && x.startNext(now, batch)
	return false, over && x.finish(now)
}

// withoutOPT is the query without its OPT record, or nil when there is none.
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

// tick is the timetable's.
func (x *exchange) onTimer(batch *wire.SendBatch) {
	defer x.pool.recoverPanic(context.Background(), func() { // nobody else sees to those who wait
		x.asker.Answered(nil, &Failure{Reason: Network, Err: errPanic}, batch)
	})
	if x.handleTimer(batch) {
		x.asker.Answered(nil, &x.failure, batch)
	}
}

// expire tells whether the race is over now that its timer has run out.
func (x *exchange) handleTimer(batch *wire.SendBatch) (over bool) {
	now := x.pool.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	latest := x.attempts[x.numStarted-1]
	switch {
	case x.timerAt.IsZero():
		return false // it ran out just when it was stopped
	case now.Before(x.timerAt): // or set anew, for a try that has only just begun
		x.setTimer(now, x.timerAt.Sub(now))
		return false
	case x.done:
		x.dropLateAttempts(now)
		return false
	case !now.Before(x.deadline):
		x.recordUnanswered(context.DeadlineExceeded)
		over = true
	case x.timerKind == timerDeadline: // nothing better has come in the time there was for it
		over = true
	case x.timerKind == timerAttempt:
		latest.endpoint.recordTimeout(latest, now)
		if c := x.candidate(latest.endpoint); c != nil {
			c.timedOut = true
		}
		over = x.startNext(now, batch)
	case x.pool.hedgeBudget.spend():
		latest.endpoint.count.hedged.Add(1)
		over = x.startNext(now, batch)
	default:
		x.timerKind = timerAttempt
		x.setTimer(now, min(latest.sentAt.Add(latest.timeout).Sub(now), x.deadline.Sub(now)))
	}
	return over && x.finish(now)
}

// abandon ends a race that nobody waits for any more, unless it has ended. Answered is then not called.
func (x *exchange) abort(err error) (ended bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done {
		return false
	}
	x.recordUnanswered(err)
	return x.finish(x.pool.now())
}

// silence notes that the tries that run have got no answer.
func (x *exchange) recordUnanswered(err error) {
	if x.numRunning > 0 {
		x.keepFailure(Failure{Reason: Timeout, Err: fmt.Errorf("waiting for an answer: %w", err)})
	}
}

// finish ends the race: nothing that comes later is its answer. It returns true.
//
// A try that was late, and has lost to another for that, goes on as an orphan until its patience ends: whoever is silent
// would otherwise never be found out.
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

// bury ends the orphans.
func (x *exchange) dropLateAttempts(now time.Time) {
	for _, a := range x.attempts[:x.numStarted] {
		if a.awaitLate {
			a.awaitLate = false
			_ = a.endpoint.cancel(a, now)
		}
	}
}

// note remembers that a try failed and what follows from it for its side.
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

// failed keeps the failure that tells most.
func (x *exchange) keepFailure(f Failure) {
	if x.failure.Err == nil || f.Reason >= x.failure.Reason {
		x.failure = f
	}
}
