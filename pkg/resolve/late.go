// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An answer past its time is given for want of a better one (RFC 8767). It is late
// when upstream is to be asked first, and rests when that was in vain a moment ago:
//
//	late     a flight as for any miss. If it comes back
//	           with an answer     that is given, to everybody
//	           without            the answer rests and is given, to everybody
//	           not in StaleAfter  the answer rests until the flight's deadline and is given to everybody
//	                              who waits, and to who comes; the flight goes on, as a refresh does
//	         If there is no room for a flight the answer is given, and rests for makeDoRest
//	         unless the room is only not the client's.
//	resting  given at once, see Worker.fromCache.
//
// The zone's last word goes before it each time. The flight that nobody waits for any
// more keeps its place, and its client's: it is still work that upstream has to do.

// makeDoRest is how long a late answer rests for which there was no room to ask.
const makeDoRest = time.Second

// lates are the flights whose clients may get a late answer before they land, in the
// order of the moments when they do. One timer serves all: it goes off when the first
// of them may be due, and at nobody's cost when they landed before.
type lates struct {
	first, last *flight
	timer       *time.Timer   // nil until it was needed
	at          time.Duration // when it goes off, as a flight's began; 0: it does not
}

// overdueAt is when the flight's clients get a late answer, as f.began.
func (f *flight) overdueAt() time.Duration { return f.began + f.plan.StaleAfter }

// seat makes all of f readable to others, and notes if a late answer is held for who
// began it.
func (r *Resolver) seat(f *flight, late bool, now time.Time) {
	r.flights.mu.Lock()
	defer r.flights.mu.Unlock()
	f.seated = true
	if late {
		r.watchLocked(f, now)
	}
}

// watchLocked notes that a late answer is held for who waits for f. The caller holds
// the flights' lock.
func (r *Resolver) watchLocked(f *flight, now time.Time) {
	if f.late {
		return
	}
	f.late = true
	ls, due := &r.flights.lates, f.overdueAt()
	before := ls.last
	for before != nil && before.overdueAt() > due { // a reload made StaleAfter shorter
		before = before.ahead
	}
	f.listed, f.ahead = true, before
	if before == nil {
		f.behind, ls.first = ls.first, f
	} else {
		f.behind, before.behind = before.behind, f
	}
	if f.behind == nil {
		ls.last = f
	} else {
		f.behind.ahead = f
	}
	if ls.at == 0 || due < ls.at {
		r.alarmLocked(due, now)
	}
}

// alarmLocked has the timer go off at a moment.
func (r *Resolver) alarmLocked(at time.Duration, now time.Time) {
	ls := &r.flights.lates
	ls.at = at
	if wait := at - r.age(now); ls.timer == nil {
		ls.timer = time.AfterFunc(wait, r.overdue)
	} else {
		ls.timer.Reset(wait)
	}
}

// unlistLocked takes f out if it is in the list.
func (ls *lates) unlistLocked(f *flight) {
	if !f.listed {
		return
	}
	f.listed = false
	if f.ahead == nil {
		ls.first = f.behind
	} else {
		f.ahead.behind = f.behind
	}
	if f.behind == nil {
		ls.last = f.ahead
	} else {
		f.behind.ahead = f.ahead
	}
	f.ahead, f.behind = nil, nil
}

// maxRelieved is how many flights' replies are gathered before they are sent.
const maxRelieved = 64

// overdue gives late answers to those who have waited long enough. It runs when the
// timer goes off.
func (r *Resolver) overdue() {
	var batch wire.SendBatch
	for n := 1; ; n++ {
		now := r.now()
		f := r.nextOverdue(now)
		if f == nil || n%maxRelieved == 0 {
			batch.Flush()
		}
		if f == nil {
			return
		}
		r.relieve(f, now, &batch)
	}
}

// nextOverdue takes the next flight that is overdue from the list. If none is, the
// timer is set for the first that will be.
func (r *Resolver) nextOverdue(now time.Time) *flight {
	fs := &r.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.lates.first
	switch {
	case f == nil:
		fs.lates.at = 0
	case f.overdueAt() > r.age(now):
		r.alarmLocked(f.overdueAt(), now)
		f = nil
	default:
		fs.lates.unlistLocked(f)
		f.overdue = true
	}
	return f
}

