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
const shedBackoff = time.Second

// lates are the flights whose clients may get a late answer before they land, in the
// order of the moments when they do. One timer serves all: it goes off when the first
// of them may be due, and at nobody's cost when they landed before.
type staleQueue struct {
	first, last *inFlight
	timer       *time.Timer   // nil until it was needed
	fireAt      time.Duration // when it goes off, as a flight's began; 0: it does not
}

// overdueAt is when the flight's clients get a late answer, as f.began.
func (f *inFlight) staleAt() time.Duration { return f.begunAt + f.plan.StaleAfter }

// seat makes all of f readable to others, and notes if a late answer is held for who
// began it.
func (r *Resolver) markReady(f *inFlight, late bool, now time.Time) {
	r.queries.mu.Lock()
	defer r.queries.mu.Unlock()
	f.ready = true
	if late {
		r.enqueueStaleLocked(f, now)
	}
}

// watchLocked notes that a late answer is held for who waits for f. The caller holds
// the flights' lock.
func (r *Resolver) enqueueStaleLocked(f *inFlight, now time.Time) {
	if f.staleHeld {
		return
	}
	f.staleHeld = true
	ls, due := &r.queries.staleQueue, f.staleAt()
	before := ls.last
	for before != nil && before.staleAt() > due { // a reload made StaleAfter shorter
		before = before.prevStale
	}
	f.inStaleQueue, f.prevStale = true, before
	if before == nil {
		f.nextStale, ls.first = ls.first, f
	} else {
		f.nextStale, before.nextStale = before.nextStale, f
	}
	if f.nextStale == nil {
		ls.last = f
	} else {
		f.nextStale.prevStale = f
	}
	if ls.fireAt == 0 || due < ls.fireAt {
		r.setStaleTimerLocked(due, now)
	}
}

// alarmLocked has the timer go off at a moment.
func (r *Resolver) setStaleTimerLocked(at time.Duration, now time.Time) {
	ls := &r.queries.staleQueue
	ls.fireAt = at
	if wait := at - r.sinceStart(now); ls.timer == nil {
		ls.timer = time.AfterFunc(wait, r.serveOverdue)
	} else {
		ls.timer.Reset(wait)
	}
}

// unlistLocked takes f out if it is in the list.
func (ls *staleQueue) removeLocked(f *inFlight) {
	if !f.inStaleQueue {
		return
	}
	f.inStaleQueue = false
	if f.prevStale == nil {
		ls.first = f.nextStale
	} else {
		f.prevStale.nextStale = f.nextStale
	}
	if f.nextStale == nil {
		ls.last = f.prevStale
	} else {
		f.nextStale.prevStale = f.prevStale
	}
	f.prevStale, f.nextStale = nil, nil
}

// maxRelieved is how many flights' replies are gathered before they are sent.
const maxBatchedReplies = 64

// overdue gives late answers to those who have waited long enough. It runs when the
// timer goes off.
func (r *Resolver) serveOverdue() {
	var batch wire.SendBatch
	for n := 1; ; n++ {
		now := r.now()
		f := r.nextOverdue(now)
		if f == nil || n%maxBatchedReplies == 0 {
			batch.Flush()
		}
		if f == nil {
			return
		}
		r.serveStale(f, now, &batch)
	}
}

// nextOverdue takes the next flight that is overdue from the list. If none is, the
// timer is set for the first that will be.
func (r *Resolver) nextOverdue(now time.Time) *inFlight {
	fs := &r.queries
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.staleQueue.first
	switch {
	case f == nil:
		fs.staleQueue.fireAt = 0
	case f.staleAt() > r.sinceStart(now):
		r.setStaleTimerLocked(f.staleAt(), now)
		f = nil
	default:
		fs.staleQueue.removeLocked(f)
		f.staleDue = true
	}
	return f
}

// relieve gives those who wait for a flight that is overdue what there is to give. If
// there is nothing they wait on.
func (r *Resolver) serveStale(f *inFlight, now time.Time, batch *wire.SendBatch) {
	if f.answered.Load() || !r.queries.isReady(f) {
		return // its answer is about to be given; or its beginner is still busy with it
	}
	d := builderPool.Get().(*responseBuilder)
	defer builderPool.Put(d)
	if !d.useFallback(f, now) {
		return
	}
	f.plan.Cache.DelayRefresh(f.key, r.epoch.Add(f.begunAt+f.plan.Deadline), now)
	first, joined, ok := r.detachWaiters(f)
	if !ok {
		return
	}
	defer r.pending.Done()
	h := replySender{r: r, plan: f.plan, result: &d.result, now: now, batch: batch}
	h.deliverAll(&first, joined)
}

// seated tells whether all of f is written, and may be read under the lock.
func (fs *queryTable) isReady(f *inFlight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.ready
}

// leave takes everybody out of a flight that goes on without them, and counts as one
// that is under way itself. It is false if the flight has landed.
func (r *Resolver) detachWaiters(f *inFlight) (first waiter, joined []waiter, ok bool) {
	fs := &r.queries
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.completed {
		return first, nil, false
	}
	first, f.first = f.first, waiter{}
	joined, f.joined = f.joined, nil
	if first.client != nil {
		fs.removeWaiterLocked(first.client)
	}
	for i := range joined {
		fs.removeWaiterLocked(joined[i].client)
	}
	r.pending.Add(1)
	return first, joined, true
}

// giveAll gives the outcome to who began a flight, if he waits, and to who joined it.
func (h *replySender) deliverAll(first *waiter, joined []waiter) {
	if first.to != nil {
		h.deliver(first)
	}
	for i := range joined {
		h.deliver(&joined[i])
	}
}

// instead makes the outcome of what there is to give in place of an answer to f. It
// is false, and the outcome as it was, if there is nothing.
func (d *responseBuilder) useFallback(f *inFlight, now time.Time) (found bool) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("late answer", defect)
		}
	}()
	if f.route == nil { // the configuration wants nobody to be asked
		return false
	}
	if f.plan.Zone != nil && d.q.Parse(f.query) == wire.FaultNone {
		if d.useZoneFallback(f.plan.Zone, &d.q, now) {
			return true
		}
	}
	msg, ok := f.plan.Cache.LookupStale(f.key, now, d.buf[:0])
	if ok {
		d.buf, d.result = msg, staleOutcome(msg)
	}
	return ok
}

// stale is the outcome of a late answer.
func staleOutcome(msg []byte) outcome {
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
func (l *Worker) serveStaleOnShed(why Shed, from *wire.Peer, now time.Time, to wire.Replier) bool {
	d := builderPool.Get().(*responseBuilder)
	defer builderPool.Put(d)
	if hasAlias := l.redirect.hasAlias(); hasAlias || !d.useZoneFallback(l.plan.Zone, &l.q, now) { // the zone that led here has had its word
		msg, ok := l.plan.Cache.LookupStale(l.q.Key(), now, d.buf[:0])
		if !ok {
			return false
		}
		d.buf, d.result = msg, staleOutcome(msg)
	}
	if why != ShedClient { // there is room for others: one who wants too much is not to keep the answer old for them
		l.plan.Cache.DelayRefresh(l.q.Key(), now.Add(shedBackoff), now)
	}
	h := replySender{r: l.r, plan: l.plan, result: &d.result, now: now, batch: &l.batch}
	w := l.shedWaiter(from, now, to)
	h.deliver(&w)
	return true
}
