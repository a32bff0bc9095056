// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// An in-flight query serves all clients that ask the same question. Its states:
//
//	Worker.join / Worker.refresh
//	   │
//	   ├─ no room ───────────────────────► shed: stale answer, SERVFAIL or nothing (rejectQuery)
//	   ├─ same question in flight ───────► joined: waits in inFlight.joined (joinLocked)
//	   ▼
//	added        in the query table; others may join (addLocked)
//	   │ prepareQuery: route and upstream query
//	   ▼
//	ready, sent  Asker.Ask was called (send)
//	   │
//	   ├─ StaleAfter, stale answer held ─► stale served: waiters get it, the query goes on (serveStale)
//	   │ Answered: answer, error or deadline
//	   ▼
//	answered     validated and stored, or the failure recorded (responseBuilder.process)
//	   ▼
//	completed    out of the table; all waiters get their reply (complete)

// maxRefreshes bounds the in-flight refreshes. Refreshes yield to clients, because an answer that
// expires costs only one more query. A refresh starts only while less than half of Plan.Inflight
// is used, and takes no client's place.
const maxRefreshes = 256

// A queryTable holds all in-flight queries.
type queryTable struct {
	seed maphash.Seed

	mu         sync.Mutex           // guards all below, and the fields of queries that others change
	byHash     map[uint64]*inFlight // by hash of the key; queries of one hash are linked
	count      int                  // in-flight queries, refreshes included
	waiting    int                  // waiting clients, over all queries
	refreshes  int
	clients    clients    // with waiting or in-flight queries
	staleQueue staleQueue // queries whose waiters can get a stale answer
}

func (fs *queryTable) init() {
	fs.seed = maphash.MakeSeed()
	fs.byHash = make(map[uint64]*inFlight)
	fs.clients.byKey = make(map[clientKey]*client)
}

func (fs *queryTable) hash(key []byte) uint64 { return maphash.Bytes(fs.seed, key) }

// findLocked returns the newest in-flight query for key, nil if there is none.
func (fs *queryTable) findLocked(hash uint64, key []byte) *inFlight {
	f := fs.byHash[hash]
	for f != nil && !bytes.Equal(f.key, key) {
		f = f.next
	}
	return f
}

// addLocked adds a query. findLocked prefers it to older ones with the same key, see joinableLocked.
func (fs *queryTable) addLocked(f *inFlight) {
	f.next = fs.byHash[f.hash]
	fs.byHash[f.hash] = f
	fs.count++
	if f.refresh {
		fs.refreshes++
	}
}

// remove removes a query and returns the waiters that joined it. No client can join any more.
func (fs *queryTable) remove(f *inFlight) (joined []waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.completed = true
	if f.inStaleQueue {
		fs.staleQueue.removeLocked(f)
	}
	if at := fs.byHash[f.hash]; at != f {
		for at.next != f {
			at = at.next
		}
		at.next = f.next
	} else if f.next != nil {
		fs.byHash[f.hash] = f.next
	} else {
		delete(fs.byHash, f.hash)
	}
	fs.count--
	if f.refresh {
		fs.refreshes--
	}
	if f.client != nil {
		fs.removeQueryLocked(f.client)
	}
	return fs.detachLocked(f)
}

// detachLocked removes the waiters of f from their clients' accounts. It returns those that joined.
func (fs *queryTable) detachLocked(f *inFlight) (joined []waiter) {
	if f.first.client != nil {
		fs.removeWaiterLocked(f.first.client)
	}
	joined, f.joined = f.joined, nil
	for i := range joined {
		fs.removeWaiterLocked(joined[i].client)
	}
	return joined
}

// join makes the client of the current query wait for the in-flight query with its key, and starts one
// if there is none. If a limit is reached it sheds the query.
func (l *Worker) join(from *wire.Peer, now time.Time, to wire.Replier) {
	fs := &l.r.queries
	f := l.nextQuery(l.q.Key(), now)
	f.begunAt -= l.elapsed
	fs.mu.Lock()
	existing := l.joinableLocked(f.hash, f.key)
	c, why := fs.admitLocked(l.client(from), existing == nil, l.plan)
	switch {
	case c == nil:
		silent, logIt := l.floodLocked(from, now)
		fs.mu.Unlock()
		if logIt {
			l.r.log.Warn("client flood, replies suppressed", "client", from.Addr.Addr())
		}
		l.rejectQuery(why, silent, from, now, to)
	case existing != nil:
		l.joinLocked(existing, c, from, now, to)
		overdue := existing.staleDue
		fs.mu.Unlock()
		l.r.counts.joined.Add(1)
		if overdue {
			l.r.serveStale(existing, now, &l.batch)
		}
	default:
		f.client = c
		fs.addLocked(f)
		fs.mu.Unlock()
		l.start(f, from, now, to)
	}
}

