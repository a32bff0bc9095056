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
	targetSides = 2 // upstreams asked, of targets
	followSides = 3 // and of endpoints, which come and go more often
	maxSides    = max(targetSides, followSides)
	maxTries    = 6 // in all,
	sideTries   = 3 // and with one of them
	maxConns    = 3 // connections opened
)

// A race is one query of a client: tries that are started one after the other and then run side by side until one of them
// wins. It has no goroutine. What happens to it comes from the carriers and from its timer.
type race struct {
	pool  *Pool
	query []byte
	until time.Time
	to    wire.Asked
	conns atomic.Int32 // opened for it

	mu      sync.Mutex // guards the fields below
	list    *roster    // that sides were chosen from
	sides   sides      // the best first
	first   try        // most need no other
	tries   [maxTries]*try
	started int    // of tries
	running int    // of them
	over    bool   // no try is left to start
	ended   bool   // nothing is heard any more
	plain   []byte // query without its OPT record, made when first needed
	waits   waits
	timer   *time.Timer // nil until first needed
	failure Failure     // the gravest so far; Err is nil while there is none
}

// waits is what the timer of a race is set for.
type waits uint8

const (
	forHedge    waits = iota // the latest try is late for its upstream
	forPatience              // the latest try's patience ends
	forDeadline              // no try is left
)

// run starts the first try. It tells whether the race is over already, all tries having failed at once.
func (r *race) run(later *wire.Later) (over bool) {
	now := r.pool.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.advance(now, later) && r.finish(now)
}

// advance starts the next try, and that after it if it fails at once. It tells whether the race is over: all tries
// failed, or all had their patience and at least one upstream gave a bad answer.
func (r *race) advance(now time.Time, later *wire.Later) (over bool) {
	if list := r.pool.current(); list != r.list {
		r.rechoose(list)
	}
	r.breakLoops(now)
	for {
		turn := r.turn()
		if turn == nil {
			r.over = true
			break
		}
		t := r.start(turn, now)
		err := t.ep.begin(t, later)
		if err == nil {
			break
		}
		r.note(t, t.ep.failed(t, err, now))
	}
	if r.running == 0 || r.over && r.failure.Reason == Rcode {
		return true
	}
	r.await(now)
	return false
}

// breakLoops ends the tries with upstreams that have been found to lead back here meanwhile: what would be their answer
// may be waiting for this race.
func (r *race) breakLoops(now time.Time) {
	for _, t := range r.tries[:r.started] {
		if t.ended || !t.ep.guard.looped() {
			continue
		}
		_ = t.ep.gaveUp(t, now)
		r.note(t, outcome{cause: CauseNetwork, err: errLooped})
		if s := r.side(t.ep); s != nil {
			s.done = true
		}
	}
}

// turn is the side that had the fewest tries and may be asked again, nil if there is none.
func (r *race) turn() *side {
	if r.started == maxTries {
		return nil
	}
	var turn *side
	for i := range r.sides.list[:r.sides.count] {
		s := &r.sides.list[i]
		if !s.done && s.tries < min(sideTries, maxTries/r.sides.count) && (turn == nil || s.tries < turn.tries) {
			turn = s
		}
	}
	return turn
}

// start makes the next try, with a side.
func (r *race) start(s *side, now time.Time) *try {
	s.tries++
	t := &r.first
	if r.started > 0 {
		t = new(try)
	}
	t.race, t.ep, t.number, t.query, t.plain = r, s.ep, r.started, r.query, s.plain
	t.began, t.patience, t.hedge = now, s.patience, s.hedge
	t.small = s.silent // RFC 6891 section 6.2.5: what it said may have been too large for the way
	t.conns = &r.conns
	if s.plain {
		t.query = r.withoutOPT()
	}
	r.tries[r.started] = t
	r.started++
	r.running++
	return t
}

// await sets the timer for what may happen next.
func (r *race) await(now time.Time) {
	latest := r.tries[r.started-1]
	wait := r.until.Sub(now)
	switch {
	case r.over:
		r.waits = forDeadline
	case latest.hedge > 0 && latest.hedge < latest.patience:
		r.waits = forHedge
		wait = min(wait, latest.hedge)
	default:
		r.waits = forPatience
		wait = min(wait, latest.patience)
	}
	r.setTimer(wait)
}

