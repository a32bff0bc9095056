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

// maxRefreshes bounds the flights that began for nobody. Refreshes give way to
// clients: a popular answer that is not refreshed is merely asked for once more. They
// begin only while less than half of what may be under way is, and take no client's
// place.
const maxRefreshes = 256

// flights are the questions under way.
type queryTable struct {
	seed maphash.Seed

	mu         sync.Mutex           // guards all below, and of each flight what others change
	byHash     map[uint64]*inFlight // of its key; those that share one are linked
	count      int                  // flights, refreshes included
	waiting    int                  // clients, over all flights
	refreshes  int                  // flights that began for no client
	clients    clients              // who waits
	staleQueue staleQueue           // those whose clients wait for a late answer
}

func (fs *queryTable) init() {
	fs.seed = maphash.MakeSeed()
	fs.byHash = make(map[uint64]*inFlight)
	fs.clients.byKey = make(map[clientKey]*client)
}

func (fs *queryTable) hash(key []byte) uint64 { return maphash.Bytes(fs.seed, key) }

// findLocked is the flight for key, nil if none is under way.
func (fs *queryTable) findLocked(hash uint64, key []byte) *inFlight {
	f := fs.byHash[hash]
	for f != nil && !bytes.Equal(f.key, key) {
		f = f.next
	}
	return f
}

// addLocked adds a flight. It is found before others with its key, see joinableLocked.
func (fs *queryTable) addLocked(f *inFlight) {
	f.next = fs.byHash[f.hash]
	fs.byHash[f.hash] = f
	fs.count++
	if f.refresh {
		fs.refreshes++
	}
}

// take takes a flight out and gives those who joined it. Nobody joins from then on.
func (fs *queryTable) remove(f *inFlight) (joined []waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.completed = true
	fs.staleQueue.removeLocked(f)
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
	if f.first.client != nil {
		fs.removeWaiterLocked(f.first.client)
	}
	joined, f.joined = f.joined, nil
	for i := range joined {
		fs.removeWaiterLocked(joined[i].client)
	}
	return joined
}

// join makes the client of the query in l wait for the flight for its key,
// beginning one if there is none. When a bound is reached the client is told so at
// once.
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
			l.r.log.Warn("a client floods and gets no replies", "client", from.Addr.Addr())
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

// patience is how long upstream has for a flight that the query in hand begins: what is left of its client's time, or
// half of all if another question may be to follow. Some servers never answer for addresses of IPv6.
func (l *Worker) timeout() time.Duration {
	if d := &l.redirect; d.active && d.dns64 != nil && !d.retryA {
		return l.plan.Deadline / 2
	}
	return l.plan.Deadline - l.elapsed
}

// boardLocked has the client c of the query in hand wait for a flight under way.
func (l *Worker) joinLocked(existing *inFlight, c *client, from *wire.Peer, now time.Time, to wire.Replier) {
	w := l.waiter(nil, from, now, to)
	w.client = c
	existing.joined = append(existing.joined, w)
	if l.staleHeld {
		l.r.enqueueStaleLocked(existing, now)
	}
}

// begin lets a flight that was added depart, for the client of the query in hand.
func (l *Worker) start(f *inFlight, from *wire.Peer, now time.Time, to wire.Replier) {
	l.prepareQuery(f)
	f.first = l.waiter(f.query, from, now, to)
	f.first.client = f.client
	if l.staleHeld {
		l.r.markReady(f, true, now)
	}
	f.send(now.Add(l.timeout()), &l.batch)
}

// turnAway answers a client for whom there is no room: with the late answer that AnswerFromMemory
// found, or the reason, or, if it was told often enough, not at all.
func (l *Worker) rejectQuery(why Shed, silent bool, from *wire.Peer, now time.Time, to wire.Replier) {
	switch {
	case l.staleHeld && l.serveStaleOnShed(why, from, now, to):
		l.r.counts.shed[why].Add(1)
	case silent:
		l.dropQuery(to)
	default:
		l.replyShed(why, from, now, to)
	}
}

// refresh begins a flight for an answer that is due, unless one is under way.
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

// nextFlight is a flight that the worker may begin for key. It is made before the
// lock is taken, and left for the next time if it is not needed.
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