// relieve gives those who wait for a flight that is overdue what there is to give. If
// there is nothing they wait on.
func (r *Resolver) relieve(f *flight, now time.Time, batch *wire.SendBatch) {
	if f.answered.Load() || !r.flights.seated(f) {
		return // its answer is about to be given; or its beginner is still busy with it
	}
	d := desks.Get().(*desk)
	defer desks.Put(d)
	if !d.instead(f, now) {
		return
	}
	f.plan.Cache.DelayRefresh(f.key, r.epoch.Add(f.began+f.plan.Deadline), now)
	first, joined, ok := r.leave(f)
	if !ok {
		return
	}
	defer r.flying.Done()
	h := hand{r: r, plan: f.plan, result: &d.result, now: now, batch: batch}
	h.giveAll(&first, joined)
}

// seated tells whether all of f is written, and may be read under the lock.
func (fs *flights) seated(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.seated
}

// leave takes everybody out of a flight that goes on without them, and counts as one
// that is under way itself. It is false if the flight has landed.
func (r *Resolver) leave(f *flight) (first waiter, joined []waiter, ok bool) {
	fs := &r.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.landed {
		return first, nil, false
	}
	first, f.first = f.first, waiter{}
	joined, f.rest = f.rest, nil
	if first.client != nil {
		fs.leaveLocked(first.client)
	}
	for i := range joined {
		fs.leaveLocked(joined[i].client)
	}
	r.flying.Add(1)
	return first, joined, true
}

// giveAll gives the outcome to who began a flight, if he waits, and to who joined it.
func (h *hand) giveAll(first *waiter, joined []waiter) {
	if first.to != nil {
		h.give(first)
	}
	for i := range joined {
		h.give(&joined[i])
	}
}

// instead makes the outcome of what there is to give in place of an answer to f. It
// is false, and the outcome as it was, if there is nothing.
func (d *desk) instead(f *flight, now time.Time) (found bool) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("late answer", defect)
		}
	}()
	if f.route == nil { // the configuration wants nobody to be asked
		return false
	}
	if f.plan.Zone != nil && d.q.Parse(f.query) == wire.FaultNone {
		if d.lastWord(f.plan.Zone, &d.q, now) {
			return true
		}
	}
	msg, ok := f.plan.Cache.LookupStale(f.key, now, d.buf[:0])
	if ok {
		d.buf, d.result = msg, stale(msg)
	}
	return ok
}

// stale is the outcome of a late answer.
func stale(msg []byte) outcome {
	return outcome{msg: msg, source: SourceStale, ede: staleEDE(msg)}
}

// staleEDE is how the client of a late answer is told that it is one (RFC 8914
// sections 4.4 and 4.20).
func staleEDE(msg []byte) int {
	if msg[3]&0x0f == wire.RcodeNXDomain {
		return wire.EDEStaleNXDomain
	}
	return wire.EDEStaleAnswer
}

// makeDo gives the client of the query in hand, for whom there is no room, the zone's
// last word or the late answer that AnswerFromMemory found. It is false if that is gone meanwhile.
func (l *Worker) makeDo(why Shed, from *wire.Peer, now time.Time, to wire.Replier) bool {
	d := desks.Get().(*desk)
	defer desks.Put(d)
	if led := l.detour.led(); led || !d.lastWord(l.plan.Zone, &l.q, now) { // the zone that led here has had its word
		msg, ok := l.plan.Cache.LookupStale(l.q.Key(), now, d.buf[:0])
		if !ok {
			return false
		}
		d.buf, d.result = msg, stale(msg)
	}
	if why != ShedClient { // there is room for others: one who wants too much is not to keep the answer old for them
		l.plan.Cache.DelayRefresh(l.q.Key(), now.Add(makeDoRest), now)
	}
	h := hand{r: l.r, plan: l.plan, result: &d.result, now: now, batch: &l.batch}
	w := l.turned(from, now, to)
	h.give(&w)
	return true
}
