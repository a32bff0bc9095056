// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An in-flight query serves all clients that ask the same question. Its states:
//
//	query.join / lookup.refresh
//	   │
//	   ├─ no room ───────────────────────► shed: stale answer, SERVFAIL or nothing (query.rejectQuery)
//	   ├─ same question in flight ───────► joined: waits in inFlight.joined
//	   ▼
//	added        in the query table; others may join (addLocked)
//	   │ lookup.prepareQuery: route and upstream query
//	   ▼
//	ready, sent  Asker.Ask was called (send)
//	   │
//	   ├─ StaleAfter, stale answer held ─► stale served: waiters get it, the query goes on (serveStale)
//	   │ Answered: answer, error or deadline
//	   ▼
//	answered     validated and stored, or the failure recorded (responseBuilder.process)
//	   ▼
//	completed    out of the table; all waiters get their reply (responseBuilder.complete)
//
// A stale answer is used if upstream does not answer (RFC 8767):
//
//	stale          an upstream query starts, as for any miss
//	                 answer             all waiters get it
//	                 failure            all waiters get the stale answer, which goes into backoff
//	                 none in StaleAfter the same, with a backoff until the query's deadline; the
//	                                    query goes on without waiters, like a refresh
//	               Without room for a query the client gets the stale answer. It goes into
//	               backoff for shedBackoff, unless only this client's limit is reached.
//	stale backoff  the answer is returned at once, see lookup.askCache
//
// An answer of the zone fallback precedes the stale answer each time. A query without waiters still
// counts against its client's limit: it is still work for upstream.

// errNoRoute is the failure of a query without a route.
var errNoRoute = errors.New("no route for the name")

// inFlightBuffer holds the key, the query and the first client's question for names of about 40 bytes,
// and a cookie. What does not fit is allocated. With this size an inFlight has 512 bytes; the next size
// class would make a miss a fifth slower.
const inFlightBuffer = 176

// An inFlight is one upstream query, for all clients with the same question. It is one memory block: a
// usual miss allocates nothing else.
type inFlight struct {
	r         *Resolver
	plan      *Plan
	route     *Route // nil: no route matches the name
	key       []byte
	query     []byte        // upstream query; its ID is zero
	hash      uint64        // hash of key
	next      *inFlight     // next query in queryTable.byHash
	client    *client       // client that the query counts for; nil: it is a refresh
	begunAt   time.Duration // arrival of the first client's query, or start of the refresh; since the resolver was made
	refresh   bool          // started without a client
	ready     bool          // all fields are written, other goroutines may read them
	completed bool          // no client can join any more
	staleHeld bool          // a stale answer is held for a waiter
	staleDue  bool          // with staleHeld: StaleAfter has passed
	answered  atomic.Bool   // Answered was called

	prevStale, nextStale *inFlight // neighbors in queryTable.stale; nil: not in the ring

	first  waiter // the client whose question started the query; zero for a refresh, and once it got a stale answer
	joined []waiter
	buf    [inFlightBuffer]byte
}

// nextQuery returns the query that the worker may start for the current key. It is allocated before the
// query table is locked, and kept for the next call if it is not used.
func (l *lookup) nextQuery() *inFlight {
	if l.worker.spareQuery == nil {
		l.worker.spareQuery = &inFlight{r: l.worker.r}
	}
	f := l.worker.spareQuery
	f.key = append(f.buf[:0], l.Key()...)
	f.hash = l.worker.r.queries.hash(f.key)
	f.plan, f.begunAt = l.plan, l.now.Sub(l.worker.r.epoch)
	return f
}

// joinableLocked returns the in-flight query with f's key, or nil if there is none to join. If the cluster object behind the name
// changed after that query began, its answer may be outdated. Then the caller starts a new query in parallel.
func (l *lookup) joinableLocked(f *inFlight) *inFlight {
	existing := l.worker.r.queries.findLocked(f.hash, f.key)
	if existing == nil {
		return nil
	}
	if owner := l.plan.owner(l.Name()); owner != nil && l.plan.Cache.ChangedSince(owner, l.worker.r.epoch.Add(existing.begunAt)) {
		return nil
	}
	return existing
}