// joinableLocked returns the in-flight query for key that the current query may join, nil if there is
// none. A query that began before the owner's last change may return an outdated answer, so a new one
// starts next to it.
func (l *Worker) joinableLocked(hash uint64, key []byte) *inFlight {
	f := l.r.queries.findLocked(hash, key)
	if f == nil {
		return nil
	}
	if owner := l.plan.owner(l.q.Name()); owner != nil && l.plan.Cache.ChangedSince(owner, l.r.epoch.Add(f.begunAt)) {
		return nil
	}
	return f
}

// timeout returns the time that upstream has for the current query: what is left of the client's
// deadline, or half of the deadline if a query for A records may follow. Some servers never answer
// AAAA queries.
func (l *Worker) timeout() time.Duration {
	if d := &l.redirect; d.active && d.dns64 != nil && !d.retryA {
		return l.plan.Deadline / 2
	}
	return l.plan.Deadline - l.elapsed
}

// joinLocked makes client c of the current query wait for an existing in-flight query.
func (l *Worker) joinLocked(existing *inFlight, c *client, from *wire.Peer, now time.Time, to wire.Replier) {
	w := l.waiter(nil, from, now, to)
	w.client = c
	existing.joined = append(existing.joined, w)
	if l.staleHeld {
		l.r.enqueueStaleLocked(existing, now)
	}
}

// start sends a query that was added, for the client of the current query.
func (l *Worker) start(f *inFlight, from *wire.Peer, now time.Time, to wire.Replier) {
	l.prepareQuery(f)
	f.first = l.waiter(f.query, from, now, to)
	f.first.client = f.client
	if l.staleHeld {
		l.r.markReady(f, true, now)
	}
	f.send(now.Add(l.timeout()), &l.batch)
}

// rejectQuery handles a query without room. The client gets the stale answer that the lookup found, or
// SERVFAIL with the reason, or nothing if it has had too many SERVFAILs.
func (l *Worker) rejectQuery(why Shed, silent bool, from *wire.Peer, now time.Time, to wire.Replier) {
	switch {
	case l.staleHeld && l.serveStaleOnShed(why, from, now, to):
		l.r.counts.shed[why].Add(1)
	case silent:
		l.r.counts.shed[ShedFlood].Add(1)
		l.tally.dropped++
		to.Reply(nil, &l.batch)
	default:
		l.r.counts.shed[why].Add(1)
		w := l.shedWaiter(from, now, to)
		l.r.replyShed(why, &w, l.plan, &l.batch)
	}
}

// refresh starts a query for an answer that is due for prefetch, unless one is in flight.
func (l *Worker) refresh(now time.Time) {
	fs, key := &l.r.queries, l.q.Key()
	f := l.nextQuery(key, now)
	fs.mu.Lock()
	if l.joinableLocked(f.hash, key) != nil {
		fs.mu.Unlock()
		return
	}
	if fs.refreshes >= maxRefreshes || 2*fs.count >= l.plan.Inflight {
		fs.mu.Unlock()
		l.r.counts.shed[ShedRefresh].Add(1)
		return
	}
	f.refresh = true
	fs.addLocked(f)
	fs.mu.Unlock()
	l.r.counts.prefetches.Add(1)
	l.prepareQuery(f)
	l.r.markReady(f, false, now)
	f.send(now.Add(f.plan.Deadline), &l.batch)
}

// nextQuery returns the query that the worker may start for key. It is allocated before the lock is
// taken, and kept for the next call if it is not used.
func (l *Worker) nextQuery(key []byte, now time.Time) *inFlight {
	if l.spareQuery == nil {
		l.spareQuery = &inFlight{r: l.r}
	}
	f := l.spareQuery
	f.key = append(f.buf[:0], key...)
	f.hash = l.r.queries.hash(key)
	f.plan, f.begunAt = l.plan, l.r.sinceStart(now)
	return f
}

