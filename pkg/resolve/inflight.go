// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// An in-flight query serves all clients that ask the same question. Its states:
//
//	Worker.join / Worker.refresh
//	   │
//	   ├─ no room ───────────────────────► shed: stale answer, SERVFAIL or nothing (Worker.rejectQuery)
//	   ├─ same question in flight ───────► joined: waits in inFlight.joined
//	   ▼
//	added        in the query table; others may join (addLocked)
//	   │ Worker.prepareQuery: route and upstream query
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
//	stale backoff  the answer is returned at once, see Worker.askCache
//
// An answer of the zone fallback precedes the stale answer each time. A query without waiters still
// counts against its client's limit: it is still work for upstream.

// errNoRoute is the failure of a query without a route.
var errNoRoute = errors.New("no route for the name")

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

// markReady allows others to read all of f. staleHeld says that the first client can get a stale
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

// setStaleTimerLocked sets the timer.
func (r *Resolver) setStaleTimerLocked(at time.Duration, now time.Time) {
	t := &r.queries
	t.staleFireAt = at
	if wait := at - r.sinceStart(now); t.staleTimer == nil {
		t.staleTimer = time.AfterFunc(wait, r.serveOverdue)
	} else {
		t.staleTimer.Reset(wait)
	}
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
		f.serveStale(now, &batch)
	}
}

// nextOverdue removes and returns the next query that is due. If none is, it sets the timer for the
// first one.
func (r *Resolver) nextOverdue(now time.Time) *inFlight {
	t := &r.queries
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.stale.nextStale
	switch {
	case f == &t.stale:
		t.staleFireAt = 0
		return nil
	case f.staleAt() > r.sinceStart(now):
		r.setStaleTimerLocked(f.staleAt(), now)
		return nil
	}
	t.removeStaleLocked(f)
	f.staleDue = true
	return f
}

// serveStale replies with the stale answer to all waiters of f. Without a stale answer they keep
// waiting.
func (f *inFlight) serveStale(now time.Time, batch *wire.SendBatch) {
	if f.answered.Load() || !f.isReady() {
		return // it is being answered, or still being prepared
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

// isReady reports whether all of f is written and may be read under the lock.
func (f *inFlight) isReady() bool {
	f.r.queries.mu.Lock()
	defer f.r.queries.mu.Unlock()
	return f.ready
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

// A responseBuilder turns an upstream answer or a failure into the replies of all who wait for it. It is
// reused.
type responseBuilder struct {
	validator

	r     *Resolver
	plan  *Plan
	now   time.Time
	batch *wire.SendBatch

	msg    []byte // the answer; nil: there is none
	source Source // of msg
	ede    int    // of a failure, and of an answer in place of one

	q   wire.Query
	buf []byte // of msg, unless that is an upstream's
}

var (
	builderPool  = sync.Pool{New: func() any { return new(responseBuilder) }}           //nolint:gochecknoglobals // a pool is shared by design and holds no state
	replyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // for one reply each
)

// newResponse returns a responseBuilder with a failure. The caller releases it.
func newResponse(r *Resolver, plan *Plan, now time.Time, batch *wire.SendBatch) *responseBuilder {
	d := builderPool.Get().(*responseBuilder)
	d.r, d.plan, d.now, d.batch = r, plan, now, batch
	d.ede = wire.EDEOther
	return d
}

func (d *responseBuilder) release() {
	d.r, d.plan, d.batch, d.msg = nil, nil, nil, nil // msg is the upstream's
	builderPool.Put(d)
}

// use sets the outcome to an answer in d.buf.
func (d *responseBuilder) use(msg []byte, source Source, ede int) {
	d.buf, d.msg, d.source, d.ede = msg, msg, source, ede
}

// process sets the outcome from the upstream answer or the error.
func (d *responseBuilder) process(f *inFlight, answer *wire.Message, err error) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("processing an answer", defect)
			d.msg, d.ede = nil, wire.EDEOther
		}
	}()
	if err == nil {
		err = d.validateAndStore(f, answer)
	}
	if err != nil {
		d.recordFailure(f, err)
	}
}

// validateAndStore validates the answer and caches it for as long as allowed.
func (d *responseBuilder) validateAndStore(f *inFlight, answer *wire.Message) error {
	inconclusive := answer.IsInconclusive()
	life, err := d.validate(f.route.ttls(), answer)
	if err != nil {
		return err
	}
	if inconclusive && hasUsable(f.plan.Cache, f.key, d.now) {
		return errInconclusive // no better than SERVFAIL
	}
	d.msg, d.source = answer.Raw, SourceUpstream
	if !f.route.NoStore {
		d.store(f, life)
	}
	return nil
}

