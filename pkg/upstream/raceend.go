// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// tick is the timetable's.
func (r *race) tick(batch *wire.SendBatch) {
	defer r.pool.recovered(context.Background(), func() { // nobody else sees to those who wait
		r.to.Answered(nil, &Failure{Reason: Network, Err: errPanic}, batch)
	})
	if r.expire(batch) {
		r.to.Answered(nil, &r.failure, batch)
	}
}

// expire tells whether the race is over now that its timer has run out.
func (r *race) expire(batch *wire.SendBatch) (over bool) {
	now := r.pool.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	latest := r.tries[r.started-1]
	switch {
	case r.due.IsZero():
		return false // it ran out just when it was stopped
	case now.Before(r.due): // or set anew, for a try that has only just begun
		r.setTimer(now, r.due.Sub(now))
		return false
	case r.ended:
		r.bury(now)
		return false
	case !now.Before(r.until):
		r.silence(context.DeadlineExceeded)
		over = true
	case r.waits == forDeadline: // nothing better has come in the time there was for it
		over = true
	case r.waits == forPatience:
		latest.ep.lostPatience(latest, now)
		if s := r.side(latest.ep); s != nil {
			s.silent = true
		}
		over = r.advance(now, batch)
	case r.pool.hedges.spend():
		latest.ep.count.hedged.Add(1)
		over = r.advance(now, batch)
	default:
		r.waits = forPatience
		r.setTimer(now, min(latest.began.Add(latest.patience).Sub(now), r.until.Sub(now)))
	}
	return over && r.finish(now)
}

// abandon ends a race that nobody waits for any more, unless it has ended. Answered is then not called.
func (r *race) abandon(err error) (ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.silence(err)
	return r.finish(r.pool.now())
}

// silence notes that the tries that run have got no answer.
func (r *race) silence(err error) {
	if r.running > 0 {
		r.failed(Failure{Reason: Timeout, Err: fmt.Errorf("waiting for an answer: %w", err)})
	}
}

// finish ends the race: nothing that comes later is its answer. It returns true.
//
// A try that was late, and has lost to another for that, goes on as an orphan until its patience ends: whoever is silent
// would otherwise never be found out.
func (r *race) finish(now time.Time) bool {
	r.ended = true
	r.due = time.Time{}
	linger := time.Duration(0)
	for _, t := range r.tries[:r.started] {
		if t.ended {
			continue
		}
		t.ended = true
		r.running--
		waited := now.Sub(t.began)
		if t.hedge > 0 && t.hedge <= waited && waited < t.patience && !t.blamed {
			t.orphan = true
			linger = max(linger, t.patience-waited)
			continue
		}
		if malformed := t.ep.gaveUp(t, now); malformed != nil {
			r.failed(Failure{Reason: Malformed, Err: malformed})
		}
	}
	if linger > 0 {
		r.setTimer(now, linger)
	} else {
		r.pool.times.remove(r)
	}
	return true
}

// bury ends the orphans.
func (r *race) bury(now time.Time) {
	for _, t := range r.tries[:r.started] {
		if t.orphan {
			t.orphan = false
			_ = t.ep.gaveUp(t, now)
		}
	}
}

// note remembers that a try failed and what follows from it for its side.
func (r *race) note(t *try, out outcome) {
	t.ended = true
	r.running--
	reason := out.reason()
	r.failed(Failure{Reason: reason, Rcode: out.rcode, Err: out.err})
	side := r.side(t.ep)
	if reason != Rcode || side == nil {
		return
	}
	old := !out.edns && (out.cause == CauseFormErr || out.cause == CauseNotImp)
	switch {
	case !old || t.plain:
		side.done = true
	case !side.plain: // RFC 6891 section 7: it may only be too old for EDNS
		side.plain = r.withoutOPT() != nil
		side.done = !side.plain
	}
}

// failed keeps the failure that tells most.
func (r *race) failed(f Failure) {
	if r.failure.Err == nil || f.Reason >= r.failure.Reason {
		r.failure = f
	}
}
