// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A stale answer is used if upstream does not answer (RFC 8767):
//
//	stale          an upstream query starts, as for any miss
//	                 answer             all waiters get it
//	                 failure            all waiters get the stale answer, which goes into backoff
//	                 none in StaleAfter the same, with a backoff until the query's deadline; the
//	                                    query goes on without waiters, like a refresh
//	               Without room for a query the client gets the stale answer. It goes into
//	               backoff for shedBackoff, unless only this client's limit is reached.
//	stale backoff  the answer is returned at once, see Worker.answerFromCache
//
// An answer of the zone fallback precedes the stale answer each time. A query without waiters still
// counts against its client's limit: it is still work for upstream.

// shedBackoff is the refresh backoff of a stale answer used because there was no room for a query.
const shedBackoff = time.Second

// A staleQueue holds the queries whose waiters can get a stale answer, ordered by the time when they
// get it. One timer serves all queries. It is not stopped when they complete earlier.
type staleQueue struct {
	first, last *inFlight
	timer       *time.Timer   // nil until first needed
	fireAt      time.Duration // in the clock of inFlight.begunAt; 0: not set
}

// staleAt returns when the waiters get a stale answer, in the clock of begunAt.
func (f *inFlight) staleAt() time.Duration { return f.begunAt + f.plan.StaleAfter }

// markReady allows others to read all of f. staleHeld says that the first client can get a stale
// answer.
func (r *Resolver) markReady(f *inFlight, staleHeld bool, now time.Time) {
	r.queries.mu.Lock()
	defer r.queries.mu.Unlock()
	f.ready = true
	if staleHeld {
		r.enqueueStaleLocked(f, now)
	}
}

// enqueueStaleLocked records that a stale answer is held for a waiter of f. The caller holds the
// table's lock.
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

// setStaleTimerLocked sets the timer.
func (r *Resolver) setStaleTimerLocked(at time.Duration, now time.Time) {
	ls := &r.queries.staleQueue
	ls.fireAt = at
	if wait := at - r.sinceStart(now); ls.timer == nil {
		ls.timer = time.AfterFunc(wait, r.serveOverdue)
	} else {
		ls.timer.Reset(wait)
	}
}

// removeLocked removes f, which is in the queue.
func (ls *staleQueue) removeLocked(f *inFlight) {
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

// maxBatchedReplies is the number of queries whose replies are sent in one batch.
const maxBatchedReplies = 64

// serveOverdue replies with stale answers to the waiters of all queries older than StaleAfter. The
// timer calls it.
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

// nextOverdue removes and returns the next query that is due. If none is, it sets the timer for the
// first one.
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

// serveStale replies with the stale answer to all waiters of f. Without a stale answer they keep
// waiting.
func (r *Resolver) serveStale(f *inFlight, now time.Time, batch *wire.SendBatch) {
	if f.answered.Load() || !r.queries.isReady(f) {
		return // it is being answered, or still being prepared
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

// isReady reports whether all of f is written and may be read under the lock.
func (fs *queryTable) isReady(f *inFlight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.ready
}

// detachWaiters removes all waiters from a query that goes on without them. The caller counts as
// pending work until it calls r.pending.Done. It returns false if the query has completed.
func (r *Resolver) detachWaiters(f *inFlight) (first waiter, joined []waiter, ok bool) {
	fs := &r.queries
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.completed {
		return first, nil, false
	}
	joined = fs.detachLocked(f)
	first, f.first = f.first, waiter{}
	r.pending.Add(1)
	return first, joined, true
}

// useFallback sets the outcome from the zone fallback or the stale answer. It returns false and leaves
// the outcome unchanged if there is neither.
func (d *responseBuilder) useFallback(f *inFlight, now time.Time) (found bool) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("stale answer", defect)
		}
	}()
	if f.route == nil { // the configuration routes the name nowhere
		return false
	}
	if f.plan.Zone != nil && d.q.Parse(f.query) == wire.RcodeSuccess {
		if d.useZoneFallback(f.plan.Zone, &d.q, now) {
			return true
		}
	}
	return d.useStale(f.plan.Cache, f.key, now)
}

// useStale sets the outcome from the stale answer for key, and reports whether there is one.
func (d *responseBuilder) useStale(c *cache.Cache, key []byte, now time.Time) bool {
	msg, ok := c.LookupStale(key, now, d.buf[:0])
	if ok {
		d.buf, d.result = msg, outcome{msg: msg, source: SourceStale, ede: staleEDE(msg)}
	}
	return ok
}

// staleEDE returns the Extended DNS Error of a stale answer (RFC 8914 sections 4.4 and 4.20).
func staleEDE(msg []byte) int {
	if msg[3]&0x0f == wire.RcodeNXDomain {
		return wire.EDEStaleNXDomain
	}
	return wire.EDEStaleAnswer
}

// serveStaleOnShed replies to a shed client with the zone fallback or the stale answer that the lookup
// found. It returns false if the answer is gone in the meantime.
func (l *Worker) serveStaleOnShed(why Shed, from *wire.Peer, now time.Time, to wire.Replier) bool {
	d := builderPool.Get().(*responseBuilder)
	defer builderPool.Put(d)
	// The zone was asked for an alias already.
	if (l.redirect.hasAlias() || !d.useZoneFallback(l.plan.Zone, &l.q, now)) && !d.useStale(l.plan.Cache, l.q.Key(), now) {
		return false
	}
	if why != ShedClient { // a client over its limit must not delay the refresh for others
		l.plan.Cache.DelayRefresh(l.q.Key(), now.Add(shedBackoff), now)
	}
	h := replySender{r: l.r, plan: l.plan, result: &d.result, now: now, batch: &l.batch}
	w := l.shedWaiter(from, now, to)
	h.deliver(&w)
	return true
}
