// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

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