// prepareQuery sets the route and the upstream query of f, which was added to the query table. Clients of other
// workers may join f in the meantime. Only this worker accesses the fields that joining does not need.
func (l *lookup) prepareQuery(f *inFlight) {
	l.worker.spareQuery = nil
	f.route = l.plan.route(l.Name())
	start := len(f.key)
	query := l.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// maxRefreshes bounds the in-flight refreshes. Refreshes yield to clients, because an answer that
// expires costs only one more query. A refresh starts only while less than half of Plan.Inflight
// is used, and takes no client's place.
const maxRefreshes = 256

// refresh starts a query for an answer that is due for prefetch, unless one is in flight.
func (l *lookup) refresh() {
	t, f := &l.worker.r.queries, l.nextQuery()
	t.mu.Lock()
	if l.joinableLocked(f) != nil {
		t.mu.Unlock()
		return
	}
	if t.refreshes >= maxRefreshes || 2*t.count >= l.plan.Inflight {
		t.mu.Unlock()
		l.worker.r.counts.shed(ShedRefresh)
		return
	}
	f.refresh = true
	t.addLocked(f)
	t.mu.Unlock()
	l.worker.r.counts.add(countPrefetches)
	l.prepareQuery(f)
	f.markReady(false, l.now)
	f.send(l.now.Add(f.plan.Deadline), &l.worker.batch)
}

// name returns the canonical query name.
func (f *inFlight) name() []byte { return keyName(f.key) }

// keyName returns the canonical name that a cache key begins with.
func keyName(key []byte) []byte {
	end := 0
	for key[end] != 0 {
		end += 1 + int(key[end])
	}
	return key[:end+1]
}

// staleAt returns when the waiters get a stale answer, since the resolver was made.
func (f *inFlight) staleAt() time.Duration { return f.begunAt + f.plan.StaleAfter }

// send passes the query to upstream, with a deadline. The deadline is neither a client's nor the
// server's: a query serves every client that joins it, and is answered even while the agent stops.
func (f *inFlight) send(until time.Time, batch *wire.SendBatch) {
	f.r.pending.Add(1)
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("sending a query", defect)
			if !f.answered.Swap(true) {
				d := newResponse(f.r, f.plan, f.r.now(), batch)
				defer d.release()
				d.complete(f)
			}
		}
	}()
	if f.route == nil {
		f.Answered(nil, errNoRoute, batch)
		return
	}
	f.route.Upstream.Ask(f.query, until, f, batch)
}

// Answered implements [wire.AnswerReceiver]. It stores the answer, if allowed, and replies to all
// waiters. Only the first call counts.
func (f *inFlight) Answered(answer *wire.Message, err error, batch *wire.SendBatch) {
	if f.answered.Swap(true) {
		return
	}
	d := newResponse(f.r, f.plan, f.r.now(), batch)
	defer d.release()
	d.process(f, answer, err)
	d.complete(f)
}

// markReady allows other goroutines to read all of f. staleHeld says that the first client can get a stale
// answer.
func (f *inFlight) markReady(staleHeld bool, now time.Time) {
	f.r.queries.mu.Lock()
	defer f.r.queries.mu.Unlock()
	f.ready = true
	if staleHeld {
		f.holdStaleLocked(now)
	}
}

// holdStaleLocked records that a stale answer is held for a waiter of f.
func (f *inFlight) holdStaleLocked(now time.Time) {
	t, due := &f.r.queries, f.staleAt()
	if t.addStaleLocked(f) && (t.staleFireAt == 0 || due < t.staleFireAt) {
		f.r.setStaleTimerLocked(due, now)
	}
}

// setStaleTimerLocked sets the timer to at, since the resolver was made.
func (r *Resolver) setStaleTimerLocked(at time.Duration, now time.Time) {
	t := &r.queries
	t.staleFireAt = at
	if wait := at - now.Sub(r.epoch); t.staleTimer == nil {
		t.staleTimer = time.AfterFunc(wait, r.serveOverdue)
	} else {
		t.staleTimer.Reset(wait)
	}
}

// maxBatchedReplies is the number of queries whose replies are sent in one batch.
const maxBatchedReplies = 64

// serveOverdue calls serveStale for all queries in the ring that are older than StaleAfter. The stale timer
// calls it.
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
		f.serveStale(now, &batch)
	}
}

// nextOverdue removes and returns the first query of the ring if its waiters are due a stale answer. Otherwise it
// sets the timer for that query, and returns nil.
func (r *Resolver) nextOverdue(now time.Time) *inFlight {
	t := &r.queries
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.stale.nextStale
	switch {
	case f == &t.stale:
		t.staleFireAt = 0
		return nil
	case f.staleAt() > now.Sub(r.epoch):
		r.setStaleTimerLocked(f.staleAt(), now)
		return nil
	}
	t.removeStaleLocked(f)
	f.staleDue = true
	return f
}

// serveStale replies to all waiters of f with the answer of the zone fallback or else the stale answer. Without
// either they keep waiting.
func (f *inFlight) serveStale(now time.Time, batch *wire.SendBatch) {
	f.r.queries.mu.Lock()
	ready := f.ready
	f.r.queries.mu.Unlock()
	if !ready || f.answered.Load() {
		return // f is still being prepared, or is being answered
	}
	d := newResponse(f.r, f.plan, now, batch)
	defer d.release()
	if !d.useFallback(f) {
		return
	}
	f.plan.Cache.DelayRefresh(f.key, f.r.epoch.Add(f.begunAt+f.plan.Deadline), now)
	first, joined, ok := f.detachWaiters()
	if !ok {
		return
	}
	defer f.r.pending.Done()
	d.deliverAll(&first, joined)
}

// detachWaiters removes all waiters from a query that goes on without them. The caller counts as
// pending work until it calls f.r.pending.Done. It returns false if the query has completed.
func (f *inFlight) detachWaiters() (first waiter, joined []waiter, ok bool) {
	t := &f.r.queries
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.completed {
		return first, nil, false
	}
	joined = t.detachLocked(f)
	first, f.first = f.first, waiter{}
	f.r.pending.Add(1)
	return first, joined, true
}