// prepareQuery completes a query that was added. Others may join it in the meantime; only this worker
// accesses its other fields.
func (l *Worker) prepareQuery(f *inFlight) {
	l.spareQuery = nil
	f.route = l.plan.route(l.q.Name())
	start := len(f.key)
	query := l.q.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// inFlightBuffer holds the key, the query and the first client's question for names of about 40 bytes,
// and a cookie. Longer ones are allocated. With this size an inFlight has 512 bytes; the next size
// class would make a miss a fifth slower.
const inFlightBuffer = 184

// An inFlight is one upstream query, for all clients with the same question. It is one memory block: a
// usual miss allocates nothing else.
type inFlight struct {
	r            *Resolver
	plan         *Plan
	route        *Route // nil: no route matches the name
	key          []byte
	query        []byte // as sent to upstream
	hash         uint64 // of key
	next         *inFlight
	client       *client       // whose place it takes; nil: it is a refresh
	begunAt      time.Duration // since the resolver was made
	refresh      bool          // started without a client
	ready        bool          // all fields are written, others may read them
	completed    bool          // no client can join any more
	staleHeld    bool          // a stale answer is held for a waiter
	staleDue     bool          // and StaleAfter has passed
	inStaleQueue bool
	answered     atomic.Bool // Answered was called

	prevStale, nextStale *inFlight // in the stale queue

	first  waiter // that started it, unless it is a refresh
	joined []waiter
	buf    [inFlightBuffer]byte
}

// name returns the canonical query name.
func (f *inFlight) name() []byte {
	end := 0
	for f.key[end] != 0 {
		end += 1 + int(f.key[end])
	}
	return f.key[:end+1]
}

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
				f.complete(&outcome{ede: wire.EDEOther}, f.r.now(), batch)
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
	d := builderPool.Get().(*responseBuilder)
	now := f.r.now()
	d.process(f, answer, err, now)
	f.complete(&d.result, now, batch)
	d.result = outcome{} // the message is the upstream's
	builderPool.Put(d)
}

// complete ends the query and replies to its waiters. The cache already has the answer, so that later
// queries find it there.
func (f *inFlight) complete(result *outcome, now time.Time, batch *wire.SendBatch) {
	defer f.r.pending.Done()
	joined := f.r.queries.remove(f)
	if result.msg == nil && f.staleHeld {
		d := builderPool.Get().(*responseBuilder)
		defer builderPool.Put(d)
		d.result = *result
		d.useFallback(f, now)
		result = &d.result
	}
	h := replySender{r: f.r, plan: f.plan, result: result, now: now, batch: batch}
	h.deliverAll(&f.first, joined)
}

// An outcome is the result of an in-flight query: msg, or a failure if it is nil.
type outcome struct {
	msg    []byte
	source Source
	ede    int
}

// A responseBuilder turns an upstream answer or a failure into an outcome. It is reused.
type responseBuilder struct {
	validator

	q      wire.Query
	buf    []byte // of result.msg, unless that is an upstream's
	result outcome
}

var builderPool = sync.Pool{New: func() any { return new(responseBuilder) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// process sets d.result from the upstream answer or the error.
func (d *responseBuilder) process(f *inFlight, answer *wire.Message, err error, now time.Time) {
	d.result = outcome{source: SourceUpstream, ede: wire.EDEOther}
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("processing an answer", defect)
			d.result = outcome{ede: wire.EDEOther}
		}
	}()
	if err == nil {
		err = d.validateAndStore(f, answer, now)
	}
	if err != nil {
		d.recordFailure(f, err, now)
	}
}

// validateAndStore validates the answer and caches it for as long as allowed.
func (d *responseBuilder) validateAndStore(f *inFlight, answer *wire.Message, now time.Time) error {
	life, err := d.validate(f.route, answer)
	if err != nil {
		return err
	}
	d.result.msg = answer.Raw
	d.store(f, life, now)
	return nil
}

// recordFailure caches the failure. The zone may still have an answer.
func (d *responseBuilder) recordFailure(f *inFlight, err error, now time.Time) {
	d.result.ede = wire.EDENoReachableAuthority
	if f.route == nil {
		return // no upstream was queried: nothing to cache
	}
	if coded, ok := errors.AsType[interface {
		error
		EDE() int
	}](err); ok {
		d.result.ede = coded.EDE()
	}
	f.r.counts.failures.Add(1)
	d.q.Parse(f.query)
	edns := d.q.EDNS
	d.q.EDNS = false // no client's flags, no OPT record
	d.buf = d.q.AppendEmpty(d.buf[:0], wire.RcodeServFail, &wire.ReplyOptions{EDE: wire.EDENone})
	f.plan.Cache.PutFailure(f.key, d.buf, time.Second, f.plan.FailureTTL, now)
	d.q.EDNS = edns
	d.useZoneFallback(f.plan.Zone, &d.q, now)
}