// hasUsable reports whether the cache has an answer for key, fresh or stale.
func hasUsable(c *cache.Cache, key []byte, now time.Time) bool {
	e, ok := c.Peek(key, now)
	return ok && (e.State <= cache.PrefetchDue || e.State == cache.Stale || e.State == cache.StaleBackoff)
}

// store caches the validated answer for life. An answer that may not be cached removes the cached one,
// which is known to be outdated.
func (d *responseBuilder) store(f *inFlight, life time.Duration) {
	c := f.plan.Cache
	d.answer.Owner, d.answer.QueriedAt = f.plan.owner(f.name()), f.r.epoch.Add(f.begunAt)
	if life <= 0 {
		// An answer from before its owner's last change does not outdate a later one.
		if d.answer.Owner == nil || !c.ChangedSince(d.answer.Owner, d.answer.QueriedAt) {
			c.Remove(f.key)
		}
		return
	}
	d.answer.Msg, d.answer.Lifetime = d.msg, life
	// Other servers may deny a name for one type and have data of another, which RFC 2308 section 5 forbids.
	d.answer.AllTypes = d.deniesName && f.route.Exact
	c.Put(f.key, &d.answer, d.now)
	if d.deniesName && f.plan.Cut {
		f.r.cuts.add(f.name(), f.r.sinceStart(d.now)+life)
	}
	if plan := f.r.plan.Load(); plan != f.plan {
		if route := plan.route(f.name()); route == nil || route.NoStore || route.Upstream != f.route.Upstream {
			// A reload has changed the route, and may have flushed the cache before this answer arrived.
			c.Remove(f.key)
		}
	}
}

// recordFailure caches the failure. The zone may still have an answer.
func (d *responseBuilder) recordFailure(f *inFlight, err error) {
	d.ede = wire.EDENoReachableAuthority
	if f.route == nil {
		return // no upstream was queried: nothing to cache
	}
	if coded, ok := errors.AsType[interface {
		error
		EDE() int
	}](err); ok {
		d.ede = coded.EDE()
	}
	f.r.counts.add(countFailures)
	d.q.Parse(f.query)
	edns := d.q.EDNS
	d.q.EDNS = false // no client's flags, no OPT record
	d.buf = d.q.AppendEmpty(d.buf[:0], wire.RcodeServFail, &wire.ReplyOptions{EDE: wire.EDENone})
	f.plan.Cache.PutFailure(f.key, d.buf, time.Second, f.plan.FailureTTL, d.now)
	d.q.EDNS = edns
	d.useZoneFallback(f.plan.Zones, &d.q)
}

// useFallback sets the outcome from the zone fallback or the stale answer. It returns false and leaves
// the outcome unchanged if there is neither.
func (d *responseBuilder) useFallback(f *inFlight) (found bool) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("stale answer", defect)
		}
	}()
	if f.route == nil { // the configuration routes the name nowhere
		return false
	}
	if len(f.plan.Zones) > 0 && d.q.Parse(f.query) == wire.RcodeSuccess && d.useZoneFallback(f.plan.Zones, &d.q) {
		return true
	}
	return d.useStale(f.plan.Cache, f.key)
}

// useZoneFallback sets the outcome from the zones if upstream gave no answer, and reports whether one of
// them has one.
func (d *responseBuilder) useZoneFallback(zones zone.Zones, q *wire.Query) bool {
	if len(zones) == 0 {
		return false
	}
	msg, said := zones.AnswerStale(q, zone.Client{MaxSize: wire.MaxMessage}, d.now, d.buf[:0])
	if said.Verdict != zone.Answered {
		return false
	}
	d.use(msg, SourceZone, said.EDE)
	return true
}

