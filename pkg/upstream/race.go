// SPDX-License-Identifier: Apache-2.0

package upstream

import (
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

// betterTime is how long a query with a bad answer in hand still waits for a good one from an upstream that is silent: as
// long as a name may take that nobody has asked for in a while, and less than a client's patience.
const betterTime = 2500 * time.Millisecond

// A race is one query of a client: tries that are started one after the other and then run side by side until one of them
// wins. It has no goroutine. What happens to it comes from the carriers and from its timer.
type race struct {
	pool  *Pool
	query []byte
	until time.Time
	to    wire.AnswerReceiver
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
	bare    bool   // an upstream answered the OPT record with a header alone
	waits   waits
	due     time.Time // when its time runs out; zero: it is not waiting for that
	failure Failure   // the gravest so far; Err is nil while there is none

	place int // in the timetable, from 1, and guarded by it; 0: it has none
}

// waits is what the timer of a race is set for.
type waits uint8

const (
	forHedge    waits = iota // the latest try is late for its upstream
	forPatience              // the latest try's patience ends
	forDeadline              // no try is left
)

// run starts the first try. It tells whether the race is over already, all tries having failed at once.
func (r *race) run(now time.Time, batch *wire.SendBatch) (over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.advance(now, batch) && r.finish(now)
}

// advance starts the next try, and that after it if it fails at once. It tells whether the race is over: all tries
// failed, or all had their patience, at least one upstream gave a bad answer and no better one is to be expected.
func (r *race) advance(now time.Time, batch *wire.SendBatch) (over bool) {
	if list := r.pool.current(); list != r.list {
		r.rechoose(now, list)
	}
	r.breakLoops(now)
	for {
		turn := r.turn()
		if turn == nil {
			r.over = true
			break
		}
		t := r.start(turn, now)
		err := t.ep.begin(t, batch)
		if err == nil {
			break
		}
		r.note(t, t.ep.failed(t, err, now))
	}
	if r.running == 0 || r.over && r.failure.Reason == Rcode && !r.mayImprove(now) {
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

// mayImprove tells whether one of the upstreams that have not said anything yet may still have a good answer.
func (r *race) mayImprove(now time.Time) bool {
	if now.Sub(r.first.began) >= betterTime {
		return false
	}
	for _, t := range r.tries[:r.started] {
		if !t.ended && !t.ep.down.Load() {
			return true
		}
	}
	return false
}

// turn is the side that had the fewest tries and may be asked again, nil if there is none. A last resort has no turn
// while another one may be asked that is expected to answer.
func (r *race) turn() *side {
	var turn, resort *side
	hopeful := false
	for i := range r.sides.list[:r.sides.count] {
		s := &r.sides.list[i]
		if s.done || s.tries >= min(sideTries, maxTries/r.sides.count) {
			continue
		}
		best := &turn
		if s.spare {
			best = &resort
		} else {
			hopeful = hopeful || s.ep.hopeful()
		}
		if *best == nil || s.tries < (*best).tries {
			*best = s
		}
	}
	switch {
	case r.started == maxTries:
		return nil
	case resort != nil && !hopeful && (turn == nil || resort.tries < turn.tries):
		return resort
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
	t.began, t.patience, t.hedge, t.relief = now, s.patience, s.hedge, s.relief
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
		if r.failure.Reason == Rcode {
			wait = min(wait, r.first.began.Add(betterTime).Sub(now))
		}
	case latest.relief && latest.hedge > 0 && latest.hedge < latest.patience:
		r.waits = forHedge
		wait = min(wait, latest.hedge)
	default:
		r.waits = forPatience
		wait = min(wait, latest.patience)
	}
	r.setTimer(now, wait)
}

func (r *race) setTimer(now time.Time, d time.Duration) {
	r.due = now.Add(d)
	r.pool.times.set(r, now, r.due)
}

// rechoose takes the sides from a newer list. Tries that run on upstreams that have left go on.
func (r *race) rechoose(now time.Time, list *roster) {
	before := r.sides
	r.list, r.sides = list, r.pool.choose(list, r.query, now)
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
func (r *race) carried(t *try, in received, batch *wire.SendBatch) {
	won, over := r.take(t, in, batch)
	switch {
	case won:
		wire.SetID(in.m.Raw, wire.ID(r.query))
		r.to.Answered(in.m.Raw, nil, batch)
	case over:
		r.to.Answered(nil, &r.failure, batch)
	}
}

// take tells whether what came has won the race, and whether it is over.
func (r *race) take(t *try, in received, batch *wire.SendBatch) (won, over bool) {
	now := r.pool.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || t.ended {
		if t.orphan {
			t.orphan = false
			t.ep.heardOrphan(t, in, now)
		}
		return false, false
	}
	out, settled := t.ep.heard(t, in, now, batch)
	switch {
	case !settled: // it goes on by another way
		return false, false
	case out.err == nil:
		t.ended = true
		r.running--
		return true, r.finish(now)
	}
	r.note(t, out)
	// The failure of an earlier one leaves the latest its patience.
	over = (t.number == r.started-1 || r.over) && r.advance(now, batch)
	return false, over && r.finish(now)
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
