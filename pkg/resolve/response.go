// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A responseBuilder turns an upstream answer or a failure into the replies of all who wait for it. It is
// reused.
type responseBuilder struct {
	validator

	r     *Resolver
	plan  *Plan
	now   time.Time
	batch *wire.SendBatch

	msg    []byte // the answer; nil: there is none
	source Source // source of msg
	ede    int    // Extended DNS Error of a failure, of the zone or stale answer that replaces it, or of a block list
	detail detail

	// Set with SourceBlock, for appendBlocked, which gives the answer in place of msg. The rule is in detail.
	lists   *blocklist.Lists // the lists of that rule
	blocked []byte           // canonical name looked up

	q   wire.Query
	buf []byte // memory of msg, unless msg is the upstream's
}

var (
	builderPool  = sync.Pool{New: func() any { return new(responseBuilder) }}           //nolint:gochecknoglobals // a pool is shared by design and holds no state
	replyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // for one reply each
)

// unusable is the failure of an upstream whose answer did not pass validation.
const unusable = "unusable"

// newResponse returns a responseBuilder whose outcome is a failure. The caller must call release.
func newResponse(r *Resolver, plan *Plan, now time.Time, batch *wire.SendBatch) *responseBuilder {
	d := builderPool.Get().(*responseBuilder)
	d.r, d.plan, d.now, d.batch = r, plan, now, batch
	d.ede, d.detail = wire.EDEOther, detail{}
	return d
}

func (d *responseBuilder) release() {
	d.r, d.plan, d.batch, d.msg = nil, nil, nil, nil // msg may be the memory of the upstream's answer
	d.lists, d.blocked = nil, nil
	builderPool.Put(d)
}

// process sets the outcome (msg, source and ede) from the upstream answer or the error.
func (d *responseBuilder) process(f *inFlight, answer *wire.Message, err error) {
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("processing an answer", defect)
			d.msg, d.ede = nil, wire.EDEOther
		}
	}()
	if err == nil {
		d.detail.upstream, d.detail.rule = answer.Server, f.route.rule()
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
	if inconclusive { // a usable cached answer says more than this one
		if e, ok := f.plan.Cache.Peek(f.key, d.now); ok && (e.State <= cache.PrefetchDue || e.State == cache.Stale || e.State == cache.StaleBackoff) {
			return errInconclusive
		}
	}
	d.msg, d.source, d.answer.Kept = answer.Raw, SourceUpstream, answer.Kept
	if !f.route.NoStore {
		d.store(f, life)
	}
	if plan := f.r.latest(f.plan); plan.Block != nil {
		d.block(plan, f.name(), answer.Raw)
	}
	return nil
}

// store caches the validated answer for life. An answer that may not be cached removes the cached one,
// which is known to be outdated, unless that is pinned.
func (d *responseBuilder) store(f *inFlight, life time.Duration) {
	c := f.plan.Cache
	d.answer.Owner, d.answer.QueriedAt = f.plan.owner(f.name()), f.r.epoch.Add(f.begunAt)
	if life <= 0 {
		// An answer from before the last change of its cluster object must not remove a newer answer.
		if d.answer.Owner == nil || !c.ChangedSince(d.answer.Owner, d.answer.QueriedAt) {
			c.Supersede(f.key, d.now)
		}
		return
	}
	d.answer.Msg, d.answer.Lifetime = d.msg, life
	plan := f.r.latest(f.plan)
	if plan.Block != nil {
		plan.markAlias(f.name(), d.msg)
	}
	// For cluster names only: other servers may deny a name for one type and have data of another, against RFC 2308 section 5.
	d.answer.AllTypes = d.deniesName && f.route.Exact
	c.Put(f.key, &d.answer, d.now)
	if d.deniesName && f.plan.Cut {
		f.r.cuts.add(f.name(), d.now.Sub(f.r.epoch)+life)
	}
	plan = f.r.latest(f.plan) // again: one that came before Put may have purged the cache before this answer was in it
	if plan != f.plan {
		if route := plan.route(f.name()); route == nil || route.NoStore || route.Upstream != f.route.Upstream {
			// A reload has changed the route, and may have flushed the cache before this answer arrived.
			c.Remove(f.key)
		}
	}
	if plan.Block != nil {
		plan.forgetBlocked(c, f.key, d.msg)
	}
}