// prepareFlight completes a flight that was added. Others may find it and join it
// meanwhile; the rest of it is still this worker's own.
func (l *Worker) prepareQuery(f *inFlight) {
	l.spareQuery = nil
	f.route = l.plan.route(l.q.Name())
	start := len(f.key)
	query := l.q.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// ignore gives no reply to a client that was turned away too often.
func (l *Worker) dropQuery(to wire.Replier) {
	l.r.counts.shed[ShedFlood].Add(1)
	l.tally.dropped++
	to.Reply(nil, &l.batch)
}

// shed answers a client for whom there is no room.
func (l *Worker) replyShed(reason Shed, from *wire.Peer, now time.Time, to wire.Replier) {
	l.r.counts.shed[reason].Add(1)
	w := l.shedWaiter(from, now, to)
	l.r.replyShed(reason, &w, l.plan, &l.batch)
}

// turned is the client of the query in hand, who gets its reply before this returns.
func (l *Worker) shedWaiter(from *wire.Peer, now time.Time, to wire.Replier) waiter {
	w := waiter{ask: l.q.Question, opts: l.opts, from: from, since: now.Add(-l.elapsed), to: to}
	if l.redirect.active {
		w.redirect = &l.redirect
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}

// flightRoom is for the bytes of one flight: the key, the query and the first
// client's question, of names of some forty octets, and a cookie. Longer ones find
// room elsewhere. With it a flight has 512 octets: for more the allocator takes a
// fifth of a miss longer.
const inFlightBuffer = 184

// A flight is one question on its way upstream, for all who asked it. It is one
// piece of memory: nothing of a common miss is anywhere else.
type inFlight struct {
	r            *Resolver
	plan         *Plan
	route        *Route // nil: there is none for the name
	key          []byte
	query        []byte // as sent upstream
	hash         uint64 // of key
	next         *inFlight
	client       *client       // whose place it takes; nil: it is a refresh
	begunAt      time.Duration // since the resolver was made
	refresh      bool          // begun for no client
	ready        bool          // all of it is written, and may be read by others
	completed    bool          // nobody joins any more
	staleHeld    bool          // a late answer was held for somebody who waited
	staleDue     bool          // and they have waited for long enough
	inStaleQueue bool          // in lates
	answered     atomic.Bool   // what came of it is known

	prevStale, nextStale *inFlight // in lates

	first  waiter   // who began it, unless it is a refresh
	joined []waiter // who joined it
	buf    [inFlightBuffer]byte
}

// errNoRoute is what comes of a question that no route takes.
var errNoRoute = errors.New("no route for the name")

// depart asks upstream, which has until a moment. The deadline is not the client's nor the server's: a
// flight serves whoever joins it, and what was accepted is answered even while the
// agent stops.
func (f *inFlight) send(until time.Time, batch *wire.SendBatch) {
	f.r.pending.Add(1)
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("flight", defect)
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

// Answered implements [wire.AnswerReceiver]: it keeps what may be kept, and answers
// everybody who waits. Only the first call counts.
func (f *inFlight) Answered(answer []byte, err error, batch *wire.SendBatch) {
	if f.answered.Swap(true) {
		return
	}
	d := builderPool.Get().(*responseBuilder)
	now := f.r.now()
	d.process(f, answer, err, now)
	f.complete(&d.result, now, batch)
	builderPool.Put(d)
}

// land ends the flight and replies to its waiters. By now the cache has what was to
// be kept, so that whoever asks from here on finds it there.
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

// An outcome is what a flight came back with: msg, or a failure if it is nil.
type outcome struct {
	msg    []byte
	source Source
	ede    int
}

// A desk is where an answer is dealt with. It is reused.
type responseBuilder struct {
	validator

	q      wire.Query
	buf    []byte // of result.msg
	result outcome
}

var builderPool = sync.Pool{New: func() any { return new(responseBuilder) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// decide makes d.result of what came for the flight.
func (d *responseBuilder) process(f *inFlight, answer []byte, err error, now time.Time) {
	d.result = outcome{source: SourceUpstream, ede: wire.EDEOther}
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("flight", defect)
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

// keep judges the answer and stores it as long as it may be.
func (d *responseBuilder) validateAndStore(f *inFlight, answer []byte, now time.Time) error {
	d.buf = append(d.buf[:0], answer...) // the judge writes to it
	msg, life, err := d.validator.validate(f.route, d.buf)
	if err != nil {
		return err
	}
	d.result.msg = msg
	d.store(f, life, now)
	return nil
}

// fail remembers that there was no answer. The zone has the last word.
func (d *responseBuilder) recordFailure(f *inFlight, err error, now time.Time) {
	d.result.ede = wire.EDENoReachableAuthority
	if f.route == nil {
		return // nobody was asked: there is nothing to remember
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

// A waiter is a client that waits for a flight.
type waiter struct {
	ask      wire.Question
	redirect *redirect // to the flight's question; nil if that is the client's own
	opts     wire.ReplyOptions
	from     *wire.Peer // for the query log; nil if there is none
	since    time.Time
	to       wire.Replier // nil once it was called
	client   *client      // as which it is counted; nil once it is not, see leaveLocked
}

// A hand gives the outcome of a flight to those who wait for it.
type replySender struct {
	r      *Resolver
	plan   *Plan
	result *outcome
	now    time.Time
	batch  *wire.SendBatch
}

// rooms are for one reply each, while it is made.
var replyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// give replies to one waiter. What goes wrong with one reply, that one client's
// bytes may have caused, costs the others nothing.
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

// whole appends the answer for the waiter, if there is one.
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

// shed answers a client for whom there is no room.
func (r *Resolver) replyShed(reason Shed, w *waiter, plan *Plan, batch *wire.SendBatch) {
	w.opts.EDE = wire.EDEOther
	msg := w.ask.AppendEmpty(nil, wire.RcodeServFail, &w.opts)
	if w.ask.Explain {
		msg = w.explainShed(reason, msg)
		w.ask.Explain = false // it is done
	}
	r.reply(plan, w, SourceShed, msg, w.since, batch)
}

// reply sends, counts and logs a reply of the slow path.
func (r *Resolver) reply(plan *Plan, w *waiter, source Source, msg []byte, now time.Time, batch *wire.SendBatch) {
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(w.since)
	r.counts.response(source, rcode, took)
	if plan.QueryLog != nil && w.from != nil { // nil: there was no log yet, or no more, when it came
		plan.QueryLog.record(context.Background(), &w.ask, w.from, source, rcode, took)
	}
	if w.ask.Explain {
		msg = w.explain(plan, source, msg, now)
	}
	w.end(msg, batch)
}

// end gives the waiter its one reply.
func (w *waiter) end(msg []byte, batch *wire.SendBatch) {
	to := w.to
	w.to = nil
	to.Reply(msg, batch)
}