func (r *race) setTimer(d time.Duration) {
	if r.timer == nil {
		r.timer = time.AfterFunc(d, r.tick)
		return
	}
	r.timer.Reset(d)
}

// rechoose takes the sides from a newer list. Tries that run on upstreams that have left go on.
func (r *race) rechoose(list *roster) {
	before := r.sides
	r.list, r.sides = list, r.pool.choose(list, r.query)
	for i := range before.list[:before.count] {
		old := &before.list[i]
		if s := r.side(old.ep); s != nil {
			s.tries, s.plain, s.silent, s.done = old.tries, old.plain, old.silent, old.done
		}
	}
}

// side is the upstream's place in the race, nil when it has none any more.
func (r *race) side(ep *endpoint) *side {
	for i := range r.sides.list[:r.sides.count] {
		if r.sides.list[i].ep == ep {
			return &r.sides.list[i]
		}
	}
	return nil
}

// carried takes what came for one of the tries.
func (r *race) carried(t *try, in received, later *wire.Later) {
	now := r.pool.now()
	r.mu.Lock()
	if r.ended || t.ended {
		if t.orphan {
			t.orphan = false
			t.ep.heardOrphan(t, in, now)
		}
		r.mu.Unlock()
		return
	}
	out, settled := t.ep.heard(t, in, now, later)
	if !settled { // it goes on by another way
		r.mu.Unlock()
		return
	}
	won := out.err == nil
	over := won
	if won {
		t.ended = true
		r.running--
	} else {
		r.note(t, out)
		// The failure of an earlier one leaves the latest its patience.
		over = (t.number == r.started-1 || r.over) && r.advance(now, later)
	}
	over = over && r.finish(now)
	r.mu.Unlock()
	switch {
	case won:
		wire.SetID(in.m.Raw, wire.ID(r.query))
		wire.CopyQuestion(in.m.Raw, r.query) // its letters may have been mixed
		r.to.Answered(in.m.Raw, nil, later)
	case over:
		r.to.Answered(nil, &r.failure, later)
	}
}

// tick is the timer's.
func (r *race) tick() {
	defer r.pool.recovered(context.Background(), func() {}) // the race is lost, and whoever waits for it has a deadline
	var later wire.Later
	if r.expire(&later) {
		r.to.Answered(nil, &r.failure, &later)
	}
	later.Flush()
}

// expire tells whether the race is over now that its timer has run out.
func (r *race) expire(later *wire.Later) (over bool) {
	now := r.pool.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	latest := r.tries[r.started-1]
	switch {
	case r.ended:
		r.bury(now)
		return false
	case !now.Before(r.until):
		r.silence(context.DeadlineExceeded)
		over = true
	case r.waits == forDeadline: // the timer ran out just when it was to be set anew
		r.setTimer(r.until.Sub(now))
	case r.waits == forPatience:
		latest.ep.lostPatience(latest, now)
		if s := r.side(latest.ep); s != nil {
			s.silent = true
		}
		over = r.advance(now, later)
	case r.pool.hedges.spend():
		latest.ep.count.hedged.Add(1)
		over = r.advance(now, later)
	default:
		r.waits = forPatience
		r.setTimer(min(latest.began.Add(latest.patience).Sub(now), r.until.Sub(now)))
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
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, t := range r.tries[:r.started] {
		if t.ended {
			continue
		}
		t.ended = true
		r.running--
		waited := now.Sub(t.began)
		if t.hedge > 0 && t.hedge <= waited && waited < t.patience && !t.blamed {
			t.orphan = true
			r.setTimer(t.patience - waited)
			continue
		}
		if malformed := t.ep.gaveUp(t, now); malformed != nil {
			r.failed(Failure{Reason: Malformed, Err: malformed})
		}
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

// withoutOPT is the query without its OPT record, or nil when there is none.
func (r *race) withoutOPT() []byte {
	if r.plain != nil {
		return r.plain
	}
	var m wire.Message
	if m.Parse(append([]byte(nil), r.query...)) != nil || !m.HasOPT() || m.StripOPT() != nil {
		return nil
	}
	r.plain = m.Raw
	return r.plain
}