// A waiter is a client that waits for an in-flight query.
type waiter struct {
	ask      wire.Question
	redirect *redirect // to the question looked up; nil: the client's own question
	opts     wire.ReplyOptions
	from     *wire.Peer // for the query log; nil if there is none
	since    time.Time
	to       wire.Replier // nil after the reply
	client   *client      // as which it is counted; nil once it is not, see leaveLocked
}

// waiter returns the client of the current query as a waiter. It copies what it needs of the packet,
// appended to room as far as there is space.
func (l *Worker) waiter(room []byte, from *wire.Peer, now time.Time, to wire.Replier) waiter {
	w := waiter{opts: l.opts, since: now.Add(-l.elapsed), to: to}
	if l.plan.QueryLog != nil {
		peer := *from
		w.from = &peer
	}
	if room == nil {
		room = make([]byte, 0, len(l.q.QuestionSection())+len(l.opts.Cookie))
	}
	w.ask, room = l.q.CloneTo(room)
	if l.opts.Cookie != nil {
		start := len(room)
		room = append(room, l.opts.Cookie...)
		w.opts.Cookie = room[start:]
	}
	if l.redirect.active {
		w.redirect = l.redirect.clone()
		w.redirect.addrProven = l.addrProven
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}

// shedWaiter returns the client of the current query as a waiter whose reply is sent before this
// returns.
func (l *Worker) shedWaiter(from *wire.Peer, now time.Time, to wire.Replier) waiter {
	w := waiter{ask: l.q.Question, opts: l.opts, from: from, since: now.Add(-l.elapsed), to: to}
	if l.redirect.active {
		w.redirect = &l.redirect
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}

// A replySender sends the outcome of a query to its waiters.
type replySender struct {
	r      *Resolver
	plan   *Plan
	result *outcome
	now    time.Time
	batch  *wire.SendBatch
}

// replyBuffers are buffers for one reply each.
var replyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// deliverAll replies to the first client, if it waits, and to those that joined.
func (h *replySender) deliverAll(first *waiter, joined []waiter) {
	if first.to != nil {
		h.deliver(first)
	}
	for i := range joined {
		h.deliver(&joined[i])
	}
}

// deliver replies to one waiter. A panic, which the bytes of that client's query may have caused, does
// not affect other waiters.
func (h *replySender) deliver(w *waiter) {
	defer func() {
		if defect := recover(); defect != nil {
			h.r.panicked("reply", defect)
			if w.to != nil {
				w.end(nil, h.batch)
			}
		}
	}()
	room := replyBuffers.Get().(*[]byte)
	defer replyBuffers.Put(room)
	source := h.result.source
	msg, state := h.restoreAnswer((*room)[:0], w)
	if state == needsRetry && h.retryWithA(w) {
		return
	}
	if state == restored {
		if source == SourceZone || source == SourceStale {
			w.opts.EDE = h.result.ede
		}
		msg = w.ask.Reply(msg, 0, &w.opts)
	} else {
		source = SourceFailure
		w.opts.EDE = h.result.ede
		msg = w.ask.AppendEmpty(msg[:0], wire.RcodeServFail, &w.opts)
	}
	*room = msg
	h.r.reply(h.plan, w, source, msg, h.now, h.batch)
}

// restoreAnswer appends the answer for the waiter, if there is one.
func (h *replySender) restoreAnswer(dst []byte, w *waiter) ([]byte, restoreState) {
	failure := h.result.msg == nil
	dst = append(dst, h.result.msg...)
	switch {
	case w.redirect != nil:
		back := restorerPool.Get().(*restorer)
		defer restorerPool.Put(back)
		dst, state := back.restore(w.redirect, &w.ask, w.opts.Limit, failure, dst, 0)
		if state == restored && w.redirect.synthesized {
			h.r.counts.synthesized.Add(1)
		}
		return dst, state
	case failure:
		return dst, failed
	}
	return dst, restored
}

// panicked counts and logs a recovered panic.
func (r *Resolver) panicked(where string, defect any) {
	r.counts.panics.Add(1)
	r.log.Error("recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
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
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(w.since)
	r.counts.response(source, rcode, took)
	if plan.QueryLog != nil && w.from != nil { // nil: the query log was off when the query arrived
		plan.QueryLog.record(context.Background(), &w.ask, w.from, source, rcode, took)
	}
	if w.ask.Explain {
		msg = w.explain(plan, source, msg, now)
	}
	w.end(msg, batch)
}

// end sends the waiter's one reply; nil sends none.
func (w *waiter) end(msg []byte, batch *wire.SendBatch) {
	to := w.to
	w.to = nil
	to.Reply(msg, batch)
}