// useStale sets the outcome from the stale answer for key, and reports whether there is one.
func (d *responseBuilder) useStale(c *cache.Cache, key []byte) bool {
	msg, ok := c.LookupStale(key, d.now, d.buf[:0])
	if ok {
		d.use(msg, SourceStale, staleEDE(msg))
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

// complete ends the query and replies to its waiters. The cache already has the answer, so that later
// queries find it there.
func (d *responseBuilder) complete(f *inFlight) {
	defer f.r.pending.Done()
	joined := f.r.queries.remove(f)
	if d.msg == nil && f.staleHeld {
		d.useFallback(f)
	}
	d.deliverAll(&f.first, joined)
}

// deliverAll replies to the first client, if it waits, and to those that joined.
func (d *responseBuilder) deliverAll(first *waiter, joined []waiter) {
	if first.to != nil {
		d.deliver(first)
	}
	for i := range joined {
		d.deliver(&joined[i])
	}
}

// deliver replies to one waiter. A panic, which the bytes of that client's query may have caused, does
// not affect other waiters.
func (d *responseBuilder) deliver(w *waiter) {
	defer func() {
		if defect := recover(); defect != nil {
			d.r.panicked("reply", defect)
			if w.to != nil {
				w.end(nil, d.batch)
			}
		}
	}()
	room := replyBuffers.Get().(*[]byte)
	defer replyBuffers.Put(room)
	msg, state := d.restoreAnswer((*room)[:0], w)
	if state == needsRetry && d.retryWithA(w) {
		return
	}
	if state == restored && w.redirect != nil && w.redirect.mayWalk(msg) {
		d.walkOn(w, msg)
		return
	}
	source := d.source
	if state == restored {
		if source == SourceZone || source == SourceStale {
			w.opts.EDE = d.ede
		}
		msg = w.ask.Reply(msg, 0, &w.opts)
	} else {
		source = SourceFailure
		w.opts.EDE = d.ede
		msg = w.ask.AppendEmpty(msg[:0], wire.RcodeServFail, &w.opts)
	}
	*room = msg
	d.r.reply(d.plan, w, source, msg, d.now, d.batch)
}

// restoreAnswer appends the answer for the waiter, if there is one.
func (d *responseBuilder) restoreAnswer(dst []byte, w *waiter) ([]byte, restoreState) {
	failure := d.msg == nil
	dst = append(dst, d.msg...)
	switch {
	case w.redirect != nil:
		back := restorerPool.Get().(*restorer)
		defer restorerPool.Put(back)
		dst, state := back.restore(w.redirect, &w.ask, w.opts.Limit, failure, dst, 0)
		if state == restored && w.redirect.synthesized {
			d.r.counts.add(countSynthesized)
		}
		return dst, state
	case failure:
		return dst, failed
	}
	return dst, restored
}

// replyShed replies SERVFAIL to a client without room.
func (r *Resolver) replyShed(reason Shed, w *waiter, plan *Plan, batch *wire.SendBatch) {
	w.opts.EDE = wire.EDEOther
	msg := w.ask.AppendEmpty(nil, wire.RcodeServFail, &w.opts)
	if w.ask.Explain {
		msg = w.explainShed(reason, msg)
		w.ask.Explain = false // done
	}
	r.reply(plan, w, SourceShed, msg, w.since, batch)
}

// reply sends, counts and logs a reply of the slow path.
func (r *Resolver) reply(plan *Plan, w *waiter, source Source, msg []byte, now time.Time, batch *wire.SendBatch) {
	if _, inner := w.to.(*walk); inner {
		w.end(msg, batch)
		return
	}
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(w.since)
	r.counts.response(source, rcode, took)
	if w.usage != nil {
		from := source
		if source == SourceSearch {
			from = SourceUpstream
		}
		countReply(plan, w.usage, &w.ask, from, rcode, len(msg), took)
	}
	if w.from != nil { // nil: nothing was reported when the query arrived
		q := report{&w.ask, *w.from, source, rcode, now, took, msg}
		q.passOn(plan)
	}
	if w.ask.Explain {
		msg = w.explain(plan, source, msg, now)
	}
	w.end(msg, batch)
}

// passOn passes the query on to the log, the watchers and the collector of a plan.
func (q *report) passOn(p *Plan) {
	if p.QueryLog != nil && p.QueryLog.selects(q) {
		p.QueryLog.record(q)
	}
	if p.Watchers != nil {
		for _, l := range p.Watchers.all() {
			if l.selects(q) {
				l.record(q)
			}
		}
	}
	if p.Tap != nil {
		pod := ""
		if q.from.pod != nil {
			pod = q.from.pod.String()
		}
		p.Tap.ClientResponse(&q.from.Peer, pod, q.at.Add(-q.took), q.at, q.reply)
	}
}

// countReply counts a query for its client and its name. waited is zero for an answer from memory.
func countReply(p *Plan, u *pods.Usage, ask *wire.Question, source Source, rcode, size int, waited time.Duration) {
	outcome := pods.FromMemory
	switch {
	case source == SourceShed:
		outcome = pods.Shed
	case rcode == wire.RcodeServFail:
		outcome = pods.Failed
	case source == SourceUpstream:
		outcome = pods.FromUpstream
	}
	var room [wire.MaxName]byte
	name := canonical(&room, ask)
	c := pods.CountsOf(1, outcome, rcode, isIn(name, p.Cluster), size)
	c[pods.Waited] = uint64(max(0, waited.Microseconds())) //nolint:gosec // not negative
	u.Add(&c)
	if p.Pods != nil { // nil: a reload has turned them off since the query arrived
		p.Pods.CountName(name, &c)
	}
}