// recordFailure caches the failure, and sets the outcome to it, or to the zones' fallback answer if there is one.
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
	d.detail.failure = unusable
	if failed, ok := errors.AsType[interface {
		error
		Details() (server, cause string)
	}](err); ok {
		d.detail.upstream, d.detail.failure = failed.Details()
	}
	f.r.counts.add(countFailures)
	d.q.Parse(f.query)
	edns := d.q.EDNS
	d.q.EDNS = false // the cached failure is for all clients: it has no OPT record
	d.buf = d.q.AppendEmpty(d.buf[:0], wire.RcodeServFail, &wire.ReplyOptions{EDE: wire.EDENone})
	f.plan.Cache.PutFailure(f.key, d.buf, time.Second, f.plan.FailureTTL, d.now)
	if plan := f.r.latest(f.plan); plan.Block != nil {
		plan.forgetBlocked(f.plan.Cache, f.key, d.buf)
	}
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
	if f.route == nil { // no route takes the name
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
	d.buf, d.msg, d.source, d.ede = msg, msg, SourceZone, said.EDE
	d.detail.denial = zones.Explain(said.Denial, q.Name())
	return true
}

// useStale sets the outcome from the stale answer for key, and reports whether there is one.
func (d *responseBuilder) useStale(c *cache.Cache, key []byte) bool {
	msg, ok := c.LookupStale(key, d.now, d.buf[:0])
	if ok {
		d.buf, d.msg, d.source, d.ede = msg, msg, SourceStale, staleEDE(msg)
		if plan := d.r.latest(d.plan); plan.Block != nil {
			d.block(plan, keyName(key), msg)
		}
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

// complete ends the query and replies to its waiters: with the answer, else with the fallback or a stale answer, else
// with SERVFAIL. An answer that may be stored is in the cache already, where later queries find it.
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

// deliver replies to one waiter, or goes on with its A query or its walk. A panic, which the bytes of that client's
// query may have caused, does not affect other waiters.
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
		k := &walk{r: d.r, plan: d.plan, from: w.redirect.client, addrProven: w.redirect.addrProven, source: d.source, askedDetail: d.detail}
		k.begin(w.redirect, &w.ask, msg)
		k.client = *w
		w.to = nil
		k.resume(nil, d.now, d.batch)
		return
	}
	source := d.source
	if state == restored {
		if source == SourceZone || source == SourceStale || source == SourceBlock {
			w.opts.EDE = d.ede
		}
		msg = w.ask.Reply(msg, 0, &w.opts)
	} else {
		source = SourceFailure
		w.opts.EDE = d.ede
		msg = w.ask.AppendEmpty(msg[:0], wire.RcodeServFail, &w.opts)
	}
	*room = msg
	d.r.reply(d.plan, w, source, &d.detail, msg, d.now, d.batch)
}

// restoreAnswer appends the answer for the waiter, if there is one.
func (d *responseBuilder) restoreAnswer(dst []byte, w *waiter) ([]byte, restoreState) {
	failure := d.msg == nil
	if d.source == SourceBlock && !failure {
		dst = d.appendBlocked(dst, w)
	} else {
		dst = append(dst, d.msg...)
	}
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

// retryWithA answers the A query of a waiter after its AAAA query: from memory, or by an in-flight
// query as for any miss, accounted to the same client. It runs on the goroutine that delivered the
// first answer. It returns false, without effect, if the client's deadline has passed.
func (d *responseBuilder) retryWithA(w *waiter) bool {
	elapsed := d.now.Sub(d.r.epoch) - w.since
	if elapsed >= d.plan.Deadline {
		return false
	}
	d.r.withWorker(d.plan, &w.redirect.client, d.now, elapsed, d.batch, func(q *query) {
		q.opts, q.redirect, q.addrProven, q.retried, q.usage = w.opts, w.redirect, w.redirect.addrProven, w.from, w.usage
		_, q.inner = w.to.(*walk)
		q.SetQuestion(&w.ask)
		q.Subnet = w.redirect.subnet
		if w.redirect.rule != nil || w.redirect.hasAlias() {
			var room [wire.MaxName]byte
			q.SetName(w.redirect.lookupName(room[:0], q.Name()))
		}
		q.SetType(wire.TypeA)
		q.worker.tally.begin(d.r.epoch.Add(w.since))
		room := replyBuffers.Get().(*[]byte)
		defer replyBuffers.Put(room)
		msg, verdict := q.makeReply((*room)[:0])
		if verdict == wire.Answered {
			*room = msg
			w.end(msg, &q.worker.batch)
			return
		}
		to := w.to
		w.to = nil
		q.wait(to)
	})
	return true
}
