// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"log/slog"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A waiter is a client that waits for an in-flight query.
type waiter struct {
	ask      wire.Question
	redirect *redirect // to the question looked up; nil: the client's own question
	opts     wire.ReplyOptions
	from     *sender     // for the query log; nil if there is none
	usage    *pods.Usage // of the client; nil: not counted
	since    time.Time
	to       wire.Replier // nil after the reply
	client   *client      // as which it is counted; nil once it is not, see detachLocked
}

// waiter returns the client of the current query as a waiter. It copies what it needs of the packet,
// appended to room as far as there is space.
func (w *Worker) waiter(room []byte, to wire.Replier) waiter {
	waiting := waiter{opts: w.opts, usage: w.usage, since: w.now.Add(-w.elapsed), to: to}
	if isReported(w.plan) {
		from := w.sender()
		waiting.from = &from
	}
	if room == nil {
		room = make([]byte, 0, len(w.q.QuestionSection())+len(w.opts.Cookie))
	}
	waiting.ask, room = w.q.CloneTo(room)
	if w.opts.Cookie != nil {
		start := len(room)
		room = append(room, w.opts.Cookie...)
		waiting.opts.Cookie = room[start:]
	}
	if w.redirect.active {
		waiting.redirect = w.redirect.clone()
		waiting.redirect.addrProven = w.addrProven
		waiting.ask.Type = waiting.ask.OriginalType()
	}
	return waiting
}

// shedWaiter returns the client of the current query as a waiter whose reply is sent before this
// returns.
func (w *Worker) shedWaiter(to wire.Replier) waiter {
	waiting := waiter{ask: w.q.Question, opts: w.opts, usage: w.usage, since: w.now.Add(-w.elapsed), to: to}
	if isReported(w.plan) {
		from := w.sender()
		waiting.from = &from
	}
	if w.redirect.active {
		waiting.redirect = &w.redirect
		waiting.ask.Type = waiting.ask.OriginalType()
	}
	return waiting
}

// end sends the waiter's one reply; nil sends none.
func (w *waiter) end(msg []byte, batch *wire.SendBatch) {
	to := w.to
	w.to = nil
	to.Reply(msg, batch)
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

// join makes the client of the current query wait for the in-flight query with its key, and starts one
// if there is none. If a limit is reached it sheds the query.
func (w *Worker) join(to wire.Replier) {
	t, who := &w.r.queries, clientKey{w.from.Addr.Addr(), w.addrProven}
	f := w.nextQuery()
	f.begunAt -= w.elapsed
	t.mu.Lock()
	existing := w.joinableLocked(f)
	c, why := t.admitLocked(who, existing == nil, w.plan)
	switch {
	case c == nil:
		silent, logIt := false, false
		// The server stops reading from TCP clients, and a stale answer costs no more than a hit.
		if !w.from.Stream && !w.staleHeld {
			silent, logIt = t.floodLocked(who, w.now)
		}
		t.mu.Unlock()
		if logIt {
			from := w.sender()
			w.r.log.LogAttrs(context.Background(), slog.LevelWarn, "client flood, replies suppressed", from.attrs()...)
		}
		w.rejectQuery(why, silent, to)
	case existing != nil:
		waiting := w.waiter(nil, to)
		waiting.client = c
		existing.joined = append(existing.joined, waiting)
		if w.staleHeld {
			existing.holdStaleLocked(w.now)
		}
		overdue := existing.staleDue
		t.mu.Unlock()
		w.r.counts.add(countJoined)
		if overdue {
			existing.serveStale(w.now, &w.batch)
		}
	default:
		f.client = c
		t.addLocked(f)
		t.mu.Unlock()
		w.prepareQuery(f)
		f.first = w.waiter(f.query, to)
		f.first.client = c
		if w.staleHeld {
			f.markReady(true, w.now)
		}
		f.send(w.now.Add(w.timeout()), &w.batch)
	}
}

// timeout returns the time that upstream has for the current query: what is left of the client's
// deadline, or half of the deadline if a query for A records may follow. Some servers never answer
// AAAA queries.
func (w *Worker) timeout() time.Duration {
	if d := &w.redirect; d.active && d.dns64 != nil && !d.retryA {
		return w.plan.Deadline / 2
	}
	return w.plan.Deadline - w.elapsed
}

// shedBackoff is the refresh backoff of a stale answer used because there was no room for a query.
const shedBackoff = time.Second

// rejectQuery handles a query without room. The client gets the zone fallback or the stale answer that
// the lookup found, or SERVFAIL with the reason, or nothing if it has had too many SERVFAILs.
func (w *Worker) rejectQuery(why Shed, silent bool, to wire.Replier) {
	if silent {
		w.r.counts.shed(ShedFlood)
		if w.usage != nil {
			countReply(w.plan, w.usage, &w.q.Question, SourceShed, wire.RcodeServFail, 0, 0)
		}
		w.tally.each[countDropped]++
		to.Reply(nil, &w.batch)
		return
	}
	w.r.counts.shed(why)
	waiting := w.shedWaiter(to)
	if w.staleHeld {
		d := newResponse(w.r, w.plan, w.now, &w.batch)
		defer d.release()
		// The zone was asked for an alias already.
		if !w.redirect.hasAlias() && d.useZoneFallback(w.plan.Zones, &w.q) || d.useStale(w.plan.Cache, w.q.Key()) {
			if why != ShedClient { // a client over its limit must not delay the refresh for others
				w.plan.Cache.DelayRefresh(w.q.Key(), w.now.Add(shedBackoff), w.now)
			}
			d.deliver(&waiting)
			return
		}
	}
	w.r.replyShed(why, &waiting, w.plan, &w.batch)
}
